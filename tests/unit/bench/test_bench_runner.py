"""The open loop against a small endpoint in the same process: what is sent, and what is found."""

import asyncio
import contextlib
import os
import signal
import time
from dataclasses import replace

import httpx
import pytest

from controller.api.client import ControlClient
from llumctl.lab import bench_load
from llumctl.lab.bench_client import Answer, Connection, Endpoint, ExchangeError, Pool, TokenFaults
from llumctl.lab.bench_load import Load, Request
from llumctl.lab.bench_run import Result, Results, Run, Sender, measure
from llumctl.lab.option_values import Verify
from tests.unit.bench.bench_server import MODEL, Behaviour, FakeServer


def requests(num: int, gap_s: float = 0.001, lengths: tuple[int, int] = (8, 12)) -> list[Request]:
    return [Request(i, i * gap_s, *lengths, "normal") for i in range(num)]


def sender(server: FakeServer, verify: Verify = Verify.TOKENS, timeout_s: float = 30.0) -> Sender:
    return Sender(Endpoint(server.url, server.api_key), MODEL, 0, verify, timeout_s)


async def ran(
    server: FakeServer,
    wanted: list[Request],
    verify: Verify = Verify.TOKENS,
    timeout_s: float = 30.0,
) -> Results:
    return await Run(wanted, sender(server, verify, timeout_s)).run()


def by_index(results: Results) -> dict[int, Result]:
    return {result.request.index: result for result in results.ended}


def kinds(results: Results) -> dict[int, str]:
    return {
        i: result.verdict.kind for i, result in by_index(results).items() if not result.is_right
    }


async def test_all_right() -> None:
    async with FakeServer().serving() as server:
        results = await ran(server, requests(20))
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


async def test_tokens_of_an_event_are_asked_for_only_where_they_are_several() -> None:
    async with FakeServer().serving() as server:
        for stream_interval in (1, 16):
            asking = replace(sender(server), stream_interval=stream_interval)
            results = await Run(requests(1), asking).run()
            assert kinds(results) == {}
    assert [body.get("stream_interval") for body in server.bodies] == [None, 16]


async def test_what_is_sent() -> None:
    plan = bench_load.plan(
        load := Load(rate=500, num_requests=20, lengths="5,3"),
        bench_load.rows(load),
        bench_load.parse_shares(
            ["high=0.5"], [bench_load.DEFAULT_LEVEL, bench_load.Level("high", -1)]
        ),
        None,
    )
    async with FakeServer(api_key="secret").serving() as server:
        await ran(server, list(plan.requests), Verify.COUNTS)
        await ran(server, [Request(0, 0.0, 5, 3)], Verify.USAGE)
    assert len(server.bodies) == 21
    *counted, last = server.bodies
    assert {body.get("priority") for body in counted} == {None, -1}
    for body in counted:
        assert len(body["prompt"]) == 5
        assert all(isinstance(token, int) for token in body["prompt"])
        assert body["max_tokens"] == 3
        assert body["ignore_eos"] is True
        assert body["stream"] is True
        assert body["stream_options"] == {"include_usage": True}
        assert body["return_token_ids"] is True
        assert body["model"] == MODEL
    assert "return_token_ids" not in last


async def test_a_second_run_finds_nothing_of_the_first_in_a_prefix_cache() -> None:
    async with FakeServer().serving() as server:
        await ran(server, requests(3))
        await ran(server, requests(3))
    first, second = server.bodies[:3], server.bodies[3:]
    assert [body["prompt"] for body in first] == [body["prompt"] for body in second]
    (salt,) = {body["cache_salt"] for body in first}
    (other,) = {body["cache_salt"] for body in second}
    assert salt != other


async def test_failures_are_told_apart() -> None:
    wrong = {
        1: Behaviour(error_after=4),
        2: Behaviour(edit=lambda tokens: [*tokens[:3], *tokens[2:]]),
        3: Behaviour(edit=lambda tokens: [*tokens[:3], *tokens[4:]]),
        4: Behaviour(status=503),
        5: Behaviour(break_after=5),
        6: Behaviour(edit=lambda tokens: [*tokens[:-1], 7]),
        7: Behaviour(usage_off_by=1),
        8: Behaviour(finishes=2),
    }
    server = FakeServer(behave=lambda num: wrong.get(num, Behaviour()))
    async with server.serving():
        results = await ran(server, requests(12, gap_s=0.03))
    found = {
        next(
            i for i, body in enumerate(server.bodies) if body["prompt"] == bench_load.prompt(0, r)
        ): (
            result.verdict.kind,
            result.verdict.faults,
        )
        for result in results.ended
        for r in (result.request,)
        if not result.is_right
    }
    assert found == {
        1: ("stream-error-503", TokenFaults()),
        2: ("wrong-count", TokenFaults(num_doubled=1)),
        3: ("wrong-count", TokenFaults(num_lost=1)),
        4: ("http-503", TokenFaults()),
        5: ("broken", TokenFaults()),
        6: ("wrong-tokens", TokenFaults(num_wrong=1)),
        7: ("wrong-usage", TokenFaults()),
        8: ("two-ends", TokenFaults()),
    }
    assert results.num_failed == 8
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
    first = by_index(results)[0]
    waited_s = first.answer.token_times_s[0] - first.due_s
    assert waited_s >= 39 * 0.005, "it counts from when it was due"


async def test_connections_are_used_again() -> None:
    async with FakeServer().serving() as server:
        results = await ran(server, requests(10, gap_s=0.05))
    assert kinds(results) == {}
    assert server.num_connections < 10


async def test_several_tokens_in_one_event() -> None:
    async with FakeServer(behave=lambda _: Behaviour(tokens_per_event=5)).serving() as server:
        results = await ran(server, requests(3))
    assert kinds(results) == {}
    assert [len(result.answer.token_times_s) for result in results.ended] == [3, 3, 3]
    assert [result.num_output_tokens for result in results.ended] == [12, 12, 12]


async def test_a_request_that_takes_too_long() -> None:
    never = asyncio.Event()
    behaviours = {0: Behaviour(wait_before_first=never)}
    server = FakeServer(behave=lambda num: behaviours.get(num, Behaviour()))
    async with server.serving():
        results = await ran(server, requests(3, gap_s=0.05), timeout_s=1.0)
    assert kinds(results) == {0: "timed-out"}


async def test_nobody_listens() -> None:
    async with FakeServer().serving() as server:
        pass
    results = await ran(server, requests(3))
    assert set(kinds(results).values()) == {"cannot-connect"}


async def test_stop_ends_it_early() -> None:
    never = asyncio.Event()
    server = FakeServer(behave=lambda num: Behaviour(wait_before_first=None if num == 0 else never))
    async with server.serving():
        run = Run(requests(1000, gap_s=0.02), sender(server))
        running = asyncio.create_task(run.run())
        async with asyncio.timeout(10):
            while len(server.bodies) < 3:
                await asyncio.sleep(0.005)
            run.stop()
            results = await running
    assert results.interrupted
    assert 1 <= len(results.ended) < results.num_sent < 1000
    assert len(results.live) == results.num_sent - len(results.ended)
    assert kinds(results) == {}, "what was cut off has not failed"


async def test_sigint_stops_it() -> None:
    never = asyncio.Event()
    server = FakeServer(behave=lambda _: Behaviour(wait_before_first=never))
    async with server.serving():
        running = asyncio.create_task(
            measure(Run(requests(1000, gap_s=0.02), sender(server)), None)
        )
        async with asyncio.timeout(10):
            while not server.bodies:
                await asyncio.sleep(0.005)
            os.kill(os.getpid(), signal.SIGINT)
            results, observed = await running
    assert results.interrupted
    assert observed.statuses == []


async def test_a_controller_that_fails_is_only_counted() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(500))
    async with FakeServer().serving() as server:
        with ControlClient("http://127.0.0.1:1", "token", transport=transport) as control:
            results, observed = await measure(Run(requests(3), sender(server)), control)
    assert kinds(results) == {}
    assert (observed.statuses, observed.num_unanswered) == ([], 2)


async def test_a_defect_of_ours_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def defect(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Pool, "exchange", defect)
    async with FakeServer().serving() as server:
        with pytest.raises(ExceptionGroup):
            await ran(server, requests(3))


async def test_progress_is_told() -> None:
    told: list[tuple[int, int]] = []
    async with FakeServer(behave=lambda _: Behaviour(step_s=0.05)).serving() as server:
        run = Run(requests(2), sender(server), lambda r: told.append((r.num_sent, len(r.ended))))
        await run.run()
    assert (2, 0) in told
    assert told[-1] == (2, 2)


async def test_a_connection_that_was_cancelled_is_not_used_again() -> None:
    never = asyncio.Event()
    async with FakeServer(behave=lambda _: Behaviour(wait_before_first=never)).serving() as server:
        connection = await Connection.open(Endpoint(server.url))
        message, _ = sender(server).encode(Request(0, 0.0, 4, 4))
        exchanging = asyncio.create_task(connection.exchange(message, Answer()))
        async with asyncio.timeout(10):
            while not server.bodies:
                await asyncio.sleep(0.005)
        exchanging.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await exchanging
        assert not connection.is_open
        with pytest.raises(ExchangeError, match="connection is closed"):
            await connection.exchange(message, Answer())


async def test_what_is_due_at_once_goes_out_at_once() -> None:
    async with FakeServer().serving() as server:
        started_s = time.perf_counter()
        results = await ran(server, [Request(i, 0.0, 4, 1) for i in range(100)])
    assert len(results.ended) == 100
    assert time.perf_counter() - started_s < 10
    assert all(result.lag_s >= 0 for result in results.ended)


@pytest.mark.parametrize(
    ("base_url", "url"),
    [
        ("http://h:1", "http://h:1/v1/models"),
        ("http://h:1/v1/", "http://h:1/v1/models"),
        ("http://h/prefix", "http://h/prefix/v1/models"),
    ],
)
def test_urls(base_url: str, url: str) -> None:
    assert Endpoint(base_url).url("models") == url


def test_the_request_on_the_wire() -> None:
    head, _, body = (
        Endpoint("http://h:1/x", "k").encode("completions", {"a": 1}).partition(b"\r\n\r\n")
    )
    assert head.split(b"\r\n") == [
        b"POST /x/v1/completions HTTP/1.1",
        b"Host: h:1",
        b"Authorization: Bearer k",
        b"Content-Type: application/json",
        b"Content-Length: 7",
    ]
    assert body == b'{"a":1}'
