"""Drains at the controller: what instances and frontends are told, and when one is over."""

import asyncio

import pytest

from controller.core.emptying.claims import Remove
from controller.core.emptying.drains import HEARD_WITHIN_S, RETRY_S, DrainState
from controller.core.record.event_log import EventKind
from controller.runtime.controller.operations.drain_runner import LATELY_S
from controller.runtime.messages.members import Directory, DrainSet, InstanceLost
from tests.unit.runtime.fakes import FakeNetwork, settle, virtual_time
from tests.unit.runtime.steering_bed import MOVE, SteeringBed

pytestmark = virtual_time


@pytest.fixture
async def bed(network: FakeNetwork) -> SteeringBed:
    return await SteeringBed.serving(network)


def is_draining(bed: SteeringBed, instance_id: str = "i-0") -> bool:
    return bed.controller.scheduler.instances[instance_id].snapshot.draining


# -- begun and undone ---------------------------------------------------------------------


async def test_a_draining_instance_gets_nothing_from_the_very_moment(bed: SteeringBed) -> None:
    bed.begin("i-0")
    assert is_draining(bed), "before it has heard of it"
    assert await bed.chosen() == ["i-1", "i-2", "i-1", "i-2"]
    told = bed.f0.received(Directory)[-1].instances
    assert {e.instance_id for e in told if e.snapshot and e.snapshot.draining} == {"i-0"}
    assert await bed.peers["i-0"].receive(DrainSet) == DrainSet(True)
    await bed.reports("i-0", draining=False)
    assert is_draining(bed), "a status that was under way"
    assert bed.peers["i-1"].received(DrainSet) == []


async def test_undrained_it_gets_requests_as_soon_as_it_says_so_itself(bed: SteeringBed) -> None:
    bed.begin("i-0")
    await bed.reports("i-0", num_running=3)
    for _ in range(2):  # the second one is nothing
        bed.controller.drains.end("i-0", "undrained", "bo")
    await settle()
    assert bed.peers["i-0"].received(DrainSet) == [DrainSet(True), DrainSet(False)]
    assert is_draining(bed), "it refuses moves still"
    await bed.reports("i-0")
    assert not is_draining(bed)
    assert await bed.chosen(1) == ["i-0"]
    began, ended = bed.events()
    assert (began.kind, began.actor, began.reason) == ("drain_started", "ana", "a fan")
    assert (ended.kind, ended.actor, ended.reason) == ("drain_ended", "bo", "undrained")
    assert began.cause_id == ended.cause_id == "op-1"
    assert ended.numbers == {"num_requests_left": 3, "num_moved": 0}
    assert bed.keeper.spec.revision == 2


# -- over ---------------------------------------------------------------------------------


async def test_it_is_drained_when_it_and_all_frontends_have_nothing_left(bed: SteeringBed) -> None:
    bed.runs("i-0", "r-1")
    bed.begin("i-0", deadline_s=bed.controller.now_s() + 16.0, on_deadline="abort")
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
    await asyncio.sleep(1)
    (drained,) = bed.events(EventKind.DRAINED)
    assert (drained.instance_id, drained.cause_id) == ("i-0", "op-1")
    assert drained.numbers["num_moved"] == 1
    bed.runs("i-0", "r-9")  # sent by a frontend that had not heard of the drain
    await bed.reports("i-0", num_running=1)
    await bed.becomes(DrainState.DRAINING)
    bed.runs("i-0")
    await bed.reports("i-0")
    await bed.becomes(DrainState.DRAINED)
    await asyncio.sleep(5)
    assert bed.progress().state is DrainState.DRAINED, "a deadline after the end is none"


@pytest.mark.parametrize("how", ["it comes and ends", "its frontend dies"])
async def test_what_was_dispatched_before_and_is_not_there_yet_counts(
    bed: SteeringBed, how: str
) -> None:
    assert await bed.chosen(1) == ["i-0"]
    bed.begin("i-0")
    await bed.reports("i-0", seen=0)
    await asyncio.sleep(2)
    assert (bed.progress().state, bed.progress().num_left) == (DrainState.DRAINING, 1)
    if how == "its frontend dies":
        bed.network.lose("mem://f-0")
    await bed.reports("i-0", seen=int(how == "it comes and ends"))
    await bed.becomes(DrainState.DRAINED)


async def test_a_frontend_that_does_not_answer_may_have_something_there(bed: SteeringBed) -> None:
    bed.silent.add("f-0")
    bed.begin("i-0")
    await bed.reports("i-0")
    for _ in range(10):
        await bed.joins("f-0", incarnation=1)
        await asyncio.sleep(1)
        await bed.reports("i-0")
        assert bed.progress().state is DrainState.DRAINING
    bed.silent.clear()
    await bed.becomes(DrainState.DRAINED)


async def test_an_instance_that_dies_while_it_drains_comes_back_draining(bed: SteeringBed) -> None:
    bed.begin("i-0")
    await bed.reports("i-0", num_running=1)
    await bed.dies("i-0")
    await bed.becomes(DrainState.DRAINED)
    await bed.joins("i-0", nonce="b")
    assert bed.peers["i-0"].received(DrainSet) == [DrainSet(True)]
    await bed.reports("i-0", incarnation=2, draining=False)
    assert is_draining(bed)


async def test_whoever_begins_to_serve_is_told_whether_it_drains(network: FakeNetwork) -> None:
    """An instance that was drained by a controller whose spec was lost serves again."""
    bed = SteeringBed(network)
    await bed.joins("i-1")
    assert bed.peers["i-1"].received(DrainSet) == [DrainSet(False)]


# -- deadlines ----------------------------------------------------------------------------


async def test_keep_goes_on_and_names_once_what_cannot_move(bed: SteeringBed) -> None:
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
    assert bed.progress().state is DrainState.DRAINING
    assert is_draining(bed)


async def test_abort_ends_the_drain_and_no_request(bed: SteeringBed) -> None:
    bed.runs("i-0", "r-1")
    bed.begin("i-0", deadline_s=bed.controller.now_s() + 5.0, on_deadline="abort")
    await bed.reports("i-0", num_running=1)
    await asyncio.sleep(6)
    assert bed.keeper.spec.drains == {}
    (ended,) = bed.events(EventKind.DRAIN_ENDED)
    assert ended.reason == "its deadline passed: what is left stays"
    assert ended.numbers["num_requests_left"] == 1
    assert "AbortRequests" not in [type(said).__name__ for said, _ in bed.peers["i-0"].inbox]
    assert bed.peers["i-0"].received(DrainSet)[-1] == DrainSet(False)
    await bed.reports("i-0", num_running=1)
    assert not is_draining(bed)


# -- removal ------------------------------------------------------------------------------


async def test_a_removed_instance_is_forgotten_and_no_failure(bed: SteeringBed) -> None:
    bed.begin("i-0", Remove)
    await bed.reports("i-0", num_running=1)
    await asyncio.sleep(2)
    assert bed.launcher.terminated == []
    bed.f0.inbox.clear()
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
    assert "i-0" not in bed.controller.roster.members
    assert "i-0" not in bed.controller.statuses
    bed.network.lose("mem://i-0")
    await bed.joins("f-0", incarnation=1)
    assert bed.events(EventKind.INSTANCE_DIED) == []
    assert bed.whys(EventKind.DRAIN_ENDED) == ["the instance was removed"]
    assert await bed.chosen(1) == ["i-1"]


async def test_a_removal_that_cannot_be_saved_is_tried_again(bed: SteeringBed) -> None:
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


# -- what would go where ------------------------------------------------------------------


async def test_who_watches_a_drain_has_it_looked_at_once_a_second(bed: SteeringBed) -> None:
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


# -- another controller -------------------------------------------------------------------


async def test_a_new_controller_goes_on_with_the_drains_of_the_old_one(bed: SteeringBed) -> None:
    bed.begin("i-0", Remove)
    await bed.reports("i-0", num_running=1)
    bed.runs("i-0", "r-1")
    bed.restart_controller()
    await asyncio.sleep(HEARD_WITHIN_S / 2)
    assert bed.launcher.terminated == [], "nobody has said that it is empty"
    for member_id in bed.peers:
        await bed.joins(member_id, incarnation=1)
    assert bed.peers["i-0"].received(DrainSet)[-1] == DrainSet(True)
    await bed.reports("i-0", draining=False, num_running=1)
    for instance_id in ("i-1", "i-2"):
        await bed.reports(instance_id)
    assert is_draining(bed)
    await asyncio.sleep(3)
    assert bed.launcher.terminated == []
    bed.runs("i-0")
    await bed.reports("i-0")
    await bed.is_gone()
    assert bed.launcher.terminated == ["i-0"]
