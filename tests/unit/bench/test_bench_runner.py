"""The open loop against a small endpoint in the same process: what is sent, and what is found."""

import asyncio
import contextlib
from dataclasses import replace

import httpx
import pytest

from controller.api import token_sequence
from controller.api.client import ControlClient
from llumctl.lab import bench_load
from llumctl.lab.bench_client import Answer, Connection, Endpoint, ExchangeError, TokenFaults
from llumctl.lab.bench_load import Load, Request
from llumctl.lab.bench_run import Results, Run, Sender, measure
from llumctl.lab.option_values import Verify
from tests.unit.bench.bench_server import MODEL, Behaviour, FakeServer


def requests(num: int, gap_s: float = 0.001) -> list[Request]:
    return [Request(i, i * gap_s, 8, 12, "normal") for i in range(num)]


def sender(server: FakeServer, verify: Verify = Verify.TOKENS, timeout_s: float = 30.0) -> Sender:
    return Sender(Endpoint(server.url, server.api_key), MODEL, 0, verify, timeout_s)


async def ran(server: FakeServer, wanted: list[Request], *how: Verify | float) -> Results:
    return await Run(wanted, sender(server, *how)).run()


async def asked(server: FakeServer, num_requests: int) -> None:
    """Waits until so many requests have come."""
    async with asyncio.timeout(10):
        while len(server.bodies) < num_requests:
            await asyncio.sleep(0.005)


def kinds(results: Results) -> dict[int, str]:
    """What went wrong, by the number of the request."""
    wrong = (result for result in results.ended if not result.is_right)
    return {result.request.index: result.verdict.kind for result in wrong}


async def test_all_right() -> None:
    async with FakeServer().serving() as server:
        results = await ran(server, requests(20, gap_s=0.02))
    assert server.num_connections < 20, "connections are used again"
    assert kinds(results) == {}
    assert (results.num_sent, len(results.ended), results.num_failed) == (20, 20, 0)
    assert not results.live
    assert not results.interrupted
    for result in results.ended:
        answer = result.answer
        assert result.num_output_tokens == len(answer.token_times_s) == 12
        assert result.due_s <= answer.token_times_s[0] <= answer.ended_s
        assert answer.token_ids == [], "right ones are not kept"
    assert results.client_cpu_s > 0


async def test_what_is_sent() -> None:
    load = Load(rate=500, num_requests=20, lengths="5,3")
    levels = [bench_load.DEFAULT_LEVEL, bench_load.Level("high", -1)]
    shares = bench_load.parse_shares(["high=0.5"], levels)
    plan = bench_load.plan(load, bench_load.rows(load), shares, None)
    async with FakeServer(api_key="secret").serving() as server:
        await ran(server, list(plan.requests), Verify.COUNTS)
        await ran(server, [Request(0, 0.0, 5, 3)], Verify.USAGE)
        several = replace(sender(server), stream_interval=16)
        await Run([Request(0, 0.0, 5, 3)], several).run()
    assert len(server.bodies) == 22
    *counted, last, of_several = server.bodies
    assert of_several["stream_interval"] == 16
    assert {body.pop("priority", None) for body in counted} == {None, -1}
    salts = [body["cache_salt"] for body in counted]
    for body in counted:
        prompt, salt = body.pop("prompt"), body.pop("cache_salt")
        assert body.pop("request_id").startswith(f"{salt}-")
        assert salt == salts[0] != last["cache_salt"], "a run finds nothing of another"
        assert [type(token) for token in prompt] == [int] * 5
        assert body == {
            "model": MODEL,
            "max_tokens": 3,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
        }
    assert "return_token_ids" not in last


async def test_failures_are_told_apart() -> None:
    wrong = {
        1: Behaviour(error_after=4),
        2: Behaviour(edit=lambda tokens: [*tokens[:3], *tokens[2:]]),
        4: Behaviour(status=503),
        5: Behaviour(break_after=5),
        6: Behaviour(edit=lambda tokens: [*tokens[:-1], 7]),
    }
    server = FakeServer(behave=lambda num: wrong.get(num, Behaviour()))
    async with server.serving():
        results = await ran(server, requests(12, gap_s=0.03))
    prompts = [body["prompt"] for body in server.bodies]
    wrong = {
        prompts.index(bench_load.prompt(0, result.request)): result.verdict
        for result in results.ended
        if not result.is_right
    }
    assert {place: (each.kind, each.faults) for place, each in wrong.items()} == {
        1: ("stream-error-503", TokenFaults()),
        2: ("wrong-count", TokenFaults(num_doubled=1)),
        4: ("http-503", TokenFaults()),
        5: ("broken", TokenFaults()),
        6: ("wrong-tokens", TokenFaults(num_wrong=1)),
    }
    assert results.num_failed == 5
    assert len(results.ended) == 12


async def test_a_slow_server_does_not_hold_up_the_load() -> None:
    """No answer begins before the last request is there."""
    all_there = asyncio.Event()

    def behave(num: int) -> Behaviour:
        if num == 39:
            all_there.set()
        return Behaviour(wait_before_first=all_there)

    server = FakeServer(behave=behave)
    async with server.serving():
        results = await ran(server, requests(40, gap_s=0.005))
    assert kinds(results) == {}
    assert server.num_connections == 40
    (first,) = (result for result in results.ended if result.request.index == 0)
    waited_s = first.answer.token_times_s[0] - first.due_s
    assert waited_s >= 39 * 0.005, "it counts from when it was due"


async def test_a_request_that_takes_too_long_and_one_that_nobody_hears() -> None:
    never = asyncio.Event()
    server = FakeServer(behave=lambda _: Behaviour(wait_before_first=never))
    async with server.serving():
        results = await ran(server, requests(1), Verify.TOKENS, 0.2)
    assert kinds(results) == {0: "timed-out"}
    assert kinds(await ran(server, requests(1))) == {0: "cannot-connect"}


async def test_a_controller_that_fails_is_only_counted() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(500))
    async with FakeServer().serving() as server:
        with ControlClient("http://127.0.0.1:1", "token", transport=transport) as control:
            results, observed = await measure(Run(requests(3), sender(server)), control)
    assert kinds(results) == {}
    assert (observed.statuses, observed.num_unanswered) == ([], 2)


async def test_a_connection_that_was_cancelled_is_not_used_again() -> None:
    never = asyncio.Event()
    async with FakeServer(behave=lambda _: Behaviour(wait_before_first=never)).serving() as server:
        connection = await Connection.open(Endpoint(server.url))
        message, _, _ = sender(server).encode(Request(0, 0.0, 4, 4))
        exchanging = asyncio.create_task(connection.exchange(message, Answer()))
        await asked(server, 1)
        exchanging.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await exchanging
        assert not connection.is_open
        with pytest.raises(ExchangeError, match="connection is closed"):
            await connection.exchange(message, Answer())


def test_urls() -> None:
    assert Endpoint("http://h:1").url("models") == "http://h:1/v1/models"
    assert Endpoint("http://h/prefix/v1/").url("models") == "http://h/prefix/v1/models"


async def test_a_turn_is_sent_when_the_answer_before_has_come_and_begins_with_it() -> None:
    plan = [
        Request(0, 0.0, 8, 4, session="a"),
        Request(1, 0.0, 8, 4),
        Request(2, 9.0, 20, 4, session="a", gap_s=0.05),
        Request(3, 9.0, 30, 4, session="a", gap_s=0.0),
        Request(4, 0.0, 9, 4, session="b", gap_s=9.0),
    ]
    async with FakeServer().serving() as server:
        results = await ran(server, plan)
    assert kinds(results) == {}
    assert results.num_sent == 5, "a turn without one before it comes at its time"
    assert results.duration_s < 5
    by_index = {result.request.index: result for result in results.ended}
    prompts = {len(body["prompt"]): body["prompt"] for body in server.bodies[1:]}
    first = bench_load.prompt(0, plan[0])
    assert prompts[20][:8] == first
    start = token_sequence.start(first)
    assert prompts[20][8:12] == [token_sequence.token(start, place) for place in range(4)]
    assert prompts[30][:20] == prompts[20]
    gap_s = by_index[2].due_s - by_index[0].answer.ended_s
    assert gap_s == pytest.approx(0.05)
    assert not any(result.token_ids for result in results.ended)


async def test_a_session_ends_with_a_failed_turn() -> None:
    plan = [Request(0, 0.0, 8, 4, session="a"), Request(1, 0.0, 20, 4, session="a", gap_s=0.0)]
    async with FakeServer(lambda _: Behaviour(status=500)).serving() as server:
        results = await ran(server, plan)
    assert (results.num_sent, results.num_failed) == (1, 1)
