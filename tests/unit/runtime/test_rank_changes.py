"""An operator changes the priority of a live request or ends it, in any place and during any move.
In the end the last priority counts, at the engine that has the request and in the listings; the
client of an ended request is told once, and no instance has anything left of it."""

import asyncio

import pytest
from test_moves_under_faults import PHASES, Hold, applying, committing, fencing

from controller.core.migration.protocol import Verb
from controller.core.record.event_log import EventKind
from controller.core.record.request_record import RequestState
from controller.core.scheduler_events import Dispatch, DispatchRequested
from controller.runtime.frontend.router import TOLD_TO_THE_CLIENT
from controller.runtime.messages.move_messages import MoveAnnounced, RequestMoved
from controller.runtime.messages.requests import (
    AbortAnswered,
    AbortAsked,
    AbortRequests,
    DispatchAsked,
    Dispatched,
    RankChangeAnswered,
    RankChangeAsked,
    RankConfirmed,
    RankSet,
)
from tests.unit.runtime.fake_engine import tokens_of
from tests.unit.runtime.fakes import FakeNetwork, settle, virtual_time
from tests.unit.runtime.moving_cluster import MovingCluster, says
from tests.unit.runtime.router_bed import I1, Bed

every_phase = pytest.mark.parametrize("hold", PHASES)


@pytest.fixture(autouse=True)
def tells_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.core.migration.rank_changes.TELL_EVERY_S", 0.01)


def change_of(
    rank: int, query_id: str = "p", request_id: str = "r", dry_run: bool = False
) -> RankChangeAsked:
    return RankChangeAsked(query_id, request_id, rank, "op-1", "ann", "a demo", dry_run)


async def change(
    moving: MovingCluster, rank: int, request_id: str = "r", *, dry_run: bool = False
) -> RankChangeAnswered:
    """As an operator's controller asks for it."""
    answers = moving.controller.answers
    asked = change_of(rank, f"p-{len(answers)}", request_id, dry_run)
    moving.controller.send("f-0", asked)
    await moving.until(lambda: asked.query_id in answers)
    return answers[asked.query_id]


async def has_rank(moving: MovingCluster, instance_id: str, rank: int) -> None:
    instance = moving.instances[instance_id]
    await moving.until(lambda: instance.engine.moves.rank("r") == rank)
    requests = instance.serving.requests
    await moving.until(lambda: "r" not in requests or requests["r"].rank == rank)


# -- one that does not move ---------------------------------------------------------------


@pytest.mark.parametrize("is_queued", [False, True])
async def test_of_one_that_an_instance_has(moving: MovingCluster, is_queued: bool) -> None:
    await moving.stream()
    if is_queued:
        moving.a.engine.admits = False
        await moving.evict("r", moving.a)
    for dry_run in (True, False):
        assert not moving.events(EventKind.PRIORITY_CHANGED)
        answer = await change(moving, 1, dry_run=dry_run)
        assert (answer.code, answer.previous_level, answer.instance_id) == ("", "normal", "i-0")
    await has_rank(moving, "i-0", 1)
    (event,) = moving.events(EventKind.PRIORITY_CHANGED)
    assert (event.cause_id, event.actor) == ("op-1", "ann")
    assert event.reason == "from normal to high: a demo"
    assert (event.level, event.instance_id, event.numbers) == ("high", "i-0", {"rank": 1})
    await moving.until(lambda: event in moving.controller.events)
    moving.a.engine.admits = True
    await moving.finishes()
    assert (await change(moving, 0)).code == "ended"
    assert (await change(moving, 1, "another")).code == "unknown"
    assert moving.record().level == "high"


async def test_the_last_of_several_counts_also_if_an_older_one_comes_late(
    moving: MovingCluster,
) -> None:
    await moving.stream()
    thread = moving.a.hold_thread()
    levels = [(await change(moving, rank)).previous_level for rank in (1, -1, -1, 0)]
    assert levels == ["normal", "high", "low", "low"]
    thread.set()
    await moving.until(lambda: moving.a.serving.requests["r"].rank_change == 3)
    moving.frontend.router.routes.send(moving.a.address, RankSet("r", 1, 1))
    await change(moving, 1, dry_run=True)  # what was sent before has come
    await moving.at_boundary(moving.a, lambda engine: None)
    assert moving.a.engine.moves.rank("r") == 0
    assert len(moving.events(EventKind.PRIORITY_CHANGED)) == 3, "to the present rank is no change"


# -- one that moves -----------------------------------------------------------------------


@every_phase
async def test_in_each_phase_of_a_move(moving: MovingCluster, hold: Hold) -> None:
    await moving.stream()
    await change(moving, 1)
    await has_rank(moving, "i-0", 1)
    phase = await hold(moving)
    await change(moving, 0)
    await change(moving, -1)
    phase.let_go()
    await change(moving, 1)
    await change(moving, -1)
    await moving.answer(phase.move_id)
    owner = "i-0" if hold is fencing else "i-1"
    await has_rank(moving, owner, -1)
    assert moving.record().level == "low"
    assert (await moving.move(owner, "i-2")).code == ""
    await has_rank(moving, "i-2", -1)


async def test_what_the_source_passes_on_late_is_older_than_the_frontend_s_word(
    moving: MovingCluster,
) -> None:
    """It heard `high` while COMMIT was under way, and tells the destination so when that has
    heard `low` from the frontend."""
    await moving.stream()
    phase = await applying(moving)
    await change(moving, 1)
    await moving.until(lambda: moving.a.serving.requests["r"].rank_change == 1)
    moving.network.hold(says(Verb.PRIORITY))
    phase.let_go()
    await moving.answer(phase.move_id)
    await moving.until(lambda: moving.network.num_held)
    await moving.until(lambda: moving.record().instance_id == "i-1")
    await change(moving, -1)
    await has_rank(moving, "i-1", -1)
    moving.network.release()
    await settle()
    await moving.at_boundary(moving.b, lambda engine: None)
    assert moving.b.engine.moves.rank("r") == -1


@pytest.mark.parametrize("hold", [committing, applying])
async def test_the_source_passes_on_what_it_heard_after_commit(
    moving: MovingCluster, hold: Hold
) -> None:
    """Though the frontend's own word does not get through to the destination."""
    await moving.stream()
    phase = await hold(moving)
    await change(moving, 1)
    await moving.until(lambda: moving.a.serving.requests["r"].rank_change == 1)
    moving.network.drops = lambda message: isinstance(message, RankSet)
    phase.let_go()
    await moving.answer(phase.move_id)
    await has_rank(moving, "i-1", 1)


# -- one that no instance has -------------------------------------------------------------


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

    async def silent_once_confirmed(by: str, hop: int) -> None:
        bed.say(RankConfirmed("r", 2, by, 1, hop), bed.instances[by])
        await settle()
        one.inbox.clear()
        other.inbox.clear()
        await asyncio.sleep(5.0)
        assert other.received(RankSet) == one.received(RankSet) == []

    await silent_once_confirmed("i-0", 0)
    bed.say(MoveAnnounced("r", 1, destination=I1), one)
    bed.say(RequestMoved("r", 1, owner=I1, began_index=0), other)
    for _ in range(2):
        assert await other.receive(RankSet) == RankSet("r", -1, 2)
    await silent_once_confirmed("i-1", 1)


# -- aborts -------------------------------------------------------------------------------


def order(
    query_id: str = "q", request_id: str = "r", *, reason: str = "", dry_run: bool = False
) -> AbortAsked:
    return AbortAsked(query_id, request_id, "op-1", "ann", reason, dry_run)


async def abort(moving: MovingCluster, asked: AbortAsked) -> AbortAnswered:
    moving.controller.send("f-0", asked)
    await moving.until(lambda: asked.query_id in moving.controller.answers)
    answer: AbortAnswered = moving.controller.answers[asked.query_id]
    return answer


# -- one that an instance has -------------------------------------------------------------


@pytest.mark.parametrize("is_queued", [False, True])
async def test_an_abort_of_one_that_an_instance_has(moving: MovingCluster, is_queued: bool) -> None:
    await moving.stream()
    if is_queued:
        moving.a.engine.admits = False
        await moving.evict("r", moving.a)
    state = RequestState.EVICTED if is_queued else RequestState.RUNNING
    for asked in (order("dry", dry_run=True), order(reason="too long")):
        assert not moving.events(EventKind.ABORTED)
        answer = await abort(moving, asked)
        assert answer == AbortAnswered(asked.query_id, "", ("r",), state, "i-0", 5)
    assert (await abort(moving, order("q-2"))).code == "ended", "by the first order"
    assert (await abort(moving, order("q-3", "another"))).code == "unknown"
    assert await moving.ends() == TOLD_TO_THE_CLIENT, "the operator's reason stays here"
    assert moving.frontend.tokens["r"] == tokens_of("r", 5)
    record = moving.record()
    assert record.state is RequestState.ABORTED
    assert record.finish_reason == "an operator ended it: too long"
    (event,) = moving.events(EventKind.ABORTED)
    assert (event.cause_id, event.actor) == ("op-1", "ann")
    await moving.until(lambda: event in moving.controller.events)


# -- one that no instance has yet ---------------------------------------------------------


# -- several choices of one request -------------------------------------------------------


@virtual_time
async def test_choices_of_one_request_end_together(network: FakeNetwork) -> None:
    """The client has one answer for all of them, and gets one error; another request of the same
    client goes on."""
    bed = Bed(network)
    await bed.know()
    parents = {"0_p": "p", "1_p": "p", "0_other": "other", "alone": None}
    for request_id, parent_id in parents.items():
        request = DispatchRequested(request_id, "f-0", 10, 0, 5.0)
        submitting = bed.router.submit(request, [b"x"], "client", parent_id)
        submitted = asyncio.create_task(submitting)
        await bed.controller.receive(DispatchAsked)
        bed.say(Dispatched(Dispatch(request_id, "f-0", "i-0", 1, 1)))
        await submitted
    bed.say(order(request_id="1_p"))
    assert (await bed.controller.receive(AbortAnswered)).request_ids == ("0_p", "1_p")
    assert await bed.instances["i-0"].receive(AbortRequests) == AbortRequests(("0_p", "1_p"))
    assert bed.told.aborted == [("1_p", TOLD_TO_THE_CLIENT)]
    assert sorted(bed.router.live_request_ids) == ["0_other", "alone"]
    bed.say(order("q-2", "alone"))
    assert (await bed.controller.receive(AbortAnswered)).request_ids == ("alone",)
    await settle()
    assert bed.router.live_request_ids == ["0_other"]
