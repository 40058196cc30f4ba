"""An endpoint that answers as it should, but for what is planted in it."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tools.fuzz.case import plain

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
CANARY = b'"prompt":[1,2,3]'
TOKEN_S = 0.01


class FaultyEndpoint:
    """`plant`: from a request's bytes to what is answered (None: a good refusal). It may block.
    `reaches_app`: whether a request that is good in all is served."""

    def __init__(self, plant: Callable[[bytes], bytes | None], *, reaches_app: bool = True) -> None:
        self.plant, self.reaches_app = plant, reaches_app
        self.url = ""

    @contextmanager
    def serving(self) -> Iterator["FaultyEndpoint"]:
        loop, started, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
        tasks: set[asyncio.Task[None] | None] = set()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            tasks.add(task := asyncio.current_task())
            ends = (OSError, asyncio.IncompleteReadError, ValueError, asyncio.CancelledError)
            with contextlib.suppress(*ends):
                await self._answer(reader, writer)
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()
            tasks.discard(task)

        async def main() -> None:
            server = await asyncio.start_server(connected, "127.0.0.1", 0, limit=1 << 26)
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            started.set()
            await stop.wait()
            server.close()
            left = [task for task in tasks if task is not None]
            for task in left:
                task.cancel()
            await asyncio.gather(*left)

        thread = threading.Thread(target=loop.run_until_complete, args=(main(),))
        thread.start()
        assert started.wait(10)
        try:
            yield self
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join()
            loop.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET /v1/models "):
            writer.write(answer(200, b'{"data": [{"id": "stub"}]}'))
        elif CANARY in (body := await _body(head, reader)):
            writer.write(STREAM)
            for _ in range(100_000):
                writer.write(b"9\r\ndata: {}\n\r\n")
                await writer.drain()
                await asyncio.sleep(TOKEN_S)
        elif body == plain().body:
            writer.write(answer(200, b"{}") if self.reaches_app else error(403))
        else:
            writer.write(self.plant(head + body) or error(400))
        await writer.drain()


async def _body(head: bytes, reader: asyncio.StreamReader) -> bytes:
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    if len(lengths) != 1:
        return b""
    return await reader.readexactly(int(lengths[0].partition(b":")[2]))


def answer(status: int, content: bytes) -> bytes:
    head = b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % (status, len(content)) + content


def error(status: int) -> bytes:
    return answer(status, error_json(status))


def error_json(status: int, message: str = "no") -> bytes:
    body = {"message": message, "type": "T", "param": None, "code": status}
    return json.dumps({"error": body}).encode()
