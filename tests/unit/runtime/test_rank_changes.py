"""An operator changes the priority of a live request in any place and during any move: in the end
the last change counts, at the engine that has the request and in the listings.
"""

import asyncio

import pytest
from test_moves_under_faults import (
    AFTER_COMMIT,
    BEFORE_THE_CUT,
    PHASES,
    Hold,
    applying,
    committing,
    fencing,
    says,
)

from controller.core.load.snapshot import InstanceRef
from controller.core.migration.protocol import Verb
from controller.core.record.event_log import EventKind
from controller.core.record.request_record import RequestState
from controller.core.scheduler_events import Dispatch
from controller.runtime.messages.move_messages import MoveAnnounced, RequestMoved
from controller.runtime.messages.requests import (
    AddRequest,
    DispatchAsked,
    Dispatched,
    RankChangeAnswered,
    RankChangeAsked,
    RankConfirmed,
    RankSet,
)
from tests.unit.runtime.fakes import FakeNetwork, settle, virtual_time
from tests.unit.runtime.moving_cluster import MovingCluster
from tests.unit.runtime.router_bed import Bed

every_phase = pytest.mark.parametrize("hold", PHASES)


@pytest.fixture(autouse=True)
def tells_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.core.migration.rank_changes.TELL_EVERY_S", 0.01)


class Asking:
    """What an operator's controller says."""

    def __init__(self, moving: MovingCluster) -> None:
        self._moving = moving
        self._num = 0

    async def __call__(self, rank: int, request_id: str = "r", **what: bool) -> RankChangeAnswered:
        self._num += 1
        ask = RankChangeAsked(
            f"p-{self._num}", request_id, rank, "op-1", "ann", "a demo", what.get("dry_run", False)
        )
        self._moving.controller.send("f-0", ask)
        await self._moving.until(lambda: ask.query_id in self._moving.controller.answers)
        return self._moving.controller.answers[ask.query_id]


@pytest.fixture
def change(moving: MovingCluster) -> Asking:
    return Asking(moving)


async def has_rank(moving: MovingCluster, instance_id: str, rank: int) -> None:
    instance = moving.instances[instance_id]
    await moving.until(lambda: instance.engine.moves.rank("r") == rank)
    serving = instance.llumlet.serving
    await moving.until(lambda: "r" not in serving.requests or serving.requests["r"].rank == rank)


def owner(moving: MovingCluster) -> str:
    route = moving.frontend.router.routes.machine.live.get("r")
    assert route is not None
    return route.ownership.owner.instance_id


# -- one that runs ------------------------------------------------------------------------


async def test_of_one_that_runs(moving: MovingCluster, change: Asking) -> None:
    await moving.stream()
    answer = await change(1)
    assert (answer.code, answer.previous_level, answer.instance_id) == ("", "normal", "i-0")
    await has_rank(moving, "i-0", 1)
    assert moving.record().level == "high"
    (event,) = moving.events(EventKind.PRIORITY_CHANGED)
    assert (event.cause_id, event.actor) == ("op-1", "ann")
    assert event.reason == "from normal to high: a demo"
    assert (event.level, event.instance_id, event.numbers) == ("high", "i-0", {"rank": 1})
    await moving.until(lambda: event in moving.controller.events)
    await moving.finishes()
    assert moving.record().level == "high"
    await moving.nothing_is_left()


async def test_the_last_of_several_counts(moving: MovingCluster, change: Asking) -> None:
    """And a change to the present rank counts as none."""
    await moving.stream()
    thread = moving.a.hold_thread()
    assert [(await change(rank)).previous_level for rank in (1, -1, -1, 1, 0)] == [
        *("normal", "high", "low", "low", "high")
    ]
    thread.set()
    await moving.until(lambda: moving.a.llumlet.serving.requests["r"].rank_change == 4)
    await has_rank(moving, "i-0", 0)
    assert len(moving.events(EventKind.PRIORITY_CHANGED)) == 4
    await moving.finishes()
    await moving.nothing_is_left()


async def test_an_older_change_that_comes_late_is_not_taken(
    moving: MovingCluster, change: Asking
) -> None:
    await moving.stream()
    await change(1)
    await change(-1)
    await has_rank(moving, "i-0", -1)
    moving.frontend.router.routes.send(moving.a.address, RankSet("r", 1, 1))
    await change(1, dry_run=True)  # what was sent before has come
    await moving.at_boundary(moving.a, lambda engine: None)
    assert moving.a.engine.moves.rank("r") == -1
    await moving.finishes()
    await moving.nothing_is_left()


async def test_a_dry_run_changes_nothing(moving: MovingCluster, change: Asking) -> None:
    await moving.stream()
    answer = await change(1, dry_run=True)
    assert (answer.code, answer.previous_level, answer.instance_id) == ("", "normal", "i-0")
    assert moving.record().level == "normal"
    assert not moving.events(EventKind.PRIORITY_CHANGED)
    await moving.finishes()
    await moving.nothing_is_left()


async def test_of_one_that_is_queued(moving: MovingCluster, change: Asking) -> None:
    await moving.stream()
    moving.a.engine.admits = False
    await moving.evict("r", moving.a)
    await change(1)
    await has_rank(moving, "i-0", 1)
    moving.a.engine.admits = True
    await moving.finishes()
    await moving.nothing_is_left()


async def test_of_one_that_has_ended_or_is_not_known(moving: MovingCluster, change: Asking) -> None:
    await moving.stream()
    await moving.finishes()
    assert (await change(1)).code == "ended"
    assert (await change(1, "another")).code == "unknown"
    assert moving.record().level == "normal"
    await moving.nothing_is_left()


# -- one that moves -----------------------------------------------------------------------


@every_phase
async def test_in_each_phase_of_a_move(moving: MovingCluster, change: Asking, hold: Hold) -> None:
    await moving.stream()
    phase = await hold(moving)
    await change(1)
    phase.let_go()
    await moving.answer(phase.move_id)
    await has_rank(moving, "i-0" if hold is fencing else "i-1", 1)
    assert moving.record().level == "high"
    assert (await moving.move(owner(moving), "i-2")).code == ""
    await has_rank(moving, "i-2", 1)
    await moving.finishes()
    await moving.nothing_is_left()


@every_phase
async def test_twice_in_each_phase_of_a_move(
    moving: MovingCluster, change: Asking, hold: Hold
) -> None:
    await moving.stream()
    await change(1)
    await has_rank(moving, "i-0", 1)
    phase = await hold(moving)
    await change(0)
    await change(-1)
    phase.let_go()
    await change(1)
    await change(-1)
    await moving.answer(phase.move_id)
    await has_rank(moving, "i-0" if hold is fencing else "i-1", -1)
    await moving.finishes()
    await moving.nothing_is_left()


async def test_what_the_source_passes_on_late_is_older_than_the_frontend_s_word(
    moving: MovingCluster, change: Asking
) -> None:
    """It heard `high` while COMMIT was under way, and tells the destination so when that has
    heard `low` from the frontend."""
    await moving.stream()
    phase = await applying(moving)
    await change(1)
    await moving.until(lambda: moving.a.llumlet.serving.requests["r"].rank_change == 1)
    moving.network.hold(says(Verb.PRIORITY))
    phase.let_go()
    await moving.answer(phase.move_id)
    await moving.until(lambda: moving.network.num_held)
    await moving.until(lambda: owner(moving) == "i-1")
    await change(-1)
    await has_rank(moving, "i-1", -1)
    moving.network.release()
    machine = moving.a.llumlet.serving.instance_moves.outgoing[phase.move_id].machine
    await moving.until(lambda: not machine._unanswered)
    await moving.at_boundary(moving.b, lambda engine: None)
    assert moving.b.engine.moves.rank("r") == -1
    await moving.finishes()
    await moving.nothing_is_left()


@pytest.mark.parametrize("hold", [committing, applying])
async def test_the_source_passes_on_what_it_heard_after_commit(
    moving: MovingCluster, change: Asking, hold: Hold
) -> None:
    """Though the frontend's own word does not get through to the destination."""
    await moving.stream()
    phase = await hold(moving)
    await change(1)
    await moving.until(lambda: moving.a.llumlet.serving.requests["r"].rank_change == 1)
    moving.network.drops = lambda message: isinstance(message, RankSet)
    phase.let_go()
    await moving.answer(phase.move_id)
    await has_rank(moving, "i-1", 1)
    moving.network.drops = lambda message: False
    await moving.finishes()
    await moving.nothing_is_left()


@every_phase
async def test_the_source_dies(moving: MovingCluster, change: Asking, hold: Hold) -> None:
    await moving.stream()
    phase = await hold(moving)
    await change(1)
    await moving.kill("i-0", phase.let_go)
    if hold in (applying, *AFTER_COMMIT):
        await has_rank(moving, "i-1", 1)
        await moving.finishes()
    else:
        assert await moving.ends() == "failed"
    assert moving.record().level == "high"
    await moving.nothing_is_left()


@every_phase
async def test_the_destination_dies(moving: MovingCluster, change: Asking, hold: Hold) -> None:
    await moving.stream()
    phase = await hold(moving)
    await change(1)
    await moving.kill("i-1", phase.let_go)
    if hold in AFTER_COMMIT:
        assert await moving.ends() == "failed"
    else:
        await has_rank(moving, "i-0", 1)
        await moving.finishes()
    await moving.nothing_is_left()


@pytest.mark.parametrize("hold", BEFORE_THE_CUT)
async def test_the_client_leaves(moving: MovingCluster, change: Asking, hold: Hold) -> None:
    await moving.stream()
    phase = await hold(moving)
    await change(1)
    moving.frontend.router.abort(["r"], RequestState.ABORTED, "the client left")
    phase.let_go()
    await moving.nothing_is_left()
    await moving.until(lambda: not moving.frontend.router.ranks.machine.has_changes)


@every_phase
async def test_the_frontend_dies(moving: MovingCluster, change: Asking, hold: Hold) -> None:
    await moving.stream()
    phase = await hold(moving)
    await change(1)
    moving.network.lose("mem://f-0")
    for request_id in list(moving.frontend.router.routes.machine.live):
        moving.frontend.router.routes.machine.live.pop(request_id)
    phase.let_go()
    await moving.nothing_is_left()


# -- one that no instance has -------------------------------------------------------------


def change_of(rank: int, query_id: str = "p") -> RankChangeAsked:
    return RankChangeAsked(query_id, "r", rank, "op-1", "ann", "", False)


@virtual_time
async def test_of_one_that_is_being_dispatched(network: FakeNetwork) -> None:
    """It is asked for again with its new rank, and told to the instance behind the request."""
    bed = Bed(network)
    await bed.know()
    submitted = bed.submit("r", [b"one"])
    assert (await bed.controller.receive(DispatchAsked)).asked.rank == 0
    bed.say(change_of(1))
    answer = await bed.controller.receive(RankChangeAnswered)
    assert answer == RankChangeAnswered("p", "", "normal", None)
    await bed.controller.receive(DispatchAsked, lambda ask: ask.asked.rank == 1)
    bed.say(Dispatched(Dispatch("r", "f-0", "i-1", 1, 7)))
    await submitted
    await bed.instances["i-1"].receive(AddRequest)
    assert await bed.instances["i-1"].receive(RankSet) == RankSet("r", 1, 1)
    bed.say(RankConfirmed("r", 1, "i-1", 1, 0), bed.instances["i-1"])
    await settle()
    assert bed.router.ranks.machine.is_confirmed("r")
    await bed.router.close()


# -- how often it is said -----------------------------------------------------------------


@virtual_time
async def test_an_owner_is_told_until_it_has_noted_and_each_new_owner_anew(
    network: FakeNetwork,
) -> None:
    bed = Bed(network)
    await bed.know()
    await bed.runs_on("i-0")
    one, other = bed.instances["i-0"], bed.instances["i-1"]
    bed.say(change_of(1))
    for _ in range(3):
        assert await one.receive(RankSet) == RankSet("r", 1, 1)
    bed.say(change_of(-1, "p-2"))
    assert await one.receive(RankSet, lambda told: told.change == 2) == RankSet("r", -1, 2)
    bed.say(RankConfirmed("r", 1, "i-0", 1, 0), one)  # of the one before
    assert await one.receive(RankSet, lambda told: told.change == 2) == RankSet("r", -1, 2)
    bed.say(RankConfirmed("r", 2, "i-0", 1, 0), one)
    await settle()
    one.inbox.clear()
    await asyncio.sleep(5.0)
    assert one.received(RankSet) == []

    bed.say(MoveAnnounced("r", 1, destination=InstanceRef("i-1", 1, other.address)), one)
    bed.say(RequestMoved("r", 1, owner=InstanceRef("i-1", 1, other.address), began_index=0), other)
    for _ in range(2):
        assert await other.receive(RankSet) == RankSet("r", -1, 2)
    bed.say(RankConfirmed("r", 2, "i-1", 1, 1), other)
    await settle()
    other.inbox.clear()
    await asyncio.sleep(5.0)
    assert other.received(RankSet) == one.received(RankSet) == []

    bed.router.abort(["r"], RequestState.ABORTED, "the client left")
    await asyncio.sleep(1.0)
    assert not bed.router.ranks.machine.has_changes
    await bed.router.close()
