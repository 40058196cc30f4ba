"""More instances, or fewer, at the controller: who is started, drained, taken back and removed."""

import asyncio

import pytest
from fakes import FakeNetwork, settle, virtual_time
from steering_bed import SteeringBed

from controller.core.drain import DrainState
from controller.core.event_log import EventKind
from controller.core.scaling import ScalePlan
from controller.runtime.drains import SteerRefusedError


async def is_gone(bed: SteeringBed, instance_id: str) -> None:
    while instance_id in bed.controller.roster.members:
        await asyncio.sleep(0.05)


@virtual_time
async def test_growing_starts_instances_with_new_numbers(network: FakeNetwork) -> None:
    bed = SteeringBed(network, num_instances=2)
    await bed.serve()
    assert bed.scale(4) == ScalePlan(2, 4, num_added=2)
    assert bed.launcher.launched[-2:] == ["i-2", "i-3"]
    assert bed.keeper.spec.instance_ids == ("i-0", "i-1", "i-2", "i-3")
    assert bed.keeper.revision == 1
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
    await asyncio.wait_for(is_gone(bed, "i-1"), 5.0)
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
    assert not bed.controller.scheduler.instances["i-1"].snapshot.draining  # type: ignore
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
async def test_bounds_and_room(network: FakeNetwork) -> None:
    bed = SteeringBed(network, num_instances=2)
    await bed.serve()
    scaling = bed.controller.scaling

    def code(target: int, *, force: bool = False) -> str:
        with pytest.raises(SteerRefusedError) as refused:
            scaling.plan(target, force=force)
        return refused.value.code

    assert code(0) == code(-3) == code(0, force=True) == "min_instances"
    assert code(1025) == "max_instances"
    bed.launcher.why_no_room = "2 GPUs are needed, Ray has 0 free"
    assert code(4) == "no_room"
    assert scaling.plan(4, force=True).num_added == 2
    assert not scaling.plan(2, force=False).changes, "what is there needs no room"
    assert bed.keeper.revision == 0


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
    with pytest.raises(SteerRefusedError) as refused:
        bed.controller.scaling.plan(1, force=False)
    assert refused.value.code == "last_instance"
