"""What a frontend tells of its requests while the traffic is recorded."""

import asyncio
import dataclasses
from collections.abc import Iterable

import pytest

from controller.core.record.request_record import RequestState
from controller.core.scheduler_events import Dispatch, DispatchRequested
from controller.runtime.frontend import traffic_recorder
from controller.runtime.frontend.traffic_recorder import prefix_hashes, session_hash
from controller.runtime.messages.requests import (
    DispatchAsked,
    Dispatched,
    RequestTraffic,
    TrafficAsked,
    TrafficTold,
)
from tests.unit.runtime.fakes import FakeNetwork, settle, virtual_time
from tests.unit.runtime.router_bed import Bed

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
ASKED = TrafficAsked(KEY, 4)
TOKENS = list(range(100, 110))


async def record(bed: Bed, asked: TrafficAsked = ASKED) -> None:
    bed.say(asked)
    await settle()


async def run(bed: Bed, request_id: str, tokens: list[int] = TOKENS, **what: object) -> None:
    """A request that an instance has."""
    request = DispatchRequested(request_id, "f-0", len(tokens), 1, 5.25)
    request = dataclasses.replace(request, **what)  # type: ignore[arg-type]
    submitted = bed.router.submit(request, [b"x"], "client", None, tokens)
    task = asyncio.create_task(submitted)
    await bed.controller.receive(DispatchAsked, lambda a: a.asked.request_id == request_id)
    bed.say(Dispatched(Dispatch(request_id, "f-0", "i-0", 1, 1)))
    await task


async def told(bed: Bed, num_requests: int = 1) -> list[TrafficTold]:
    """What was told until so many requests were, and nothing before."""
    found: list[TrafficTold] = []
    while sum(len(each.requests) for each in found) < num_requests:
        found.append(await bed.controller.receive(TrafficTold))
    return found


def requests(found: Iterable[TrafficTold]) -> list[RequestTraffic]:
    return [request for each in found for request in each.requests]


pytestmark = virtual_time


@pytest.fixture
async def bed(network: FakeNetwork) -> Bed:
    bed = Bed(network)
    await bed.know()
    return bed


async def test_a_request_that_ends_is_told_without_its_ids(bed: Bed) -> None:
    await record(bed)
    await run(bed, "r", session="ann")
    bed.accept(0, [7, 8, 9], last=True)
    found = await told(bed)
    hashes, session = b"".join(prefix_hashes(KEY, TOKENS, 4)), session_hash(KEY, "ann")
    assert requests(found) == [
        RequestTraffic(5.25, len(TOKENS), 3, 1, RequestState.FINISHED, session, hashes)
    ]
    assert len(hashes) == 2 * 8, "only full blocks"
    assert (found[-1].key, found[-1].frontend_id, found[-1].num_live) == (KEY, "f-0", 0)


async def test_each_outcome(bed: Bed) -> None:
    await record(bed)
    for request_id in ("left", "lost"):
        await run(bed, request_id)
    bed.accept(0, [7], r="left")
    bed.router.abort(["left"], RequestState.ABORTED, "the client left")
    bed.network.lose("mem://i-0")
    found = requests(await told(bed, 2))
    outcomes = [(each.outcome, each.num_output_tokens) for each in found]
    assert outcomes == [(RequestState.ABORTED, 1), (RequestState.FAILED, 0)]


@pytest.mark.parametrize("is_stopped", [True, False])
async def test_without_a_recording_nothing_is_noted_or_told(bed: Bed, is_stopped: bool) -> None:
    """It is stopped, or the controller died, so that nobody asks for it any more."""
    await run(bed, "before")
    await record(bed)
    await run(bed, "r")
    for _ in range(3):
        await asyncio.sleep(traffic_recorder.ASKED_FOR_S - 1)
        await record(bed)
    bed.accept(0, [1], last=True, r="before")
    bed.accept(0, [1, 2], last=True)
    assert [each.num_output_tokens for each in requests(await told(bed))] == [2]
    if is_stopped:
        await record(bed, TrafficAsked(b""))
    else:
        await asyncio.sleep(traffic_recorder.ASKED_FOR_S + 1)
    bed.controller.inbox.clear()
    await run(bed, "after")
    bed.accept(0, [1], last=True, r="after")
    await asyncio.sleep(3.0)
    assert bed.controller.received(TrafficTold) == []


@pytest.mark.parametrize(("limit", "value"), [("MAX_WAITING", 3), ("MAX_WAITING_TOKENS", 35)])
async def test_what_waits_is_bounded_and_what_is_lost_is_counted(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(traffic_recorder, limit, value)
    await record(bed)
    for _ in range(2):
        for place in range(5):
            await run(bed, f"r{place}")
        for place in range(5):
            bed.accept(0, [1], last=True, r=f"r{place}")
        await asyncio.sleep(1.0)
    found = [each for each in await told(bed, 6) if each.requests]
    assert [(each.num_before, len(each.requests)) for each in found] == [(2, 3), (7, 3)]


async def test_a_long_prompt_is_hashed_in_many_turns(bed: Bed) -> None:
    await record(bed, TrafficAsked(KEY, 1))
    tokens = list(range(20 * traffic_recorder.HASHES_PER_TURN))
    await run(bed, "r", tokens)
    bed.accept(0, [1], last=True)
    loop = asyncio.get_running_loop()
    before = loop.num_turns
    (request,) = requests(await told(bed))
    assert loop.num_turns - before >= 20
    assert request.prefix_hashes == b"".join(prefix_hashes(KEY, tokens, 1))


async def test_much_is_told_in_several_messages(bed: Bed) -> None:
    await record(bed, TrafficAsked(KEY, 1))
    tokens = list(range(traffic_recorder.MAX_HASH_BYTES_TOLD // 8 // 2))
    for place in range(3):
        await run(bed, f"r{place}", tokens)
    for place in range(3):
        bed.accept(0, [1], last=True, r=f"r{place}")
    found = [each for each in await told(bed, 3) if each.requests]
    assert [(each.num_before, len(each.requests)) for each in found] == [(0, 2), (2, 1)]
    assert [each.num_live for each in found] == [1, 0]


async def test_a_prompt_that_cannot_be_hashed_is_lost_alone(
    bed: Bed, caplog: pytest.LogCaptureFixture
) -> None:
    await record(bed)
    await run(bed, "r", [2**70] * 4)
    await run(bed, "s")
    bed.accept(0, [1], last=True)
    bed.accept(0, [1, 2], last=True, r="s")
    found = [each for each in await told(bed) if each.requests]
    assert [(each.num_before, len(each.requests)) for each in found] == [(1, 1)]
    assert "cannot be recorded" in caplog.text
