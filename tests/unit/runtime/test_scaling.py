"""Scaling at the controller: which instances are started, drained, kept and removed."""

import asyncio

import pytest

from controller.api.errors import LlumctlError
from controller.core.emptying.drains import DrainState
from controller.core.fleet.cluster_spec import ScalePlan
from controller.core.record.event_log import EventKind
from controller.runtime.controller.operations.operated_cluster import OperationRefusedError
from tests.unit.runtime.fakes import FakeLauncher, FakeNetwork, settle, virtual_time
from tests.unit.runtime.steering_bed import Disk, SteeringBed


@virtual_time
async def test_one_that_cannot_be_launched_does_not_end_a_controller_that_starts(
    network: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    launches = FakeLauncher.launch_instance
    tries = []

    def launch(self: FakeLauncher, instance_id: str) -> None:
        tries.append(instance_id)
        if instance_id == "i-0" and tries.count("i-0") < 3:
            raise ValueError("its name is taken, and nobody has it")
        launches(self, instance_id)

    monkeypatch.setattr(FakeLauncher, "launch_instance", launch)
    bed = SteeringBed(network, num_instances=2)
    assert bed.launcher.launched == ["f-0", "i-1"]
    await asyncio.sleep(2.5)
    assert bed.launcher.launched == ["f-0", "i-1", "i-0"]
    await bed.serve()
    assert (await bed.dispatched()).instance_id in ("i-0", "i-1")


@virtual_time
async def test_growing_starts_instances_with_new_numbers(network: FakeNetwork) -> None:
    bed = SteeringBed(network, num_instances=2)
    await bed.serve()
    assert bed.scale(4) == ScalePlan(2, 4, num_added=2)
    assert bed.launcher.launched[-2:] == ["i-2", "i-3"]
    assert bed.keeper.spec.instance_ids == ("i-0", "i-1", "i-2", "i-3")
    assert bed.keeper.spec.revision == 1
    bed.peers["i-2"] = network.peer("mem://i-2")
    await bed.joins("i-2")
    await bed.reports("i-2")
    await bed.reports("i-0", num_running=5, free=10)
    await bed.reports("i-1", num_running=5, free=10)
    assert (await bed.dispatched()).instance_id == "i-2"


@virtual_time
async def test_shrinking_drains_the_least_busy_and_removes_it_when_it_is_empty(
    network: FakeNetwork,
) -> None:
    bed = SteeringBed(network)
    await bed.serve()
    await bed.reports("i-0", num_running=4)
    await bed.reports("i-1", num_running=2)
    await bed.reports("i-2", num_running=3)
    assert bed.scale(2).drained == ("i-1",)
    await bed.reports("i-1", num_running=2)
    await asyncio.sleep(2)
    assert bed.controller.drains.progress("i-1").state is DrainState.DRAINING
    await bed.reports("i-1")
    await asyncio.wait_for(bed.is_gone("i-1"), 5.0)
    assert bed.launcher.terminated == ["i-1"]
    assert bed.keeper.spec.instance_ids == ("i-0", "i-2")
    kinds = [e.kind for e in bed.events()]
    assert kinds == [EventKind.DRAIN_STARTED, EventKind.DRAINED, EventKind.DRAIN_ENDED]
    assert bed.events()[0].reason == "to be removed: a fan"
    bed.scale(3)
    assert bed.launcher.launched[-1] == "i-3", "the number of the removed one is not used again"


@virtual_time
async def test_growing_takes_back_what_was_to_go_before_it_starts_anything(
    network: FakeNetwork,
) -> None:
    bed = SteeringBed(network)
    await bed.serve()
    for n in range(3):
        await bed.reports(f"i-{n}", num_running=n + 1)
    bed.scale(1)
    await bed.reports("i-0", num_running=1)
    await bed.reports("i-1", num_running=2)
    num_launched = len(bed.launcher.launched)
    assert bed.scale(2) == ScalePlan(1, 2, undrained=("i-1",))
    assert len(bed.launcher.launched) == num_launched
    await bed.reports("i-1", num_running=2)
    assert not bed.controller.scheduler.instances["i-1"].snapshot.draining
    assert bed.scale(4) == ScalePlan(2, 4, 1, undrained=("i-0",))
    assert bed.launcher.launched[num_launched:] == ["i-3"]
    assert bed.keeper.spec.drains == {}


@virtual_time
async def test_one_that_starts_is_planned_and_goes_first(network: FakeNetwork) -> None:
    bed = SteeringBed(network, num_instances=2)
    await bed.serve()
    bed.scale(3)
    assert bed.controller.scaling.num_planned == 3
    assert bed.scale(2).drained == ("i-2",)
    assert bed.controller.scaling.num_planned == 2
    for _ in range(14):  # it never says Hello: Ray has no place for it
        await asyncio.sleep(1)
        await bed.joins("f-0", incarnation=1)
    assert bed.launcher.terminated == ["i-2"]


@virtual_time
async def test_aborted_by_its_deadline_a_scale_in_keeps_the_instance(
    network: FakeNetwork,
) -> None:
    bed = SteeringBed(network, num_instances=2)
    await bed.serve()
    for n in range(2):
        await bed.reports(f"i-{n}", num_running=1)
    bed.scale(1, deadline_s=bed.controller.now_s() + 3.0, on_deadline="abort")
    await bed.reports("i-0", num_running=1)
    await asyncio.sleep(4)
    assert bed.controller.scaling.num_planned == 2
    assert bed.launcher.terminated == []


@virtual_time
async def test_who_drained_before_it_was_to_go_drains_on_when_it_stays(
    network: FakeNetwork,
) -> None:
    bed = SteeringBed(network)
    await bed.serve()
    for n in range(1, 3):
        await bed.reports(f"i-{n}", num_running=9)
    await bed.reports("i-0", num_running=1)
    bed.begin("i-0", reason="a broken fan")
    drained = bed.keeper.spec.drains["i-0"]
    assert bed.scale(2, deadline_s=bed.controller.now_s() + 60.0).drained == ("i-0",)
    assert bed.keeper.spec.drains["i-0"].goes
    assert bed.scale(3).undrained == ("i-0",)
    assert bed.keeper.spec.drains == {"i-0": drained}
    assert bed.controller.scheduler.instances["i-0"].is_shut
    said = bed.events()[-1]
    assert said.reason == "not to be removed any more; it drains on: a broken fan"
    bed.scale(2)
    bed.controller.drains.end("i-0", "undrained")
    assert bed.keeper.spec.drains == {}, "that was about all of it"


@virtual_time
async def test_an_aborted_scale_in_leaves_the_drain_of_before(network: FakeNetwork) -> None:
    bed = SteeringBed(network)
    await bed.serve()
    await bed.reports("i-0", num_running=1)
    bed.begin("i-0")
    drained = bed.keeper.spec.drains["i-0"]
    for n in range(1, 3):
        await bed.reports(f"i-{n}", num_running=9)
    deadline_s = bed.controller.now_s() + 2.0
    assert bed.scale(2, deadline_s=deadline_s, on_deadline="abort").drained == ("i-0",)
    await asyncio.sleep(3)
    assert bed.keeper.spec.drains == {"i-0": drained}


@virtual_time
async def test_a_scale_is_one_change_and_made_whole_or_not_at_all(network: FakeNetwork) -> None:
    bed = SteeringBed(network)
    await bed.serve()
    disk = bed.keeper._store = Disk()
    bed.scale(1)
    assert (disk.num_saved, bed.keeper.spec.revision) == (1, 1)
    before, launched = bed.keeper.spec, list(bed.launcher.launched)
    disk.is_full = True
    with pytest.raises(LlumctlError):
        bed.scale(5)
    assert (bed.keeper.spec, bed.launcher.launched) == (before, launched)
    disk.is_full = False
    assert bed.scale(5).num_added == 2
    assert (disk.num_saved, bed.keeper.spec.revision, bed.keeper.spec.drains) == (2, 2, {})


@virtual_time
async def test_what_could_not_be_started_is_tried_again_and_holds_up_nobody(
    network: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed = SteeringBed(network, num_instances=2)
    await bed.serve()
    starts, tries = bed.launcher.launch_instance, []

    def launch(instance_id: str) -> None:
        tries.append(instance_id)
        if instance_id == "i-2" and tries.count("i-2") < 3:
            raise RuntimeError("Ray does not answer")
        starts(instance_id)

    monkeypatch.setattr(bed.launcher, "launch_instance", launch)
    bed.scale(4)
    assert bed.launcher.launched[-1] == "i-3"
    while "i-2" not in bed.controller.roster.members:
        await asyncio.sleep(0.1)
    assert tries == ["i-2", "i-3", "i-2", "i-2"]
    assert not bed.task.done()


@virtual_time
async def test_one_whose_process_has_ended_already_is_not_taken_back(
    network: FakeNetwork,
) -> None:
    """Its removal could not be saved."""
    bed = SteeringBed(network)
    await bed.serve()
    disk = bed.keeper._store = Disk()
    for n in range(1, 3):
        await bed.reports(f"i-{n}", num_running=9)
    bed.scale(2)
    disk.is_full = True
    await bed.reports("i-0")
    await asyncio.wait_for(bed.is_gone("i-0"), 5.0)
    assert bed.keeper.spec.drains["i-0"].goes
    disk.is_full = False
    assert bed.scale(3) == ScalePlan(2, 3, num_added=1)
    assert bed.launcher.launched[-1] == "i-3"
    await asyncio.sleep(2)
    assert bed.keeper.spec.instance_ids == ("i-1", "i-2", "i-3")


@virtual_time
async def test_bounds_and_room(network: FakeNetwork) -> None:
    bed = SteeringBed(network, num_instances=2)
    await bed.serve()
    scaling = bed.controller.scaling

    def code(target: int, *, force: bool = False) -> str:
        with pytest.raises(OperationRefusedError) as refused:
            scaling.plan(target, force=force)
        return refused.value.code

    assert code(0) == code(-3) == code(0, force=True) == "min_instances"
    assert code(1025) == "max_instances"
    bed.launcher.why_no_room = "2 GPUs are needed, Ray has 0 free"
    assert code(4) == "no_room"
    assert scaling.plan(4, force=True).num_added == 2
    assert not scaling.plan(2, force=False).changes, "what is there needs no room"
    assert bed.keeper.spec.revision == 0


@virtual_time
async def test_what_serves_is_not_removed_for_what_does_not(network: FakeNetwork) -> None:
    bed = SteeringBed(network, num_instances=2)
    await bed.serve()
    await bed.reports("i-1", num_running=5)
    network.lose("mem://i-0")
    await settle()
    assert bed.controller.scaling.plan(1, force=False).drained == ("i-0",)
    bed.begin("i-0")
    bed.controller.drains.end("i-0", "undrained")
    network.lose("mem://i-1")
    await settle()
    with pytest.raises(OperationRefusedError) as refused:
        bed.controller.scaling.plan(1, force=False)
    assert refused.value.code == "last_instance"
