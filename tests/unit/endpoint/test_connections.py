"""Kept connections: none is closed under a request that is on its way.

On uvloop, as in a frontend. What comes while the loop is busy with what other connections sent is
read in its next turn, but the timers that are due meanwhile come before that.
"""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop
from uvicorn import Config, Server

from controller.adapters.vllm.endpoint import connections
from controller.adapters.vllm.endpoint.connections import KeepAlive, max_kept_connections
from controller.adapters.vllm.endpoint.gate import Gate

REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
PATIENCE_S = 30.0


async def app(_scope: Any, _receive: Any, send: Any) -> None:
    headers = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})


class Client:
    """One connection. It connects and sends at once, and only reading lets the server go on."""

    def __init__(self, address: Any) -> None:
        self.socket = socket.create_connection(address, timeout=PATIENCE_S)

    def send(self, data: bytes = REQUEST) -> None:
        self.socket.sendall(data)

    async def read(self) -> bytes:
        """One answer, or nothing where the connection was closed without one."""
        got = b""
        while not got.endswith(b"\r\n\r\nok"):
            chunk = await asyncio.to_thread(self.socket.recv, 4096)
            if not chunk:
                break
            got += chunk
        return got

    async def read_until_closed(self) -> bytes:
        got = b""
        while chunk := await asyncio.to_thread(self.socket.recv, 4096):
            got += chunk
        return got

    async def ask(self) -> bytes:
        self.send()
        return await self.read()


@asynccontextmanager
async def serving(
    keep_alive: KeepAlive, keep_alive_s: float = 60.0, app: Any = app
) -> AsyncIterator[tuple[Server, Callable[[], Client]]]:
    clients: list[Client] = []
    config = Config(
        app,
        http=keep_alive,
        timeout_keep_alive=keep_alive_s,  # a number of seconds
        log_level="critical",
        lifespan="off",
        timeout_graceful_shutdown=5,
    )
    server = Server(config)

    def client() -> Client:
        clients.append(Client(listening.getsockname()))
        return clients[-1]

    with socket.create_server(("127.0.0.1", 0)) as listening:
        ending = asyncio.create_task(server.serve(sockets=[listening]))
        while not server.started:
            await asyncio.sleep(0.001)
        try:
            yield server, client
        finally:
            for each in clients:
                each.socket.close()
            server.should_exit = True
            await ending


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def within_time() -> None:
        async with asyncio.timeout(4 * PATIENCE_S):
            await test()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(within_time())


def test_a_request_that_came_while_the_loop_was_busy_is_answered() -> None:
    async def test() -> None:
        async with serving(KeepAlive(9), keep_alive_s=0.2) as (_, client):
            one = client()
            assert await one.ask()
            in_loop, ours = socket.socketpair()

            def busy() -> None:
                asyncio.get_running_loop().remove_reader(in_loop)
                one.send()
                time.sleep(0.4)

            with in_loop, ours:
                asyncio.get_running_loop().add_reader(in_loop, busy)
                ours.send(b".")
                await asyncio.sleep(0.1)
            assert (await one.read()).startswith(b"HTTP/1.1 200"), "closed without an answer"
            assert await one.read() == b"", "an idle connection is closed in the end"

    run(test)


def test_too_many_connections_are_told_which_answer_is_their_last() -> None:
    async def test() -> None:
        async with serving(KeepAlive(1)) as (_, client):
            first, second = client(), client()
            assert b"connection: close" not in await first.ask()
            assert b"connection: close" in await second.ask()
            assert await second.read() == b""
            assert b"connection: close" not in await first.ask()

    run(test)


def test_a_server_that_drains_tells_each_client_that_it_closes() -> None:
    async def test() -> None:
        keep_alive = KeepAlive(9)
        async with serving(keep_alive) as (_, client):
            one = client()
            assert b"connection: close" not in await one.ask()
            keep_alive.ends = True
            assert b"connection: close" in await one.ask()
            assert await one.read() == b""

    run(test)


def test_a_server_that_ends_answers_what_has_come_and_what_has_just_connected() -> None:
    async def test() -> None:
        async with serving(KeepAlive(9)) as (server, client):
            idle, used, half, fresh = client(), client(), client(), client()
            await idle.ask()
            await used.ask()
            half.send(REQUEST[:10])
            await asyncio.sleep(0.05)  # until the server has read that
            server.should_exit = True
            used.send()
            await asyncio.sleep(0.15)  # uvicorn looks every 0.1 s
            half.send(REQUEST[10:])
            fresh.send()
            for each in (used, half, fresh):
                answer = await each.read()
                assert answer.startswith(b"HTTP/1.1 200")
            assert await idle.read() == b""

    run(test)


def test_a_client_that_connected_and_asks_nothing_does_not_keep_the_server() -> None:
    async def test() -> None:
        async with serving(KeepAlive(2 * PATIENCE_S)) as (server, client):
            silent = client()
            await asyncio.sleep(0.05)
            started_s = time.monotonic()
            server.should_exit = True
            assert await silent.read() == b""
            assert time.monotonic() - started_s < PATIENCE_S

    run(test)


def test_what_is_no_http_gets_an_error_of_ours() -> None:
    async def test() -> None:
        async with serving(KeepAlive(9)) as (_, client):
            one = client()
            one.send(b"BLAH\r\n\r\n")
            head, _, body = (await one.read()).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 400")
            assert f"content-length: {len(body)}".encode() in head
            error = json.loads(body)["error"]
            assert (error["type"], error["code"]) == ("BadRequestError", 400)
            assert "HTTP" in error["message"]

    run(test)


def test_half_of_the_descriptors_stays_for_connections_in_use(monkeypatch: Any) -> None:
    for limit, kept in [(1024, 512), (1 << 20, 4096), (connections.resource.RLIM_INFINITY, 4096)]:
        monkeypatch.setattr(connections.resource, "getrlimit", lambda _, n=limit: (n, n))
        assert max_kept_connections() == kept


def test_a_head_that_never_ends_is_refused_and_silence_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        async with serving(KeepAlive(10)) as (_, client):
            silent, slow, next_slow, good = client(), client(), client(), client()
            slow.send(REQUEST[:20])
            assert (await next_slow.ask()).endswith(b"ok")
            next_slow.send(REQUEST[:20])
            assert (await good.ask()).endswith(b"ok")
            for each in (slow, next_slow):
                assert (await each.read()).startswith(b"HTTP/1.1 408 Request Timeout")
            assert await silent.read() == b""
            assert (await good.ask()).endswith(b"ok"), "between two requests the keep-alive counts"

    monkeypatch.setattr(connections, "HEAD_TIMEOUT_S", 0.2)
    run(test)


@pytest.mark.parametrize("protocol", [b"websocket", b"h2c"])
def test_a_wish_for_another_protocol_is_answered(protocol: bytes) -> None:
    """Before the gate waits for a body that uvicorn's parser has thrown away."""
    gate = Gate()
    gate.app, gate.json_paths = app, frozenset({"/"})
    wish = b"Host: localhost\r\nConnection: Upgrade\r\nUpgrade: " + protocol + b"\r\n"

    async def test() -> None:
        async with serving(KeepAlive(10), app=gate) as (_, client):
            one = client()
            one.send(b"POST / HTTP/1.1\r\n" + wish + b"Content-Length: 2\r\n\r\n{}")
            assert b"cannot be upgraded" in await one.read_until_closed()
            two = client()
            two.send(b"GET / HTTP/1.1\r\n" + wish + b"\r\n")
            served = await two.read_until_closed()
            assert served.endswith(b"ok"), "some clients wish for HTTP/2 with each request"
            assert b"connection: close" in served

    run(test)
