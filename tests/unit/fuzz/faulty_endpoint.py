"""An endpoint that answers as it should, but for what is planted in it."""

import asyncio
import json
from collections.abc import Callable

from tests.unit.bench.bench_server import LocalServer
from tools.fuzz.case import plain

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
CANARY = b'"prompt":[1,2,3]'
TOKEN_S = 0.01


class FaultyEndpoint(LocalServer):
    """`plant`: from a request's bytes to what is answered (None: a good refusal). It may block."""

    def __init__(self, plant: Callable[[bytes], bytes | None]) -> None:
        self.plant = plant

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
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
            writer.write(answer(200, b"{}"))
        else:
            writer.write(self.plant(head + body) or error(400))
        await writer.drain()
        return False


async def _body(head: bytes, reader: asyncio.StreamReader) -> bytes:
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    if len(lengths) != 1:
        return b""
    return await reader.readexactly(int(lengths[0].partition(b":")[2]))


def answer(status: int, content: bytes) -> bytes:
    """It says that the connection is closed after it: a client that sent its next request on that
    connection would see it break."""
    head = (
        b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
        b"Connection: close\r\n\r\n"
    )
    return head % (status, len(content)) + content


def error(status: int) -> bytes:
    return answer(status, error_json(status))


def error_json(status: int, message: str = "no") -> bytes:
    body = {"message": message, "type": "T", "param": None, "code": status}
    return json.dumps({"error": body}).encode()
