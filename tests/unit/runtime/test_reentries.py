"""Requests that come again to an instance, in a new attempt; its peers are played by the test."""

from concurrent.futures import Future

import pytest

from controller.runtime.instance import llumlet
from controller.runtime.messages.codec import encode_tokens
from controller.runtime.messages.move_messages import RequestLost
from controller.runtime.messages.requests import (
    AbortRequests,
    AddRequest,
    OutputItem,
    OutputsEmitted,
    OutputsUnread,
    ReplayTaken,
    RequestRefused,
)
from tests.unit.runtime.fake_engine import decode_outputs, request_frames, tokens_of
from tests.unit.runtime.fakes import settle, until
from tests.unit.runtime.llumlet_bed import HERE, Bed

T = tokens_of("r", 20)


@pytest.fixture
async def bed(unstarted: Bed) -> Bed:
    await unstarted.start()
    return unstarted


def send(bed: Bed, num_outputs: int, attempt: int = 1, seq: int = 3, max_tokens: int = 8) -> None:
    add = AddRequest("r", bed.f0.address, 1, seq, attempt=attempt, num_output_tokens=num_outputs)
    frames = [bytes(frame) for frame in request_frames("r", 4, max_tokens)]
    if num_outputs:
        frames.append(encode_tokens(T[:num_outputs]))
    bed.f0.send(HERE, add, frames)


async def next_item(bed: Bed, request_id: str = "r") -> tuple[OutputItem, list[int]]:
    emitted, payload = await bed.f0.receive_with_payload(
        OutputsEmitted, lambda e: bool(e.items) and e.items[0].request_id == request_id
    )
    (item,), (output,) = emitted.items, decode_outputs(payload)
    return item, output.tokens


def compiles(bed: Bed) -> Future[None]:
    """The grammar of `r` does, until the test ends that."""
    compiling = bed.engine.moves.compiles["r"] = Future[None]()
    return compiling


@pytest.mark.parametrize("num_outputs", [0, 1, 5])
async def test_it_goes_on_from_its_outputs(bed: Bed, num_outputs: int) -> None:
    send(bed, num_outputs)
    assert await bed.f0.receive(ReplayTaken) == ReplayTaken("r", 1)
    for index in range(num_outputs, 8):
        item, tokens = await next_item(bed)
        assert (item.attempt, item.hop, item.first_index) == (1, 0, index)
        assert tokens == T[index : index + 1]
    assert item.finish_reason == "length"
    assert ("r" in bed.engine.evicted) == (num_outputs > 0)
    await bed.status(lambda s: s.last_dispatch_seq == 3 and s.snapshot.num_free_blocks == 64)
    assert bed.llumlet.num_live_reqs == 0


async def test_an_older_attempt_here_is_dropped_with_what_it_has_just_put_out(bed: Bed) -> None:
    bed.engine.hold()
    send(bed, 0, attempt=0, seq=1)
    bed.engine.allow(2)
    await next_item(bed)
    await next_item(bed)
    await until(lambda: bed.engine.num_begun == 3)  # one step of the old attempt is under way
    send(bed, 1)
    await settle()
    bed.engine.go_on()
    item, tokens = await next_item(bed)
    assert (item.attempt, item.first_index, tokens) == (1, 1, T[1:2])
    await bed.f0.receive(
        OutputsEmitted, lambda e: bool(e.items) and e.items[0].finish_reason == "length"
    )
    bed.engine.check()


async def test_an_attempt_that_comes_after_a_later_one_is_not_run_and_ends_nothing(
    bed: Bed,
) -> None:
    bed.engine.hold()
    send(bed, 3, attempt=2, max_tokens=12)
    bed.engine.allow(1)
    await next_item(bed)
    send(bed, 0, attempt=1, seq=9, max_tokens=12)
    bed.f0.send(HERE, OutputsUnread((("r", 1, 0), ("r", 0, 2))))
    await settle()
    bed.engine.allow(4)
    for index in range(4, 8):
        item, tokens = await next_item(bed)
        assert (item.attempt, item.first_index, tokens) == (2, index, T[index : index + 1])
    assert bed.f0.received(RequestLost) == []
    bed.f0.send(HERE, OutputsUnread((("r", 2, 0),)))
    lost = await bed.f0.receive(RequestLost)
    assert (lost.attempt, lost.hop) == (2, 0)
    bed.engine.go_on()
    await bed.status(lambda s: s.last_dispatch_seq == 9 and s.snapshot.num_free_blocks == 64)
    assert [taken.attempt for taken in bed.f0.received(ReplayTaken)] == [2]


async def test_it_waits_for_its_grammar_and_others_go_on(bed: Bed) -> None:
    compiling = compiles(bed)
    send(bed, 2)
    bed.add("other")
    await bed.f0.receive(
        OutputsEmitted, lambda e: bool(e.items) and e.items[0].finish_reason is not None
    )
    assert bed.llumlet.num_live_reqs == 0
    compiling.set_result(None)
    item, tokens = await next_item(bed)
    assert (item.first_index, tokens) == (2, T[2:3])


async def test_outputs_that_are_not_its_own_are_refused(bed: Bed) -> None:
    frames = [bytes(frame) for frame in request_frames("r", 4, 8)]
    add = AddRequest("r", bed.f0.address, 1, 3, attempt=1, num_output_tokens=1)
    bed.f0.send(HERE, add, [*frames, encode_tokens([T[0] + 1])])
    refused = await bed.f0.receive(RequestRefused)
    assert (refused.attempt, refused.retryable) == (1, False)
    assert bed.llumlet.num_live_reqs == 0


@pytest.mark.parametrize("how", ["does not compile", "too busy", "called off"])
async def test_a_grammar_that_does_not_come_is_refused(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """One that has had no time is left to another instance."""
    monkeypatch.setattr(llumlet, "GRAMMAR_TIMEOUT_S", 0.01 if how == "too busy" else 10.0)
    compiling = compiles(bed)
    send(bed, 2)
    if how == "does not compile":
        compiling.set_exception(ValueError("secret"))
    elif how == "called off":
        await bed.pull()
        compiling.cancel()
    why = llumlet.NO_GRAMMAR if how == "does not compile" else llumlet.NOT_YET
    refused = await bed.f0.receive(RequestRefused)
    assert refused == RequestRefused("r", why, retryable=why == llumlet.NOT_YET, attempt=1)
    await bed.status(lambda s: s.last_dispatch_seq == 3)


@pytest.mark.parametrize("how", ["aborted", "frontend lost", "replaced"])
async def test_one_that_is_over_before_its_grammar_is_there(bed: Bed, how: str) -> None:
    compiling = compiles(bed)
    compiling.set_running_or_notify_cancel()
    send(bed, 2)
    await bed.pull()
    if how == "aborted":
        bed.f0.send(HERE, AbortRequests(("r",)))
    elif how == "replaced":
        send(bed, 3, attempt=2, seq=4)
    else:
        bed.add("told", max_tokens=2)
        await bed.f0.receive(OutputsEmitted)
        bed.network.lose(bed.f0.address)
    await bed.status(lambda s: s.last_dispatch_seq >= 3)
    compiling.set_result(None)
    if how == "replaced":
        item, _ = await next_item(bed)
        assert (item.attempt, item.first_index) == (2, 3)
        return
    await bed.pull()
    await bed.pull()
    assert bed.llumlet.num_live_reqs == 0
    assert not bed.engine.running
    assert not bed.engine.waiting
