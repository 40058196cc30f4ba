"""What a frontend does about requests that move: from which instances it reads, and which ones it
asks and answers."""

import asyncio
from typing import Any

import pytest

from controller.core.load.snapshot import InstanceRef
from controller.core.migration.move_records import MoveRecord
from controller.core.migration.protocol import UNCLEAR_S
from controller.core.migration.routes import MISSING_S
from controller.core.record.event_log import EventKind, LoggedEvent
from controller.core.record.request_record import RequestRecord, RequestState
from controller.runtime.messages.members import Directory, InstanceLost
from controller.runtime.messages.move_messages import (
    FenceAnswered,
    FenceAsked,
    MoveAnnounced,
    MoveTimed,
    OwnerAsked,
    RequestMoved,
    RequestNotMoved,
)
from controller.runtime.messages.requests import (
    AbortRequests,
    OutputItem,
    OutputsEmitted,
    OutputsMissing,
    OutputsReceived,
    OutputsUnread,
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
