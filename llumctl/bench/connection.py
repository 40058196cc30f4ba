"""Connections to one endpoint, kept alive between requests; each carries one at a time."""

import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, cast
from urllib.parse import urlsplit

from llumctl.bench import tls
from llumctl.bench.response import Answer, BadAnswerError, ResponseReader

MAX_IDLE_S = 1.0
"""A connection that was idle for longer is not used: other servers close it after 5 s."""


class ExchangeError(Exception):
    """No whole answer came; `kind` says what happened in a word."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An OpenAI endpoint; `base_url` with or without /v1. `api_key` empty: none is sent.
    `certificate`: the file of the only one to believe; empty: see tls.py."""

    base_url: str
    api_key: str = ""
    certificate: str = ""

    def tls(self) -> ssl.SSLContext | None:
        return tls.context(self.base_url, self.certificate)

    def url(self, path: str) -> str:
        return f"{self.base_url.rstrip('/').removesuffix('/v1')}/v1/{path}"

    def encode(self, path: str, body: Mapping[str, Any]) -> bytes:
        """The whole POST request."""
        url = urlsplit(self.url(path))
        content = json.dumps(body, separators=(",", ":")).encode()
        key = f"Authorization: Bearer {self.api_key}\r\n" if self.api_key else ""
        head = (
            f"POST {url.path} HTTP/1.1\r\n"
            f"Host: {url.netloc}\r\n"
            f"{key}"
            "Content-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\n\r\n"
        )
        return head.encode("latin-1") + content


class Connection(asyncio.Protocol):
    """Made by `open`. `exchange` one request after the other."""

    def __init__(self) -> None:
        self.is_open = False
        self.idle_since_s = 0.0
        self._transport: asyncio.Transport
        self._reader: ResponseReader | None = None
        self._ended: asyncio.Future[None]

    @classmethod
    async def open(cls, endpoint: Endpoint) -> Self:
        """Raises ExchangeError."""
        address = urlsplit(endpoint.base_url)
        try:
            context = endpoint.tls()
            _, connection = await asyncio.get_running_loop().create_connection(
                cls,
                address.hostname or "127.0.0.1",
                address.port or (443 if context else 80),
                ssl=context,
            )
        except (OSError, ssl.SSLError) as error:
            reason = error.strerror if error.errno else str(error)
            raise ExchangeError("cannot-connect", reason or type(error).__name__) from error
        return connection

    async def exchange(self, message: bytes, answer: Answer) -> None:
        """Sends `message` and reads what comes back into `answer`, to its end.

        Raises:
            ExchangeError: the connection broke, or what came is no answer. The connection is
                closed then, as it is if this is cancelled.
        """
        self._ended = asyncio.get_running_loop().create_future()
        self._reader = reader = ResponseReader(answer)
        try:
            if not self.is_open:
                raise ExchangeError("broken", "the connection is closed")
            self._transport.write(message)
            await self._ended
        except BaseException:  # what still comes must not reach the next request
            self.close()
            raise
        finally:
            self._reader = None
        if not reader.keeps_alive:
            self.close()
        self.idle_since_s = time.perf_counter()

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        if reader is None:
            return
        try:
            reader.feed(data, time.perf_counter())
        except BadAnswerError as error:
            self._fail(ExchangeError("bad-answer", str(error)))
            self.close()
        else:
            if reader.done and not self._ended.done():
                self._ended.set_result(None)

    def eof_received(self) -> None:
        """The connection closes: None lets the transport do so."""

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        reader = self._reader
        if reader is None or self._ended.done():
            return
        reader.end(time.perf_counter())
        if reader.done:
            self._ended.set_result(None)
        else:
            why = str(error or "closed by the server before the end")
            self._fail(ExchangeError("broken", why))

    def _fail(self, error: ExchangeError) -> None:
        if not self._ended.done():
            self._ended.set_exception(error)


class Pool:
    """As many connections as there are live requests; the one used last is used first."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._idle: list[Connection] = []

    async def exchange(self, message: bytes, answer: Answer, timeout_s: float) -> None:
        """Like Connection.exchange, on any connection; connecting counts to the time as well."""
        try:
            async with asyncio.timeout(timeout_s):
                connection = self._take() or await Connection.open(self._endpoint)
                await connection.exchange(message, answer)
        except TimeoutError:
            raise ExchangeError("timed-out", f"no end within {timeout_s:.0f} s") from None
        if connection.is_open:
            self._idle.append(connection)

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    def _take(self) -> Connection | None:
        with contextlib.suppress(IndexError):
            while True:
                connection = self._idle.pop()
                fresh = time.perf_counter() - connection.idle_since_s < MAX_IDLE_S
                if connection.is_open and fresh:
                    return connection
                connection.close()
        return None
