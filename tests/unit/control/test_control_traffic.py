"""A recording of the traffic on the control API: frontends' reports as lines of one stream."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from controller.api.wire.stream import TrafficBatch
from controller.core.record.request_record import RequestState
from controller.runtime.controller import traffic
from controller.runtime.messages.codec import encode
from controller.runtime.messages.requests import RequestTraffic, TrafficAsked, TrafficTold
from tests.unit.control.control_support import Both, Cluster

KEY = b"\xab" * 32
BODY = {"key": KEY.hex(), "prefix_hash_tokens": 16}
OTHER = BODY | {"key": "cd" * 32}
ASKED, ENDED = TrafficAsked(KEY, 16), TrafficAsked(b"")
PATIENCE_S = 5.0
Lines = AsyncIterator[str]


@asynccontextmanager
async def recording(client: httpx.AsyncClient, body: object = BODY) -> AsyncIterator[Lines]:
    async with client.stream("POST", "/v1/traffic", json=body) as stream:
        assert stream.status_code == 200
        lines = stream.aiter_lines()
        assert await read(lines) == TrafficBatch(time_s=0.0)
        yield lines


async def read(lines: Lines) -> TrafficBatch:
    """The next line, without its time."""
    line = await asyncio.wait_for(anext(lines), PATIENCE_S)
    batch = TrafficBatch.model_validate_json(line)
    assert batch.time_s > 1e9
    return batch.model_copy(update={"time_s": 0.0})


async def told(lines: Lines) -> TrafficBatch:
    """The next line with requests."""
    while not (batch := await read(lines)).requests:
        pass
    return batch


def request(num_output_tokens: int = 7, hashes: bytes = b"") -> RequestTraffic:
    outcome = RequestState.FINISHED
    return RequestTraffic(5.25, 40, num_output_tokens, 1, outcome, "00ff", hashes)


def tell(
    cluster: Cluster,
    *requests: RequestTraffic,
    num_before: int = 0,
    num_live: int = 0,
    key: bytes = KEY,
    frontend: tuple[str, int] = ("f-0", 1),
) -> None:
    message = TrafficTold(key, *frontend, num_before, num_live, requests)
    cluster.mailbox.say(encode(message), [])


def asked(cluster: Cluster) -> list[TrafficAsked]:
    return cluster.mailbox.sent_to("mem://f-0", TrafficAsked)


async def until_asked(cluster: Cluster, expected: list[TrafficAsked]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while asked(cluster) != expected:
            await asyncio.sleep(0.005)


async def test_what_frontends_tell_comes_line_by_line_and_what_is_lost_is_counted(
    both: Both,
) -> None:
    own, client = both
    async with recording(client) as lines:
        tell(own.cluster, num_before=2)  # told to the controller before this one
        tell(own.cluster, request(hashes=bytes(range(16))), num_before=2, num_live=4)
        batch = await told(lines)
        (found,) = batch.requests
        assert found.model_dump(mode="json") == {
            "arrival_time_s": 5.25,
            "num_prompt_tokens": 40,
            "num_output_tokens": 7,
            "rank": 1,
            "outcome": "finished",
            "session": "00ff",
            "prefix_hashes": bytes(range(16)).hex(),
        }
        assert (batch.num_lost, batch.num_live) == (0, 4)
        for num_before, num_lost in ((6, 3), (7, 0)):
            tell(own.cluster, request(), num_before=num_before, num_live=4)
            assert (await told(lines)).num_lost == num_lost
        tell(own.cluster, request(8), num_live=2, frontend=("f-1", 1))
        assert (await told(lines)).num_live == 6
        own.cluster.mailbox.lose("mem://f-0")
        own.cluster.hello("f-0", nonce="b")
        tell(own.cluster, request(4), frontend=("f-0", 2))
        batch = await told(lines)
        assert (batch.num_lost, batch.num_live) == (4, 2), "they died with their frontend"


async def test_it_is_asked_for_again_and_again_until_its_reader_leaves(both: Both) -> None:
    """A restarted frontend hears of the recording too. There is one recording at a time."""
    own, client = both
    relay = own.cluster.controller.traffic
    async with recording(client):
        for now_s in (50.0, 50.5, 51.0, 51.5, 52.1):
            relay.tick(now_s)
        assert asked(own.cluster) == [ASKED] * 4
        refused = await client.post("/v1/traffic", json=OTHER)
        assert (refused.status_code, refused.json()["code"]) == (409, "recorded_already")
    await until_asked(own.cluster, [*[ASKED] * 4, ENDED])
    relay.tick(60.0)
    tell(own.cluster, request())
    assert len(asked(own.cluster)) == 5
    async with recording(client, OTHER):
        pass


async def test_a_reader_that_lags_loses_requests(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traffic, "MAX_WAITING_BYTES", 3 * traffic.REQUEST_BYTES)
    monkeypatch.setattr(traffic, "MAX_BATCH_BYTES", 2 * traffic.REQUEST_BYTES)
    own, client = both
    async with recording(client) as lines:
        tell(own.cluster, *[request(number) for number in range(1, 6)])
        first, second = await told(lines), await told(lines)
    numbers = [each.num_output_tokens for batch in (first, second) for each in batch.requests]
    assert numbers == [1, 2, 3]
    assert (first.num_lost, second.num_lost) == (2, 0)


async def test_the_same_recording_goes_on_with_another_stream(both: Both) -> None:
    """As after a lost connection, which the controller may notice late."""
    own, client = both
    async with recording(client) as before, recording(client) as lines:
        with contextlib.suppress(StopAsyncIteration):
            while True:
                await read(before)
        tell(own.cluster, request(), key=bytes(32))  # of no recording
        tell(own.cluster, request(9))
        assert [each.num_output_tokens for each in (await told(lines)).requests] == [9]
        assert asked(own.cluster) == [ASKED] * 2


async def test_that_traffic_is_recorded_is_on_the_record_without_the_key(both: Both) -> None:
    own, client = both
    async with recording(client):
        pass
    async with asyncio.timeout(PATIENCE_S):
        while [each["outcome"] for each in own.audit.tail()] != ["begun", "done"]:
            await asyncio.sleep(0.01)
    begun, done = own.audit.tail()
    assert begun["action"] == done["action"] == "record the traffic"
    assert begun["cause_id"] == done["cause_id"]
    log = own.cluster.controller.journal.log.after(None, 1000)
    told_events = [event.reason for _, event in log.entries if event.kind == "operator"]
    assert told_events == ["record the traffic (begun)", "record the traffic (done)"]
    assert KEY.hex() not in f"{begun}{done}{log}"
