"""Small servers for tests: an OpenAI endpoint that answers as an emulated engine does, or as it is
told not to."""

import asyncio
import contextlib
import json
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from controller.api import token_sequence

MODEL = "fake"


@dataclass
class Behaviour:
    """Of one answer. `edit` changes the tokens; counts of events after which it goes wrong."""

    edit: Callable[[list[int]], list[int]] = lambda tokens: tokens
    status: int = 200
    error_after: int | None = None
    break_after: int | None = None
    wait_before_first: asyncio.Event | None = None


class LocalServer:
    """Serves HTTP from this process; how it answers is its subclass's."""

    url = ""
    num_connections = 0
    tls: ssl.SSLContext | None = None

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answers one request. Returns whether the connection stays open."""
        raise NotImplementedError

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Self]:
        tasks: set[asyncio.Task[None]] = set()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.add(task)
            self.num_connections += 1
            ends = (OSError, asyncio.IncompleteReadError, ValueError, asyncio.CancelledError)
            with contextlib.suppress(*ends):
                while await self.answer(reader, writer):
                    pass
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()
            tasks.discard(task)

        server = await asyncio.start_server(connected, "127.0.0.1", 0, limit=1 << 26, ssl=self.tls)
        scheme = "https" if self.tls else "http"
        self.url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await server.wait_closed()

    @contextmanager
    def in_thread(self) -> Iterator[Self]:
        """For callers that run a loop of their own."""
        started, stop = threading.Event(), asyncio.Event()
        loop = asyncio.new_event_loop()

        async def main() -> None:
            async with self.serving():
                started.set()
                await stop.wait()

        thread = threading.Thread(target=loop.run_until_complete, args=(main(),))
        thread.start()
        assert started.wait(10)
        try:
            yield self
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join()
            loop.close()


@dataclass
class FakeServer(LocalServer):
    """`bodies` of all completions in the order in which they came."""

    behave: Callable[[int], Behaviour] = lambda _: Behaviour()
    context: int | None = 8192
    api_key: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
        raw = await reader.readexactly(int(headers.get("content-length", 0)))
        if self.api_key and headers.get("authorization") != f"bearer {self.api_key}":
            write_json(writer, 401, {"error": "no"})
        elif head.startswith("GET /v1/models "):
            write_json(writer, 200, {"data": [{"id": MODEL, "max_model_len": self.context}]})
        else:
            body = json.loads(raw)
            self.bodies.append(body)
            return await self._complete(writer, body, self.behave(len(self.bodies) - 1))
        return True

    async def _complete(
        self, writer: asyncio.StreamWriter, body: dict[str, Any], behaviour: Behaviour
    ) -> bool:
        if behaviour.status != 200:
            write_json(writer, behaviour.status, {"error": {"message": "no instance"}})
            return True
        if behaviour.wait_before_first is not None:
            await behaviour.wait_before_first.wait()
        start = token_sequence.start(body["prompt"])
        tokens = [token_sequence.token(start, i) for i in range(body["max_tokens"])]
        tokens = behaviour.edit(tokens)
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        for number, token in enumerate(tokens):
            if number == behaviour.error_after:
                error = {"message": "the instance died", "code": 503}
                _write_events(writer, json.dumps({"error": error}), "[DONE]")
                writer.write(b"0\r\n\r\n")
                return True
            if number == behaviour.break_after:
                return False
            finish = "length" if number == len(tokens) - 1 else None
            choice = {"index": 0, "text": " w", "finish_reason": finish, "token_ids": [token]}
            _write_events(writer, json.dumps({"choices": [choice]}))
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": len(tokens)}
        _write_events(writer, json.dumps({"choices": [], "usage": usage}), "[DONE]")
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


def _write_events(writer: asyncio.StreamWriter, *events: str) -> None:
    for event in events:
        data = f"data: {event}\n\n".encode()
        writer.write(b"%x\r\n%s\r\n" % (len(data), data))


def write_json(writer: asyncio.StreamWriter, status: int, body: object) -> None:
    raw = json.dumps(body).encode()
    writer.write(
        b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
        % (status, len(raw), raw)
    )
