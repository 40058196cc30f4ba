"""Clients that do not read, on a real socket."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from uvicorn import Config, Server

from controller.adapters.listener import SEND_BUFFER_BYTES, listen, set_write_timeout
from tests.unit.endpoint.gate_support import PATH, gate, until

EVENT = b"data: " + b"x" * 1000 + b"\n\n"


class EndlessStream:
    """An app that sends for as long as its client is there."""

    num_sent_bytes = 0
    left_after_s: float | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return
        await receive()
        started_s = time.monotonic()
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        leaving = asyncio.create_task(receive())
        while not leaving.done():
            await send({"type": "http.response.body", "body": EVENT, "more_body": True})
            self.num_sent_bytes += len(EVENT)
            await asyncio.sleep(0)
        self.left_after_s = time.monotonic() - started_s


@asynccontextmanager
async def serving(app: EndlessStream, write_timeout_s: float) -> AsyncIterator[tuple[Server, Any]]:
    found = gate(app)
    listening = listen("127.0.0.1", 0, write_timeout_s)
    server = Server(Config(found, log_level="critical", lifespan="off"))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    while not server.started:
        await asyncio.sleep(0.001)
    yield server, listening.getsockname()
    server.should_exit = True
    await serving
    assert found.num_live == 0


def head(num_bytes: int) -> bytes:
    lines = (f"POST {PATH} HTTP/1.1", "Host: localhost", f"Content-Length: {num_bytes}", "", "")
    return "\r\n".join(lines).encode()


async def connect(address: Any) -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, address)
    await loop.sock_sendall(client, head(2) + b"{}")
    return client


async def test_a_client_that_does_not_read_is_cut_and_costs_little_until_then() -> None:
    app = EndlessStream()
    async with serving(app, write_timeout_s=0.25) as (server, address):
        with await connect(address):
            await until(lambda: app.left_after_s is not None)
            assert not server.server_state.connections
    assert app.left_after_s is not None
    assert app.left_after_s > 0.2
    # The kernel doubles the buffer for its own bookkeeping; then 64 KB of asyncio's.
    assert app.num_sent_bytes < 2 * SEND_BUFFER_BYTES + 200_000


def test_another_write_timeout_is_inherited_by_connections_that_come_later() -> None:
    def accepted(listening: socket.socket) -> int:
        with socket.create_connection(listening.getsockname()) as client:
            connection, _ = listening.accept()
            with client, connection:
                return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)

    with listen("127.0.0.1", 0, 60.0) as listening:
        assert accepted(listening) == 60_000
        set_write_timeout(listening, 0.25)
        assert accepted(listening) == 250


async def test_a_body_that_is_too_large_is_answered_though_it_is_still_being_sent() -> None:
    async with serving(EndlessStream(), write_timeout_s=5.0) as (_, address):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(head(64 * 1024 * 1024))
        for _ in range(16):
            writer.write(b" " * 65536)
            await writer.drain()
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 413 ")
        writer.close()
