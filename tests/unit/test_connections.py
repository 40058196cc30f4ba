"""Kept connections: none is closed while a request on it is under way.

On uvloop, as in a frontend. Data that arrives while the loop is busy with other connections is read
in its next turn, but timers that become due meanwhile run before that.
"""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import wraps
from typing import Any

import pytest
import uvloop
from uvicorn import Config, Server

from controller.adapters import connections
from controller.adapters.connections import KeepAlive, max_kept_connections
from controller.adapters.vllm.endpoint.answers import error_body

REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
PATIENCE_S = 30.0


async def app(_scope: Any, _receive: Any, send: Any) -> None:
    headers = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})


class Client:
    """One connection. It connects and sends at once; only reading lets the server run."""

    def __init__(self, address: Any) -> None:
        self.socket = socket.create_connection(address, timeout=PATIENCE_S)

    def send(self, data: bytes = REQUEST) -> None:
        self.socket.sendall(data)

    async def read(self, end: bytes = b"\r\n\r\nok") -> bytes:
        """One answer, or what came before the connection was closed."""
        got = b""
        while not (end and got.endswith(end)):
            chunk = await asyncio.to_thread(self.socket.recv, 4096)
            if not chunk:
                break
            got += chunk
        return got

    async def read_until_closed(self) -> bytes:
        return await self.read(b"")

    async def ask(self) -> bytes:
        self.send()
        return await self.read()


@asynccontextmanager
async def serving(
    keep_alive: KeepAlive | None = None, keep_alive_s: float = 60.0, app: Any = app
) -> AsyncIterator[tuple[Server, Callable[[], Client]]]:
    clients: list[Client] = []
    config = Config(
        app,
        http=keep_alive or KeepAlive(9, error_body),
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


def on_uvloop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(asyncio.wait_for(test(*args, **kwargs), 4 * PATIENCE_S))

    return run


@pytest.mark.long
@on_uvloop
async def test_a_request_that_came_while_the_loop_was_busy_is_answered() -> None:
    async with serving(keep_alive_s=1.0) as (_, client):
        one = client()
        assert await one.ask()
        in_loop, ours = socket.socketpair()

        def busy() -> None:
            asyncio.get_running_loop().remove_reader(in_loop)
            one.send()
            time.sleep(1.2)

        with in_loop, ours:
            asyncio.get_running_loop().add_reader(in_loop, busy)
            ours.send(b".")
            await asyncio.sleep(0.1)
        assert (await one.read()).startswith(b"HTTP/1.1 200"), "closed without an answer"
        assert await one.read() == b"", "an idle connection is closed in the end"


@on_uvloop
async def test_clients_are_told_which_answer_is_their_last() -> None:
    keep_alive = KeepAlive(1, error_body)
    async with serving(keep_alive) as (_, client):
        first, second = client(), client()
        assert b"connection: close" not in await first.ask()
        assert b"connection: close" in await second.ask(), "it is one connection too many"
        assert await second.read() == b""
        assert b"connection: close" not in await first.ask()
        keep_alive.ends = True
        assert b"connection: close" in await first.ask(), "the server drains"
        assert await first.read() == b""


@pytest.mark.long
@on_uvloop
async def test_a_server_that_ends_answers_what_has_come_and_waits_for_nobody_else() -> None:
    async with serving() as (server, client):
        silent, idle, used, half, fresh = (client() for _ in range(5))
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
            assert (await each.read()).startswith(b"HTTP/1.1 200")
        for each in (idle, silent):
            assert await each.read() == b""


def test_half_of_the_descriptors_stays_for_connections_in_use(monkeypatch: Any) -> None:
    for limit, kept in [(1024, 512), (1 << 20, 4096), (connections.resource.RLIM_INFINITY, 4096)]:
        monkeypatch.setattr(connections.resource, "getrlimit", lambda _, n=limit: (n, n))
        assert max_kept_connections() == kept


@on_uvloop
async def test_a_head_that_never_ends_is_refused_and_silence_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "HEAD_TIMEOUT_S", 0.2)
    async with serving() as (_, client):
        silent, slow, next_slow, good = client(), client(), client(), client()
        slow.send(REQUEST[:20])
        assert (await next_slow.ask()).endswith(b"ok")
        next_slow.send(REQUEST[:20])
        assert (await good.ask()).endswith(b"ok")
        for each in (slow, next_slow):
            assert (await each.read()).startswith(b"HTTP/1.1 408 Request Timeout")
        assert await silent.read() == b""
        assert (await good.ask()).endswith(b"ok"), "between two requests the keep-alive counts"


# -- bounds --------------------------------------------------------------------------------


async def telling(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the length of the body, the headers that came, and ok."""
    num_bytes, more = 0, True
    while more:
        message = await receive()
        num_bytes += len(message.get("body", b""))
        more = message.get("more_body", False)
    names = [name.decode() for name, _ in scope["headers"]]
    told = f"{num_bytes} bytes, {','.join(names)}\r\n\r\nok".encode()
    headers = [(b"content-length", b"%d" % len(told))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": told})


async def asked(data: bytes, app: Any = telling, piece: int = 0) -> bytes:
    """Everything that the server sends until it closes the connection, for which `data` asks.
    Pieces of `data` are sent one by one."""
    async with serving(app=app) as (_, client):
        one = client()
        one.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reading = asyncio.create_task(one.read_until_closed())
        for begin in range(0, len(data), piece or len(data)):
            try:
                await asyncio.to_thread(one.send, data[begin : begin + (piece or len(data))])
            except OSError:
                break  # the server has closed
            if piece:
                await asyncio.sleep(0)
        return await reading


CLOSE = b"Connection: close\r\n"
POST = b"POST / HTTP/1.1\r\nHost: a\r\n"
CHUNKED = POST + CLOSE + b"Transfer-Encoding: chunked\r\n\r\n"
KIB_64 = 64 * 1024


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 60_000 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + b"a:\r\n" * 15_000 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\na: " + b"b" * 10 * KIB_64, 431),
        (b"GET /" + b"a" * KIB_64 + b" HTTP/1.1\r\n\r\n", 414),
        (b"\r\n" * 10 * KIB_64, 431),
        (CHUNKED + (b"1;" + b"a" * 30_000 + b"\r\nx\r\n") * 4, 431),
        (CHUNKED + b"0\r\n" + b"a: b\r\n" * 100_000, 431),
        (b"BLAH\r\n\r\n", 400),
    ],
    ids=[
        *("headers", "empty-headers", "one-value", "url", "blank-lines"),
        *("extensions", "trailers", "no-http"),
    ],
)
@on_uvloop
async def test_a_head_and_what_comes_around_a_body_have_so_many_bytes(
    data: bytes, status: int
) -> None:
    head, _, body = (await asked(data, piece=16_000)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), head[:200]
    assert b"content-length: %d\r\n" % len(body) in head
    assert json.loads(body)["error"]["code"] == status


@on_uvloop
async def test_heads_below_the_bound_pass_and_are_counted_one_by_one() -> None:
    header = b"a: " + b"b" * 60_000 + b"\r\n"
    for piece in (0, 7_000):
        answer = await asked(POST + CLOSE + header + b"Content-Length: 0\r\n\r\n", piece=piece)
        assert answer.endswith(b"ok"), answer[:200]
    short = b"GET / HTTP/1.1\r\na: " + b"b" * 4_000 + b"\r\n%b\r\n"
    answers = await asked(short % b"" * 40 + short % CLOSE)
    assert answers.count(b"HTTP/1.1 200") == 41


@on_uvloop
async def test_a_body_that_cannot_be_read_is_its_client_s_end_for_the_app() -> None:
    heard: list[Any] = []

    async def app(_scope: Any, receive: Any, send: Any) -> None:
        while not heard or heard[-1].get("more_body"):
            heard.append(await receive())
        await send({"type": "http.response.start", "status": 200, "headers": []})

    assert (await asked(CHUNKED + b"1\r\nx\r\nz\r\n", app)).count(b"HTTP/1.1") == 1
    assert heard[-1] == {"type": "http.disconnect"}


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (CHUNKED + b"1\r\nx\r\n" * 100_000 + b"0\r\n\r\n", b"100000 bytes"),
        # The gate may have judged the headers before the trailer comes.
        (
            CHUNKED + b"1\r\nx\r\n0\r\nAuthorization: Bearer x\r\na: b\r\n\r\n",
            b"1 bytes, host,connection,transfer-encoding\r\n",
        ),
        (b"POST / HTTP/1.0\r\nContent-Length: 5\r\n\r\nhello", b"5 bytes, content-length\r\n"),
        (b"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\nhello", b"HTTP/1.1 405 "),
    ],
    ids=["chunks of a byte", "a trailer is no header", "HTTP 1.0", "no other hosts"],
)
@on_uvloop
async def test_how_a_request_is_read(data: bytes, answer: bytes) -> None:
    assert answer in await asked(data, piece=50_000)


@on_uvloop
async def test_only_so_many_requests_wait_on_one_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "MAX_PIPELINED", 3)
    answers = await asked(REQUEST * 5000)
    assert answers.count(b"HTTP/1.1 200") == 4
    assert answers.count(b"connection: close") == 1, "the client knows which are not answered"


@pytest.mark.parametrize("late", [b"BLAH\r\n\r\n", b"GET / HTTP/1.1\r\na"])
@on_uvloop
async def test_an_answer_is_not_cut_by_what_comes_behind_its_request(
    late: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = asyncio.Event()

    async def slow(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        begun.set()
        await asyncio.sleep(0.3)
        await send({"type": "http.response.body", "body": b"ended"})

    monkeypatch.setattr(connections, "HEAD_TIMEOUT_S", 0.1)
    async with serving(app=slow) as (_, client):
        one = client()
        one.send()
        await begun.wait()
        one.send(late)
        answer = await one.read_until_closed()
        assert answer.endswith(b"5\r\nended\r\n0\r\n\r\n"), answer
        assert answer.count(b"HTTP/1.1") == 1


@on_uvloop
async def test_the_rest_of_a_body_that_is_answered_is_dropped_up_to_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "MAX_DROPPED_BYTES", 1_000_000)
    async with serving() as (_, client):
        good, bad = client(), client()
        good.send(POST + b"Content-Length: 100000\r\n\r\n")
        assert (await good.read()).endswith(b"ok")
        good.send(b"x" * 100_000)
        assert (await good.ask()).endswith(b"ok")
        bad.send(POST + b"Content-Length: 10000000\r\n\r\n")
        assert (await bad.read()).endswith(b"ok")
        with suppress(OSError):
            for _ in range(900):
                await asyncio.to_thread(bad.send, b"x" * 10_000)
            raise AssertionError("nine times the bound was taken")


@pytest.mark.parametrize("rest", [b"\r\n", b"x"])
@on_uvloop
async def test_bytes_that_are_no_request_keep_no_connection(rest: bytes) -> None:
    """Blank lines, and the rest of a body that has been answered already."""
    async with serving(keep_alive_s=0.3) as (_, client):
        one = client()
        one.send(POST + b"Content-Length: %d\r\n\r\n" % (1000 if rest == b"x" else 0))
        assert (await one.read()).endswith(b"ok")
        closed = asyncio.create_task(one.read_until_closed())
        async with asyncio.timeout(PATIENCE_S):
            while not closed.done():
                with suppress(OSError):
                    one.send(rest)
                await asyncio.wait({closed}, timeout=0.05)


# -- other protocols ------------------------------------------------------------------------

# What Java's client sends first.
OFFER = (
    b"Connection: Upgrade, HTTP2-Settings\r\nHost: localhost\r\n"
    b"HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\nUpgrade: h2c\r\n"
)


@pytest.mark.parametrize("piece", [0, 1])
@pytest.mark.parametrize(
    ("protocol", "body", "num_bytes"),
    [
        (b"websocket", b"Content-Length: 5\r\n\r\nhello", 5),
        (b"h2c", b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n1\r\n!\r\n0\r\n\r\n", 6),
        (b"h2c", b"\r\n", 0),
    ],
    ids=["length", "chunks", "none"],
)
@on_uvloop
async def test_an_offer_of_another_protocol_is_ignored(
    protocol: bytes, body: bytes, num_bytes: int, piece: int
) -> None:
    request = b"POST /a?b=c HTTP/1.1\r\n" + OFFER.replace(b"h2c", protocol) + body
    answers = await asked(request * 3 + REQUEST[:-2] + CLOSE + b"\r\n", piece=piece)
    assert answers.count(b"HTTP/1.1 200") == 4, answers
    assert answers.count(b"%d bytes, connection,host" % num_bytes) == 3
    assert b"upgrade" not in answers
    assert b"http2-settings" not in answers


@on_uvloop
async def test_a_stream_to_a_client_of_http_1_0_has_no_chunks() -> None:
    async def stream(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for body in (b"data: 1\n\n", b"data: 2\n\n"):
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body"})

    answer = await asked(b"GET / HTTP/1.0\r\n\r\n", stream)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    assert body == b"data: 1\n\ndata: 2\n\n"
