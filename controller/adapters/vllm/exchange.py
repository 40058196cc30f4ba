"""One HTTP request and its answer, as the gate lets them pass.

In: the body is read once, up to a limit, and then given to the app in one piece. Out: an error
of the app leaves in our shape (error_bodies.py), also within a stream. When the deadline
passes, the app is told that the client has left, as that is what makes vLLM abort; what it
still sends is dropped, and the client gets the error.
"""

import asyncio
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from controller.adapters.vllm.error_bodies import (
    EVENT_PREFIX,
    error_body,
    error_event,
    reshape,
    reshape_event,
)

RETRY_AFTER_S = 1
# Between two pieces of a body; a slow sender holds a place among the live requests.
BODY_WAIT_S = 60.0
# Of an app's error body no more than this is looked at.
MAX_ERROR_BYTES = 1 << 20
DISCONNECT: Message = {"type": "http.disconnect"}


class RefusedError(Exception):
    """Answered with this status and message."""

    def __init__(self, status: HTTPStatus, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param = status, message, param


class ClientLeftError(Exception):
    """Before its request was complete; nobody is there to be answered."""


class Exchange:
    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.headers: Mapping[bytes, bytes] = dict(scope["headers"])
        self.timed_out = False
        self._what = f"{scope['method']} {scope['path']}"
        self._receive = receive
        self._send = send
        self._deadline_s: float | None = None
        self._body: bytes | None = None
        self._error: Message | None = None
        self._error_body = b""
        self._started = self._streams = self._ended = False

    # -- in ------------------------------------------------------------------------------

    def set_deadline(self, timeout_s: float | None) -> None:
        if timeout_s is not None:
            self._deadline_s = asyncio.get_running_loop().time() + timeout_s

    async def read_body(self, max_bytes: int) -> bytes:
        """Raises RefusedError (413, 408) and ClientLeftError."""
        too_large = RefusedError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body is larger than {max_bytes} bytes"
        )
        length = self.headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > max_bytes:
            raise too_large
        pieces: list[bytes] = []
        num_bytes = 0
        more = True
        while more:
            try:
                async with asyncio.timeout(BODY_WAIT_S):
                    message = await self._receive()
            except TimeoutError:
                raise RefusedError(
                    HTTPStatus.REQUEST_TIMEOUT, f"no more of the body came for {BODY_WAIT_S:g} s"
                ) from None
            if message["type"] == "http.disconnect":
                raise ClientLeftError
            pieces.append(message.get("body", b""))
            num_bytes += len(pieces[-1])
            if num_bytes > max_bytes:
                raise too_large
            more = message.get("more_body", False)
        self._body = b"".join(pieces)
        return self._body

    async def receive(self) -> Message:
        """For the app: the body, once, and then whether the client has left."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        if self._deadline_s is None:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._deadline_s):
                return await self._receive()
        except TimeoutError:
            self.timed_out = True
            return DISCONNECT

    # -- out -----------------------------------------------------------------------------

    async def send(self, message: Message) -> None:
        """For the app."""
        if self.timed_out or self._ended:
            return
        if message["type"] == "http.response.start":
            if message["status"] >= HTTPStatus.BAD_REQUEST:
                self._error = message
                return
            self._started = True
            self._streams = _content_type(message).startswith(b"text/event-stream")
            await self._send(message)
        elif self._error is not None:
            if len(self._error_body) <= MAX_ERROR_BYTES:
                self._error_body += message.get("body", b"")
            if not message.get("more_body", False):
                await self._send_error(self._error)
        else:
            body = message.get("body", b"")
            if self._streams and body.startswith(EVENT_PREFIX):
                message = {**message, "body": reshape_event(body)}
            self._ended = not message.get("more_body", False)
            await self._send(message)

    async def refuse(self, refused: RefusedError) -> None:
        await self._answer(
            refused.status, error_body(refused.status, refused.message, refused.param), []
        )

    async def fail(self, status: HTTPStatus, message: str) -> None:
        """An answer where there is none yet, the end of a stream; nothing can mend half of
        anything else."""
        self.timed_out = False
        if self._ended:
            return
        if not self._started:
            await self.refuse(RefusedError(status, message))
        elif self._streams:
            self._ended = True
            await self._send({"type": "http.response.body", "body": error_event(status, message)})

    async def _send_error(self, start: Message) -> None:
        body = reshape(start["status"], self._error_body, self._what)
        kept = [
            (name, value)
            for name, value in start.get("headers", ())
            if name.lower() not in (b"content-type", b"content-length", b"retry-after")
        ]
        await self._answer(start["status"], body, kept)

    async def _answer(self, status: int, body: bytes, headers: list[Any]) -> None:
        headers = [
            *headers,
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
        ]
        if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
            headers.append((b"retry-after", b"%d" % RETRY_AFTER_S))
        if status == HTTPStatus.UNAUTHORIZED:
            headers.append((b"www-authenticate", b"Bearer"))
        self._started = self._ended = True
        await self._send({"type": "http.response.start", "status": int(status), "headers": headers})
        await self._send({"type": "http.response.body", "body": body})


def _content_type(start: Message) -> bytes:
    return next((v for k, v in start.get("headers", ()) if k.lower() == b"content-type"), b"")
