"""Drains, removals, evacuations and restarts at the controller: what instances and frontends are
told, and when each one is over."""

import asyncio

import msgspec
import pytest

from controller.core.emptying.claims import Evacuate, Remove, Restart
from controller.core.emptying.drains import HEARD_WITHIN_S, REPLACE_AGAIN_S, RETRY_S, DrainState
from controller.core.fleet.cluster_spec import ExitReason
from controller.core.record.event_log import EventKind
from controller.runtime.controller.operations.drain_runner import LATELY_S
from controller.runtime.messages.members import Directory, DrainSet, InstanceLost
from controller.runtime.messages.requests import ReplayOrdered
from tests.unit.runtime.fakes import FakeNetwork, hello, settle, virtual_time
from tests.unit.runtime.steering_bed import MOVE, SteeringBed

pytestmark = virtual_time


class Bed(SteeringBed):
    """Three instances; i-0 has the process `a`."""

    def is_draining(self) -> bool:
        return self.controller.scheduler.instances["i-0"].snapshot.draining

    def drain_sets(self) -> list[DrainSet]:
        return self.peers["i-0"].received(DrainSet)

    def evacuates(self, within_s: float = 10.0) -> None:
        self.begin("i-0", Evacuate, deadline_s=self.controller.now_s() + within_s)

    async def notices(self, leaves_in_s: float = 30.0) -> None:
        said = hello("i-0", incarnation=1)
        self.says("i-0", msgspec.structs.replace(said, leaves_in_s=leaves_in_s))
        await settle()

    def restart(self, **what: object) -> None:
        nonce = self.controller.roster.members["i-0"].nonce
        self.begin("i-0", Restart, nonce=nonce, **what)

    async def restart_is_over(self) -> None:
        await self.comes_back("i-0")
        await asyncio.sleep(1.0)
        await self.reports("i-0", incarnation=2)
        assert self.keeper.spec.drains == {}

    async def next_controller(self, **processes: str) -> None:
        self.restart_controller()
        await asyncio.sleep(HEARD_WITHIN_S / 2)
        for member_id in self.peers:
            nonce = processes.get(member_id.replace("-", "_"), "a")
            if nonce != "a":
                await self.joins(member_id, nonce=nonce)
            await self.joins(member_id, nonce=nonce, incarnation=1)


@pytest.fixture
async def bed(network: FakeNetwork) -> Bed:
    return await Bed.serving(network)


# -- drains -------------------------------------------------------------------------------


async def test_a_draining_instance_gets_nothing_from_the_very_moment(bed: Bed) -> None:
    bed.begin("i-0")
    assert bed.is_draining(), "before it has heard of it"
    assert await bed.chosen() == ["i-1", "i-2", "i-1", "i-2"]
    told = bed.f0.received(Directory)[-1].instances
    assert {e.instance_id for e in told if e.snapshot and e.snapshot.draining} == {"i-0"}
    assert bed.drain_sets() == [DrainSet(True)]
    await bed.reports("i-0", draining=False)
    assert bed.is_draining(), "a status that was under way"
    assert bed.peers["i-1"].received(DrainSet) == []


async def test_undrained_it_gets_requests_as_soon_as_it_says_so_itself(bed: Bed) -> None:
    bed.begin("i-0")
    await bed.reports("i-0", num_running=3)
    for _ in range(2):  # the second one is nothing
        bed.controller.drains.end("i-0", "undrained", "bo")
    await settle()
    assert bed.drain_sets() == [DrainSet(True), DrainSet(False)]
    assert bed.is_draining(), "it refuses moves still"
    await bed.reports("i-0")
    assert await bed.chosen(1) == ["i-0"]
    began, ended = bed.events()
    assert (began.kind, began.actor, began.reason) == ("drain_started", "ana", "a fan")
    assert (ended.kind, ended.actor, ended.reason) == ("drain_ended", "bo", "undrained")
    assert began.cause_id == ended.cause_id == "op-1"
    assert ended.numbers == {"num_requests_left": 3, "num_moved": 0}


async def test_it_is_drained_when_it_and_all_frontends_have_nothing_left(bed: Bed) -> None:
    bed.runs("i-0", "r-1")
    bed.begin("i-0")
    for left in (
        {"num_running": 1},
        {"num_queued": 1},
        {"moves": (MOVE,)},
        {"num_moves_in": 1},
        {"draining": False},
        {},
    ):
        await bed.reports("i-0", **left)
        await asyncio.sleep(2)
        assert bed.progress().state is DrainState.DRAINING, left
        assert not bed.progress().safe_to_delete
    await bed.migrated()
    bed.runs("i-0")
    await bed.becomes(DrainState.DRAINED)
    progress = bed.progress()
    assert (progress.safe_to_delete, progress.num_left, progress.num_moved) == (True, 0, 1)
    assert bed.launcher.terminated == [], "it stays, empty"
    (drained,) = bed.events(EventKind.DRAINED)
    assert (drained.instance_id, drained.cause_id) == ("i-0", "op-1")
    bed.runs("i-0", "r-9")  # sent by a frontend that had not heard of the drain
    await bed.reports("i-0", num_running=1)
    await bed.becomes(DrainState.DRAINING)


@pytest.mark.parametrize("how", ["it comes and ends", "its frontend dies"])
async def test_what_was_dispatched_before_and_is_not_there_yet_counts(bed: Bed, how: str) -> None:
    assert await bed.chosen(1) == ["i-0"]
    bed.begin("i-0")
    await bed.reports("i-0", seen=0)
    await asyncio.sleep(2)
    assert (bed.progress().state, bed.progress().num_left) == (DrainState.DRAINING, 1)
    if how == "its frontend dies":
        bed.network.lose("mem://f-0")
    await bed.reports("i-0", seen=int(how == "it comes and ends"))
    await bed.becomes(DrainState.DRAINED)


async def test_a_frontend_that_does_not_answer_may_have_something_there(bed: Bed) -> None:
    bed.silent.add("f-0")
    bed.begin("i-0")
    for _ in range(10):
        await bed.joins("f-0", incarnation=1)
        await bed.reports("i-0")
        await asyncio.sleep(1)
        assert bed.progress().state is DrainState.DRAINING
    bed.silent.clear()
    await bed.becomes(DrainState.DRAINED)


async def test_an_instance_that_dies_while_it_drains_comes_back_draining(bed: Bed) -> None:
    bed.begin("i-0")
    await bed.reports("i-0", num_running=1)
    await bed.dies("i-0")
    await bed.becomes(DrainState.DRAINED)
    await bed.joins("i-0", nonce="b")
    assert bed.drain_sets() == [DrainSet(True)]
    await bed.reports("i-0", incarnation=2, draining=False)
    assert bed.is_draining()


async def test_keep_goes_on_and_names_once_what_cannot_move(bed: Bed) -> None:
    bed.runs("i-0", "r-1", "r-2")
    bed.refusals = {"r-2": "multimodal"}
    bed.begin("i-0", deadline_s=bed.controller.now_s() + 5.0)
    await bed.reports("i-0", num_running=2)
    await asyncio.sleep(4.8)
    assert bed.events(EventKind.DRAIN_OVERDUE) == []
    for member in ("i-1", "i-2"):
        await bed.reports(member)  # or it would be stalled by now
    await asyncio.sleep(4)
    (overdue,) = bed.events(EventKind.DRAIN_OVERDUE)
    assert overdue.reason == "its deadline passed, and it goes on: r-2 multimodal"
    assert overdue.numbers == {"num_requests_left": 2, "num_cannot_move": 1}
    assert bed.is_draining()


@pytest.mark.parametrize("alike", [True, False])
async def test_what_no_other_engine_takes_is_replayed_if_the_restart_says_so(
    bed: Bed, alike: bool
) -> None:
    """The others have been upgraded, or one of them has not."""
    for instance_id in ("i-1", "i-2"):
        is_old = alike and instance_id == "i-2"
        await bed.dies(instance_id)
        said = hello(instance_id, nonce="b")
        prints = {"fingerprint": "" if is_old else "vllm=2"}
        bed.says(instance_id, msgspec.structs.replace(said, **prints))
        await bed.reports(instance_id, incarnation=2)
    bed.runs("i-0", "r-1", "r-2")
    bed.refusals = {"r-2": "multimodal"}
    bed.restart(replays=True)
    await bed.reports("i-0", num_running=2)
    await asyncio.sleep(1.0)
    told = bed.f0.received(ReplayOrdered)
    assert [(each.instance_id, each.incarnation, each.request_ids) for each in told] == (
        [] if alike else [("i-0", 1, ("r-1",))]
    )


async def test_abort_ends_the_drain_and_no_request(bed: Bed) -> None:
    bed.runs("i-0", "r-1")
    bed.begin("i-0", deadline_s=bed.controller.now_s() + 5.0, on_deadline="abort")
    await bed.reports("i-0", num_running=1)
    await asyncio.sleep(6)
    assert bed.keeper.spec.drains == {}
    assert bed.whys(EventKind.DRAIN_ENDED) == ["its deadline passed: what is left stays"]
    assert "AbortRequests" not in [type(said).__name__ for said, _ in bed.peers["i-0"].inbox]
    assert bed.drain_sets()[-1] == DrainSet(False)


async def test_who_watches_a_drain_has_it_looked_at_once_a_second(bed: Bed) -> None:
    bed.runs("i-0", "r-1")
    await bed.reports("i-0", num_running=1)
    forecasts = bed.controller.drain_forecasts
    seen = await asyncio.gather(*(forecasts.lately("i-0") for _ in range(5)))
    assert [each.request.request_id for each in seen[0].departures] == ["r-1"]
    assert bed.num_asked == 2, "one question to the frontend and one to i-0, for five"
    bed.runs("i-0")
    bed.silent.add("f-0")
    await asyncio.sleep(LATELY_S)
    found = await forecasts.lately("i-0")
    assert (found.departures, found.silent) == ((), ("f-0",))
    bed.scale(4)
    assert (await forecasts.lately("i-3")).departures == (), "it has not reported yet"


# -- removals -----------------------------------------------------------------------------


async def test_a_removed_instance_is_forgotten_and_no_failure(bed: Bed) -> None:
    bed.begin("i-0", Remove)
    await bed.reports("i-0")
    await bed.is_gone()
    assert bed.launcher.terminated == ["i-0"]
    assert (bed.keeper.spec.instance_ids, bed.keeper.spec.drains) == (("i-1", "i-2"), {})
    assert "i-0" not in bed.controller.scheduler.instances
    await settle()
    assert bed.peers["i-1"].received(InstanceLost) == [InstanceLost("i-0", 1)]
    assert [e.instance_id for e in bed.f0.received(Directory)[-1].instances] == ["i-1", "i-2"]
    await bed.joins("i-0", incarnation=1)  # late
    await bed.reports("i-0")
    assert "i-0" not in {*bed.controller.roster.members, *bed.controller.statuses}
    bed.network.lose("mem://i-0")
    await settle()
    assert bed.events(EventKind.INSTANCE_DIED) == []
    assert bed.whys(EventKind.DRAIN_ENDED) == ["the instance was removed"]


async def test_a_removal_that_cannot_be_saved_is_tried_again(bed: Bed) -> None:
    bed.begin("i-0", Remove)
    bed.disk.is_full = True
    await bed.reports("i-0")
    await bed.is_gone()
    await asyncio.sleep(3)
    assert not bed.task.done()
    assert "i-0" in bed.keeper.spec.instance_ids
    assert bed.launcher.launched.count("i-0") == 1, "it is on its way out"
    bed.disk.is_full = False
    await asyncio.sleep(RETRY_S + 0.5)
    assert bed.keeper.spec.instance_ids == ("i-1", "i-2")


async def test_a_new_controller_goes_on_with_the_drains_of_the_old_one(bed: Bed) -> None:
    bed.begin("i-0", Remove)
    await bed.reports("i-0", num_running=1)
    bed.runs("i-0", "r-1")
    await bed.next_controller()
    assert bed.drain_sets()[-1] == DrainSet(True)
    await bed.reports("i-0", draining=False, num_running=1)
    for instance_id in ("i-1", "i-2"):
        await bed.reports(instance_id)
    assert bed.is_draining()
    await asyncio.sleep(3)
    assert bed.launcher.terminated == []
    bed.runs("i-0")
    await bed.reports("i-0")
    await bed.is_gone()
    assert bed.launcher.terminated == ["i-0"]


# -- evacuations --------------------------------------------------------------------------


async def test_an_evacuated_instance_goes_when_it_is_empty(bed: Bed) -> None:
    bed.runs("i-0", "r-1")
    await bed.reports("i-0", num_running=1)
    bed.evacuates()
    await bed.reports("i-0", num_running=1)
    assert bed.drain_sets() == [DrainSet(draining=True, leaves_in_s=10.0)]
    assert bed.controller.rescheduler.evacuated == {"i-0"}
    assert bed.controller.scaling.plan(3, force=False).num_added == 1, "it goes in any case"
    await bed.migrated()
    bed.runs("i-0")
    await bed.reports("i-0")
    await bed.is_gone()
    assert bed.launcher.terminated == ["i-0"]
    assert bed.controller.rescheduler.evacuated == set()
    began, _, ended = bed.events()
    assert began.reason == "to be evacuated: a fan"
    assert (ended.reason, ended.numbers["num_moved"]) == ("evacuated in time", 1)


@pytest.mark.parametrize("is_another_controller", [False, True])
async def test_at_its_moment_it_goes_with_what_is_left(
    bed: Bed, is_another_controller: bool
) -> None:
    bed.runs("i-0", "r-1", "r-2")
    bed.evacuates(15.0 if is_another_controller else 10.0)
    await settle()
    if is_another_controller:
        await bed.next_controller()
    assert bed.controller.rescheduler.evacuated == {"i-0"}
    assert bed.drain_sets()[-1].leaves_in_s is not None
    left_s = bed.keeper.spec.drains["i-0"].notice.deadline_s - bed.controller.now_s()
    for _ in range(int(left_s)):
        await bed.reports("i-0", num_running=2)
        assert bed.launcher.terminated == []
        await asyncio.sleep(1)
    await asyncio.sleep(1.5)
    assert bed.launcher.terminated == ["i-0"]
    assert "i-0" not in bed.keeper.spec.instance_ids
    ended = bed.events()[-1]
    assert ended.reason == "it had to go with what was left"
    assert (ended.numbers["num_requests_left"], ended.numbers["num_moved"]) == (2, 0)
    assert bed.f0.received(InstanceLost) == [InstanceLost("i-0", 1)]
    assert bed.controller.replays.reason("lost-i-0-1") is ExitReason.EVACUATION
    num_launched = len(bed.launcher.launched)
    await asyncio.sleep(5)
    assert len(bed.launcher.launched) == num_launched, "it is not started again"


async def test_a_process_that_says_that_it_must_go_is_evacuated(bed: Bed) -> None:
    await bed.reports("i-0", num_running=1)
    bed.runs("i-0", "r-1")
    await bed.notices(30.0)
    notice = bed.keeper.spec.drains["i-0"].notice
    assert notice.reason == "its process was told to end"
    await asyncio.sleep(1)
    await bed.notices(29.0)
    assert bed.keeper.spec.drains["i-0"].notice == notice, "it says so again and again"
    assert [began.cause_id for began in bed.events()] == ["notice-i-0-1"]
    bed.controller.drains.end("i-0", "undrained", "bo")
    await bed.notices(28.0)
    assert bed.keeper.spec.drains["i-0"].notice is not None, "nobody can take that back"


async def test_a_machine_that_is_given_up_is_left_and_avoided(bed: Bed) -> None:
    """The instances i-0 and i-2 are on it; the launcher says so of it, and then of no machine."""
    for instance_id in ("i-0", "i-1", "i-2"):
        said = hello(instance_id, incarnation=1)
        machine = "m-1" if instance_id == "i-1" else "m-0"
        bed.says(instance_id, msgspec.structs.replace(said, machine=machine))
    bed.launcher.drains = {"m-0": bed.controller.now_s() + 30.0}
    await asyncio.sleep(0.5)
    assert set(bed.keeper.spec.drains) == {"i-0", "i-2"}
    assert bed.keeper.spec.drains["i-0"].notice.by == "machine"
    assert bed.launcher.avoided == {"m-0"}
    assert {each.reason for each in bed.events()} == {"to be evacuated: Ray drains its node"}
    view = bed.controller.notices.machine.view()
    assert [(each.machine, each.instance_ids) for each in view] == [("m-0", ("i-0", "i-2"))]


async def test_a_file_that_is_gone_again_lets_the_instance_serve_on(bed: Bed) -> None:
    said = msgspec.structs.replace(hello("i-0", incarnation=1), machine="m-0")
    told = msgspec.structs.replace(said, machine_leaves_in_s=30.0, machine_leaves_why="a file")
    bed.says("i-0", told)
    await settle()
    assert bed.keeper.spec.drains["i-0"].notice.reason == "a file"
    bed.says("i-0", said)
    await asyncio.sleep(0.5)
    assert bed.keeper.spec.drains == {}
    assert bed.events()[-1].reason == "the notice was taken back"
    assert bed.launcher.avoided == set()


async def test_the_last_one_is_evacuated_too(network: FakeNetwork) -> None:
    bed = await Bed.serving(network, num_instances=1)
    await bed.notices(5.0)
    await bed.reports("i-0")
    await bed.is_gone()
    assert bed.keeper.spec.instance_ids == ()
    bed.scale(1)
    assert bed.launcher.launched[-1] == "i-1"


# -- restarts -----------------------------------------------------------------------------


async def test_a_restarted_instance_is_emptied_replaced_and_serves_again(bed: Bed) -> None:
    bed.runs("i-0", "r-1")
    bed.restart()
    await bed.reports("i-0", num_running=1)
    assert "i-0" not in await bed.chosen()
    await asyncio.sleep(3)
    assert bed.launcher.restarted == []
    assert bed.progress().state is DrainState.DRAINING
    bed.runs("i-0")
    await bed.reports("i-0")
    await bed.is_restarted()
    assert (bed.progress().state, bed.progress().safe_to_delete) == (DrainState.RESTARTING, False)
    await bed.dies("i-0")
    await asyncio.sleep(REPLACE_AGAIN_S)
    assert bed.launcher.restarted == ["i-0"], "a process that is gone is not ended again"
    await bed.restart_is_over()
    assert bed.progress().state is DrainState.ACTIVE
    assert bed.drain_sets() == [DrainSet(True), DrainSet(False)]
    assert bed.controller.roster.members["i-0"].incarnation == 2
    assert "i-0" in bed.scheduled()
    began, _, ended = bed.events()
    assert began.reason == "to be restarted: a fan"
    assert ended.reason == "its process was restarted"
    assert bed.whys(EventKind.INSTANCE_DIED) == ["an operator restarts it"]


async def test_a_process_that_stays_or_cannot_be_ended_is_ended_again(bed: Bed) -> None:
    bed.launcher.failures["i-0"] = 2
    bed.restart(at_once=True)
    await asyncio.sleep(RETRY_S)
    assert bed.progress().state is DrainState.DRAINING
    await bed.is_restarted()
    for _ in range(3):
        await asyncio.sleep(REPLACE_AGAIN_S / 2)
        await bed.joins("i-0", incarnation=1)
        await bed.reports("i-0")
    assert bed.launcher.restarted == ["i-0", "i-0"]


@pytest.mark.parametrize("process", ["a", "b"])
async def test_a_new_controller_replaces_the_process_that_was_meant_and_no_other(
    bed: Bed, process: str
) -> None:
    """`b` came while no controller was there."""
    bed.runs("i-0", "r-1")
    bed.restart()
    await bed.reports("i-0", num_running=1)
    bed.runs("i-0")
    await bed.next_controller(i_0=process)
    for instance_id in ("i-0", "i-1", "i-2"):
        await bed.reports(instance_id)
    if process == "a":
        await bed.is_restarted()
        assert bed.progress().state is DrainState.RESTARTING
    else:
        await asyncio.sleep(1)
        assert bed.controller.roster.members["i-0"].incarnation == 2
        assert (bed.keeper.spec.drains, bed.launcher.restarted) == ({}, [])
