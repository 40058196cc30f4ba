"""What a frontend does about requests that move or are replayed: from which instances it reads, and
which ones it asks and answers. Controller and instances are played by the test."""

import asyncio
from typing import Any

import pytest

from controller.core.load.snapshot import InstanceRef
from controller.core.migration.move_records import MoveRecord
from controller.core.migration.protocol import UNCLEAR_S
from controller.core.migration.routes import MISSING_S
from controller.core.record.event_log import EventKind, LoggedEvent
from controller.core.record.request_record import RequestRecord, RequestState
from controller.core.scheduler_events import Dispatch, Reject, RejectCode
from controller.core.settings import ReplayConfig
from controller.runtime.messages.codec import encode_tokens
from controller.runtime.messages.members import Directory, InstanceLost
from controller.runtime.messages.move_messages import (
    FenceAnswered,
    FenceAsked,
    MoveAnnounced,
    MoveTimed,
    OwnerAsked,
    RequestLost,
    RequestMoved,
    RequestNotMoved,
)
from controller.runtime.messages.requests import (
    AbortAsked,
    AbortRequests,
    AddRequest,
    DispatchAsked,
    Dispatched,
    DispatchWithdrawn,
    OutputItem,
    OutputsEmitted,
    OutputsMissing,
    OutputsReceived,
    OutputsUnread,
    RankChangeAsked,
    RankSet,
    Refused,
    RequestRefused,
    RequestsAsked,
)
from tests.unit.runtime.fake_engine import FakeOutput, tokens_of
from tests.unit.runtime.fakes import FakeNetwork, directory, idle_snapshot, settle, virtual_time
from tests.unit.runtime.router_bed import HERE, I0, I1, Bed, new_tokens

T = tokens_of("r", 100)


def timed(step_time_s: float = 0.25) -> MoveTimed:
    record = MoveRecord("m-1", "r", "i-0", "i-1", "test", "migrated", "", 5, 0, 1.0)
    return MoveTimed(record, step_time_s)


class MoveBed(Bed):
    def emit(self, ref: InstanceRef, hop: int, first: int, end: int, *, last: bool = False) -> Any:
        """New tokens of "r" at its client."""
        finish_reason = "length" if last else None
        item = OutputItem("r", 0, hop, first, end - first, finish_reason)
        emitted = OutputsEmitted(ref, (item,))
        return new_tokens(self.router.accept(emitted, [FakeOutput("r", T[first:end], last)]))

    async def hear(self, *messages: Any) -> None:
        for message in messages:
            self.say(message)
        await settle()

    def record(self) -> RequestRecord:
        return self.book.answer(RequestsAsked("q", None, (), "r", True, 1))[0][0]

    def moves(self) -> list[LoggedEvent]:
        return [event for event in self.record().history if event.kind is EventKind.MIGRATED]

    async def begin(self) -> None:
        await self.know()
        await self.runs_on("i-0")
        assert self.emit(I0, 0, 0, 5) == T[:5]


pytestmark = virtual_time


@pytest.fixture
async def bed(network: FakeNetwork) -> MoveBed:
    """A request runs on i-0, with five tokens."""
    bed = MoveBed(network)
    await bed.begin()
    return bed


async def test_the_downtime_is_from_the_last_token_of_one_to_the_first_of_the_next(
    bed: MoveBed,
) -> None:
    await bed.hear(
        MoveAnnounced("r", 1, destination=I1), RequestMoved("r", 1, owner=I1, began_index=5)
    )
    assert bed.record().instance_id == "i-1"
    await asyncio.sleep(2.0)
    await bed.hear(timed())
    assert bed.moves() == [], "not before its token"
    assert bed.emit(I1, 1, 5, 6, last=True) == T[5:6]
    (event,) = bed.moves()
    assert event.cause_id == "m-1"
    assert event.numbers["downtime_s"] == pytest.approx(2.0)
    assert event.numbers["excess_s"] == pytest.approx(1.75)
    assert bed.record().state is RequestState.FINISHED


async def test_a_move_that_was_fenced_off_is_not_counted(bed: MoveBed) -> None:
    await bed.hear(MoveAnnounced("r", 1, destination=I1), FenceAsked("r", 2, owner=I0))
    assert await bed.instances["i-0"].receive(FenceAnswered) == FenceAnswered("r", 2, fenced=True)
    await bed.hear(RequestMoved("r", 1, owner=I1, began_index=5), timed())
    assert bed.emit(I1, 1, 5, 6) == []
    assert bed.emit(I0, 2, 5, 6) == T[5:6]
    assert bed.moves() == []
    assert bed.record().instance_id == "i-0"


async def test_who_wants_back_what_is_over_gets_it_and_ends_it(network: FakeNetwork) -> None:
    bed = MoveBed(network)
    await bed.know()
    await bed.hear(FenceAsked("r", 2, owner=I0), RequestMoved("r", 1, owner=I1, began_index=5))
    assert [message for message, _ in bed.instances["i-0"].inbox] == [
        FenceAnswered("r", 2, fenced=True),
        AbortRequests(("r",)),
    ]
    assert await bed.instances["i-1"].receive(AbortRequests) == AbortRequests(("r",))


async def test_an_abort_goes_to_both_while_a_move_is_announced(bed: MoveBed) -> None:
    await bed.hear(MoveAnnounced("r", 1, destination=I1))
    bed.router.abort(["r"], RequestState.ABORTED, "the client left")
    for instance in bed.instances.values():
        assert await instance.receive(AbortRequests) == AbortRequests(("r",))


async def test_the_destination_is_asked_again_and_again_who_owns_it(bed: MoveBed) -> None:
    await bed.hear(MoveAnnounced("r", 1, destination=I1), InstanceLost("i-0", 1))
    for _ in range(3):
        assert await bed.instances["i-1"].receive(OwnerAsked) == OwnerAsked("r", 1, frontend=HERE)
    await bed.hear(RequestMoved("r", 1, owner=I1, began_index=5))
    assert bed.emit(I1, 1, 5, 6) == T[5:6]
    bed.instances["i-1"].inbox.clear()
    await asyncio.sleep(UNCLEAR_S * 2)
    assert bed.instances["i-1"].inbox == []
    assert bed.told.failed == []


@pytest.mark.parametrize("answers", [True, False])
async def test_a_request_that_nobody_owns_fails_once(bed: MoveBed, answers: bool) -> None:
    await bed.hear(MoveAnnounced("r", 1, destination=I1), InstanceLost("i-0", 1))
    if answers:
        await bed.hear(RequestNotMoved("r", 1), RequestNotMoved("r", 1))
    else:
        await asyncio.sleep(UNCLEAR_S * 2)
    assert [request_id for request_id, _ in bed.told.failed] == ["r"]
    assert bed.router.num_live_reqs == 0


async def test_what_is_missing_is_asked_of_the_owner(bed: MoveBed) -> None:
    await bed.hear(RequestMoved("r", 1, owner=I1, began_index=8))
    assert bed.emit(I1, 1, 8, 9) == []
    await asyncio.sleep(MISSING_S * 3)
    missing = bed.instances["i-1"].received(OutputsMissing)
    assert set(missing) == {OutputsMissing("r", 5, 8)}
    assert bed.emit(I1, 1, 3, 8) == T[5:9], "in its own epoch, whoever produced them"
    await asyncio.sleep(UNCLEAR_S * 2)
    assert bed.told.failed == []


async def test_a_gap_that_stays_is_an_error(bed: MoveBed) -> None:
    assert bed.emit(I0, 0, 6, 7) == []
    await asyncio.sleep(UNCLEAR_S * 2)
    assert [request_id for request_id, _ in bed.told.failed] == ["r"]


async def test_an_instance_that_is_not_listed_is_known_by_its_request(bed: MoveBed) -> None:
    """A controller that was restarted does not know all instances at once."""
    await bed.hear(RequestMoved("r", 1, owner=I1, began_index=5), Directory(()))
    assert bed.emit(I1, 1, 5, 40) == T[5:40]
    assert await bed.instances["i-1"].receive(OutputsReceived) == OutputsReceived((("r", 40),))
    await bed.know(directory(idle_snapshot("i-1")))
    assert bed.told.failed == []
    bed.router.abort(["r"], RequestState.ABORTED, "the client left")
    assert await bed.instances["i-1"].receive(AbortRequests) == AbortRequests(("r",))


async def test_who_was_fenced_off_is_told_to_stop_and_not_for_each_token(bed: MoveBed) -> None:
    """The destination applied COMMIT, its words were late, and the source died with its ABORT."""
    await bed.hear(MoveAnnounced("r", 1, destination=I1), FenceAsked("r", 2, owner=I0))
    for first in range(5, 8):
        assert bed.emit(I1, 1, first, first + 1) == []
    assert bed.emit(I0, 0, 4, 5) == [], "what is only late"
    await bed.hear(InstanceLost("i-0", 1))
    assert [request_id for request_id, _ in bed.told.failed] == ["r"]
    assert bed.emit(I1, 1, 8, 9) == []
    await asyncio.sleep(MISSING_S * 3)
    assert bed.instances["i-1"].received(OutputsUnread) == [OutputsUnread((("r", 0, 1),))]
    assert bed.instances["i-0"].received(OutputsUnread) == []


async def test_an_instance_that_was_lost_by_mistake_is_told_to_stop(bed: MoveBed) -> None:
    await bed.hear(InstanceLost("i-0", 1))
    assert bed.emit(I0, 0, 5, 6) == []
    assert bed.emit(I0, 0, 6, 7, last=True) == []
    await asyncio.sleep(MISSING_S * 3)
    assert bed.instances["i-0"].received(OutputsUnread) == [OutputsUnread((("r", 0, 0),))]


@pytest.mark.parametrize("lost", ["i-0", "i-1"])
async def test_who_was_lost_by_mistake_hears_of_its_fence_only_what_is_known(
    bed: MoveBed, lost: str
) -> None:
    """The source would let go of its request if it heard that the request has moved on; a request
    that only the lost destination has ends."""
    await bed.hear(MoveAnnounced("r", 1, destination=I1), InstanceLost(lost, 1))
    await bed.hear(FenceAsked("r", 2 if lost == "i-0" else 3, owner=I0 if lost == "i-0" else I1))
    answered = bed.instances[lost].received(FenceAnswered)
    failed = [request_id for request_id, _ in bed.told.failed]
    if lost == "i-0":
        assert (answered, failed) == ([], []), "what the destination has is not known yet"
        await bed.hear(RequestMoved("r", 1, owner=I1, began_index=5), FenceAsked("r", 2, owner=I0))
        assert bed.instances[lost].received(FenceAnswered)[0].fenced is False
    else:
        assert (answered, failed) == ([FenceAnswered("r", 3, fenced=True)], ["r"])
        assert bed.instances[lost].received(AbortRequests) == [AbortRequests(("r",))]


# -- replays ------------------------------------------------------------------------------


async def lose(busy: MoveBed, instance_id: str = "i-0", incarnation: int = 1) -> None:
    busy.say(InstanceLost(instance_id, incarnation))
    await settle()


async def dispatch(busy: MoveBed, instance_id: str, seq: int = 9) -> tuple[AddRequest, list[bytes]]:
    await busy.controller.receive(DispatchAsked)
    busy.controller.inbox.clear()
    busy.say(Dispatched(Dispatch("r", "f-0", instance_id, 1, seq)))
    return await busy.instances[instance_id].receive_with_payload(AddRequest)


@pytest.fixture
async def busy(network: FakeNetwork) -> MoveBed:
    """A request runs on i-0, with three tokens."""
    busy = MoveBed(network, max_replays=3)
    await busy.know()
    await busy.runs_on("i-0")
    busy.accept(0, T[:3])
    busy.controller.inbox.clear()
    return busy


def why_failed(busy: MoveBed) -> str:
    ((request_id, why),) = busy.told.failed
    assert request_id == "r"
    assert busy.router.num_live_reqs == 0
    assert busy.router.routes.machine.replays.num_copied_tokens == 0
    return why


async def test_a_lost_request_is_sent_elsewhere_with_its_outputs(busy: MoveBed) -> None:
    await lose(busy)
    asked = (await busy.controller.receive(DispatchAsked)).asked
    assert asked.replayed
    assert (asked.num_prompt_tokens, asked.arrival_time_s) == (13, 5.0)
    found = busy.book.find("r")
    assert (found.state, found.instance_id) == (RequestState.DISPATCHING, None)
    assert busy.router.num_live_reqs == 1, "though it is also asked for"
    busy.say(Dispatched(Dispatch("r", "f-0", "i-1", 1, 9)))
    add, payload = await busy.instances["i-1"].receive_with_payload(AddRequest)
    assert add == AddRequest("r", HERE, 1, 9, 5.0, attempt=1, num_output_tokens=3)
    assert payload == [b"x", encode_tokens(T[:3])]
    assert busy.accept(3, T[3:4]) == [], "of the old attempt"
    assert new_tokens(busy.accept(3, T[3:5], epoch=(1, 0), last=True, sender=I1)) == T[3:5]
    assert busy.told.failed == []
    assert busy.router.routes.machine.replays.num_copied_tokens == 0
    events = {event.kind: event for event in busy.record().history}
    lost = events[EventKind.REQUEST_LOST]
    assert (lost.instance_id, lost.incarnation, lost.cause_id) == ("i-0", 1, "lost-i-0-1")
    assert lost.numbers["num_tokens"] == 13
    assert lost.numbers["silent_s"] is not None
    assert "i-0 died" in lost.reason
    replayed = events[EventKind.REPLAYED]
    assert replayed.cause_id == events[EventKind.DISPATCHED].cause_id == "lost-i-0-1"
    assert replayed.reason == "from i-0 to i-1"
    assert replayed.numbers["num_tokens"] == 13
    assert replayed.numbers["attempt"] == 1
    assert replayed.numbers["downtime_s"] is not None
    record = busy.book.find("r")
    assert (record.num_replays, record.num_output_tokens) == (1, 5)


async def test_late_tokens_of_the_dead_are_delivered_and_not_computed_again(busy: MoveBed) -> None:
    await lose(busy)
    assert new_tokens(busy.accept(3, T[3:6])) == T[3:6]
    add, payload = await dispatch(busy, "i-1")
    assert add.num_output_tokens == 6
    assert payload[-1] == encode_tokens(T[:6])


async def test_a_late_end_calls_the_replay_off(busy: MoveBed) -> None:
    await lose(busy)
    await busy.controller.receive(DispatchAsked)
    assert new_tokens(busy.accept(3, T[3:6], last=True)) == T[3:6]
    assert await busy.controller.receive(DispatchWithdrawn)
    assert busy.router.num_live_reqs == 0
    assert busy.told.failed == []


async def test_tokens_beyond_the_limit_are_not_kept(busy: MoveBed) -> None:
    busy.router.routes.machine.replays.config = ReplayConfig(max_tokens_kept=15)
    busy.accept(3, T[3:6])
    assert busy.router.routes.machine.replays.num_copied_tokens == 0
    assert busy.book.find("r").not_replayable == "not_kept", "beforehand"
    await lose(busy)
    assert "too many tokens were kept" in why_failed(busy)


async def test_an_abort_of_one_that_waits(busy: MoveBed) -> None:
    await lose(busy)
    await busy.controller.receive(DispatchAsked)
    busy.say(AbortAsked("q", "r", dry_run=False, cause_id="op", actor="me", reason=""))
    await busy.controller.receive(DispatchWithdrawn)
    await settle()
    assert busy.router.num_live_reqs == 0
    busy.say(Dispatched(Dispatch("r", "f-0", "i-1", 1, 9)))
    await settle()
    assert busy.instances["i-1"].received(AddRequest) == []
    assert busy.instances["i-0"].received(AbortRequests) == [], "nobody listens there"


async def test_a_rank_that_changes_while_it_waits(busy: MoveBed) -> None:
    await lose(busy)
    await busy.controller.receive(DispatchAsked)
    busy.say(RankChangeAsked("q", "r", 1, "op", "me", "", dry_run=False))
    asked = (await busy.controller.receive(DispatchAsked, lambda a: a.asked.rank == 1)).asked
    assert asked.replayed
    await asyncio.sleep(1.0)
    assert busy.instances["i-0"].received(RankSet) == []
    busy.say(Dispatched(Dispatch("r", "f-0", "i-1", 1, 9)))
    add = await busy.instances["i-1"].receive(AddRequest)
    assert add.rank == 1
    told = await busy.instances["i-1"].receive(RankSet)
    assert (told.rank, told.change) == (1, 1)


async def test_an_engine_that_cannot_go_on_with_it(busy: MoveBed) -> None:
    await lose(busy)
    await dispatch(busy, "i-1")
    busy.say(RequestRefused("r", "of the old attempt"), busy.instances["i-1"])
    busy.say(RequestRefused("r", "the engine decodes speculatively", attempt=1))
    await settle()
    assert "cannot be replayed: the engine decodes speculatively" in why_failed(busy)
    record = busy.book.find("r")
    assert record.not_replayable == "not_taken"


async def test_no_instance_for_long(busy: MoveBed) -> None:
    patience_s = 7.0
    busy.router.routes.machine.replays.config = ReplayConfig(patience_s=patience_s)
    began_s = asyncio.get_running_loop().time()
    await lose(busy)
    while not busy.told.failed:
        await busy.controller.receive(DispatchAsked)
        busy.controller.inbox.clear()
        busy.say(Refused(Reject("r", "f-0", RejectCode.UNAVAILABLE)))
        await settle()
        if not busy.told.failed:
            await asyncio.sleep(1.0)
    assert "no instance could take it in time" in why_failed(busy)
    waited_s = asyncio.get_running_loop().time() - began_s
    assert patience_s <= waited_s < patience_s + 3


async def test_a_silent_controller_is_bypassed_for_a_replay_too(busy: MoveBed) -> None:
    busy.network.lose("mem://controller")
    busy.network.lose("mem://i-0")
    await asyncio.sleep(3.0)
    (add,) = busy.instances["i-1"].received(AddRequest)
    assert (add.attempt, add.num_output_tokens, add.dispatch_seq) == (1, 3, 0)


async def test_one_that_had_moved_before_its_source_died_is_not_replayed(busy: MoveBed) -> None:
    """The source's announcement was lost with it."""
    await lose(busy)
    await busy.controller.receive(DispatchAsked)
    busy.say(RequestMoved("r", 1, owner=I1, began_index=3), busy.instances["i-1"])
    assert await busy.controller.receive(DispatchWithdrawn)
    await settle()
    record = busy.book.find("r")
    assert (record.num_replays, record.instance_id) == (0, "i-1")
    assert record.state is RequestState.RUNNING
    assert busy.record().history[-1].reason == "i-1 has it after all"
    assert new_tokens(busy.accept(3, T[3:4], epoch=(0, 1), last=True, sender=I1)) == T[3:4]
    assert busy.instances["i-1"].received(AddRequest) == []


async def test_words_of_an_old_attempt_count_for_nothing_and_it_is_stopped(busy: MoveBed) -> None:
    await lose(busy)
    await dispatch(busy, "i-1")
    old = busy.instances["i-0"]
    busy.say(MoveAnnounced("r", 3, destination=I0), old)
    busy.say(RequestLost("r", 3, owner=I0), old)
    busy.say(RequestMoved("r", 1, owner=I0, began_index=3), old)
    assert (await old.receive(OutputsUnread)).items == (("r", 0, 1),)
    busy.say(FenceAsked("r", 2, owner=I0), old)
    assert await old.receive(FenceAnswered) == FenceAnswered("r", 2, fenced=True)
    assert (await old.receive(OutputsUnread)).items == (("r", 0, 2),)
    assert old.received(AbortRequests) == [], "which would end a new attempt there too"
    assert new_tokens(busy.accept(3, T[3:4], epoch=(1, 0), sender=I1)) == T[3:4]
    assert busy.told.failed == []


async def test_tokens_that_were_lost_on_their_way_are_computed_again(busy: MoveBed) -> None:
    assert busy.accept(5, T[5:6]) == [], "3 and 4 do not come"
    add, _ = await dispatch(busy, "i-1")
    assert add.num_output_tokens == 3
    assert await busy.instances["i-0"].receive(AbortRequests)
    assert new_tokens(busy.accept(3, T[3:7], epoch=(1, 0), last=True, sender=I1)) == T[3:7]
