"""One HTTP request and its answer, as they pass the gate.

The request: its body is read once, up to a limit and within a time, and then given to the app in
one piece. The answer: an error of the app is sent in our shape (answers.py), also within a stream.
The head of a stream waits until the request has an instance (`Placing`), because a request may wait
for minutes and then be refused, and then the status of the answer has to say so. When the deadline
passes, the app is told that the client has left, which makes vLLM abort the request. Further output
of the app is dropped, and the client gets an error."""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from controller.adapters.vllm.endpoint.answers import (
    ANTHROPIC_EVENT_PREFIX,
    EVENT_PREFIX,
    error_body,
    event_status,
    last_events,
    reshape,
    reshape_event,
)
from controller.adapters.vllm.endpoint.headers import RefusedError, receipt_headers
from controller.core.record.request_record import ENDED, RequestRecord
from controller.core.record.request_spans import receipt_of
from controller.ports.processes import RequestTrace
from controller.runtime.frontend.request_book import RecordNow

log = logging.getLogger(__name__)

# A body may take BODY_WAIT_S, and in addition the time that the bytes received so far need at this
# rate: 92 s at most for 2 MiB.
BODY_WAIT_S = 60.0
BODY_BYTES_PER_S = 64 * 1024
# These first bytes of a body do not count in `BodyRoom`, because the server holds that many for
# every connection anyway. So small requests are read even when large ones have filled the room.
FREE_BODY_BYTES = 64 * 1024
MAX_LENGTH_DIGITS = 20
# At most about this much of an error body from the app is kept.
MAX_ERROR_BYTES = 1 << 20
# Some streams begin before their request has an instance: Responses says twice that it was created.
# If a stream has more messages than this, it has no request to wait for.
MAX_EARLY_MESSAGES = 8
# The trace of an answer that was cut is made this much later, when its requests have ended.
SETTLE_S = 0.2
DISCONNECT: Message = {"type": "http.disconnect"}


class Placing:
    """Whether the engine requests of an HTTP request are placed on instances. There is one engine
    request for each prompt; the choices of `n` > 1 count as one. `on_placed` is called each time
    that all engine requests begun so far are placed."""

    def __init__(self, on_placed: Callable[[], Awaitable[None]]) -> None:
        self._on_placed: Callable[[], Awaitable[None]] | None = on_placed
        self._error: Exception | None = None
        self._num_waiting = 0
        self.any_placed = False
        self.refusal: RefusedError | None = None
        """Why the first refused engine request was refused."""
        self.records: list[RecordNow] = []
        """What gives the record of each engine request."""
        self.trace: RequestTrace | None = None
        """The trace of the HTTP request; None if traces are off."""
        self._grammars_s, self._num_grammars = 0.0, 0

    def began(self) -> None:
        self._num_waiting += 1

    async def placed(self) -> None:
        self.any_placed = True
        self._num_waiting -= 1
        if self._num_waiting == 0 and self._on_placed is not None:
            await self._on_placed()

    def follows_grammar(self, step_s: float, most_s: float) -> None:
        """Notes that another answer to the request follows a grammar, which takes `step_s` of CPU
        time for a token. Raises RefusedError if all together take too much."""
        self._grammars_s += step_s
        self._num_grammars += 1
        if self._num_grammars > 1 and self._grammars_s > most_s:
            raise RefusedError(
                HTTPStatus.BAD_REQUEST,
                f"the grammar takes {step_s * 1000:.0f} ms a token for each answer to this request,"
                f" more than {most_s:g} s in all; ask for fewer at a time",
            )

    def refused(self, refusal: RefusedError, error: Exception | None = None) -> None:
        """Notes that an engine request was refused. `error`: the exception by which vLLM is
        told."""
        self.refusal, self._error = self.refusal or refusal, self._error or error

    def close(self) -> None:
        """Called when the answer is over. It drops the callback and the error's traceback, which
        both refer back to this object. Without this, some 90 objects of each refused request stayed
        until the garbage collector ran, which may be after tens of thousands of requests."""
        self.records = []
        self._on_placed = None
        if self._error is not None:
            self._error.__traceback__ = None


PLACING: ContextVar[Placing | None] = ContextVar("placing", default=None)
"""The placing of the HTTP request that is being answered by this task, or by the task that started
this one."""


class ClientLeftError(Exception):
    """The client left before its request was complete, so there is nobody to answer."""


class BodyRoom:
    """Limits the size of all bodies that are being read, without the first FREE_BODY_BYTES of
    each."""

    def __init__(self, num_bytes: int) -> None:
        self.num_free_bytes = num_bytes

    def take(self, num_bytes: int) -> None:
        """Takes room for these bytes. Raises RefusedError (429) if there is too little."""
        if num_bytes > self.num_free_bytes:
            raise RefusedError(
                HTTPStatus.TOO_MANY_REQUESTS,
                "this frontend receives too many large requests already; send it again",
            )
        self.num_free_bytes -= num_bytes

    def give_back(self, num_bytes: int) -> None:
        self.num_free_bytes += num_bytes


@dataclass(slots=True)
class Upload:
    """A body that the app reads itself."""

    begun_s: float
    max_bytes: int
    too_large: RefusedError
    num_bytes: int = 0
    refusal: RefusedError | None = None
    """Why the rest of the body is not read."""


class Exchange:
    def __init__(
        self, scope: Scope, receive: Receive, send: Send, *, receipts: bool = False
    ) -> None:
        """`receipts`: whether the answer says in headers how its request was served."""
        self.headers: Mapping[bytes, bytes] = dict(scope["headers"])
        self.timed_out = False
        self._method, self._path = scope["method"], scope["path"]
        self._receive = receive
        self._send = send
        self._receipts = receipts
        self._status: int | None = None
        """The status of the answer, once it has begun."""
        self._why_cut = ""
        self._timeout_s = self._deadline_s = math.inf
        self._body: bytes | None = None
        self._upload: Upload | None = None
        self._error: Message | None = None
        self._error_body = b""
        self._started = self._streams = self._ended = self._cut = False
        self.placing = Placing(self._let_head_go)
        self._held: list[Message] = []
        """The head of a stream while it waits, and the messages behind it."""
        self._head_goes = asyncio.Lock()

    # -- in ------------------------------------------------------------------------------

    def set_deadline(self, timeout_s: float | None) -> None:
        if timeout_s is not None:
            self._timeout_s = timeout_s
            self._deadline_s = asyncio.get_running_loop().time() + timeout_s

    @property
    def overdue(self) -> RefusedError:
        return RefusedError(
            HTTPStatus.GATEWAY_TIMEOUT, f"the request took longer than {self._timeout_s:g} s"
        )

    async def read_body(self, max_bytes: int, room: BodyRoom) -> bytes:
        """Reads the whole body. Raises RefusedError (408, 413, 429, 504) and ClientLeftError."""
        too_large = self._check_length(max_bytes)
        begun_s = asyncio.get_running_loop().time()
        body = bytearray()
        num_taken_bytes = 0
        more = True
        try:
            while more:
                message = await self._next_piece(
                    begun_s + BODY_WAIT_S + len(body) / BODY_BYTES_PER_S
                )
                body += message.get("body", b"")
                if len(body) > max_bytes:
                    raise too_large
                num_more_bytes = max(0, len(body) - FREE_BODY_BYTES) - num_taken_bytes
                room.take(num_more_bytes)
                num_taken_bytes += num_more_bytes
                more = message.get("more_body", False)
        finally:
            room.give_back(num_taken_bytes)
        self._body = bytes(body)
        return self._body

    def _check_length(self, max_bytes: int) -> RefusedError:
        """Raises RefusedError if the body says that it is larger; else returns this error."""
        too_large = RefusedError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body is larger than {max_bytes} bytes"
        )
        # Python cannot read a number of more than 4,300 digits, even if they are zeros.
        length = self.headers.get(b"content-length", b"").lstrip(b"0")
        if len(length) > MAX_LENGTH_DIGITS or (length.isdigit() and int(length) > max_bytes):
            raise too_large
        return too_large

    def let_app_read(self, max_bytes: int) -> None:
        """Lets the app read the body piece by piece, with the same limits of size and time. If the
        body exceeds a limit, the app is told that the client has left, and what it answers is
        dropped; `upload_refusal` then says why. Raises RefusedError (413)."""
        too_large = self._check_length(max_bytes)
        self._upload = Upload(asyncio.get_running_loop().time(), max_bytes, too_large)

    @property
    def upload_refusal(self) -> RefusedError | None:
        return self._upload.refusal if self._upload else None

    async def _next_of_upload(self, upload: "Upload") -> Message:
        until_s = upload.begun_s + BODY_WAIT_S + upload.num_bytes / BODY_BYTES_PER_S
        try:
            message = await self._next_piece(until_s)
        except ClientLeftError:
            return DISCONNECT
        except RefusedError as refused:
            upload.refusal = refused
            return DISCONNECT
        upload.num_bytes += len(message.get("body", b""))
        if upload.num_bytes > upload.max_bytes:
            upload.refusal = upload.too_large
            self._cut = True
            return DISCONNECT
        if not message.get("more_body", False):
            self._upload = None
        return message

    async def _next_piece(self, until_s: float) -> Message:
        try:
            async with asyncio.timeout_at(min(until_s, self._deadline_s)):
                message = await self._receive()
        except TimeoutError:
            self._cut = True
            if self._deadline_s <= until_s:
                raise self.overdue from None
            raise RefusedError(HTTPStatus.REQUEST_TIMEOUT, "the body comes too slowly") from None
        if message["type"] == "http.disconnect":
            raise ClientLeftError
        return message

    async def receive(self) -> Message:
        """Called by the app. It first returns the body, and later tells the app when the client has
        left."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        if self._upload is not None:
            return DISCONNECT if self._upload.refusal else await self._next_of_upload(self._upload)
        if self._deadline_s == math.inf:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._deadline_s):
                return await self._receive()
        except TimeoutError:
            self.timed_out = True
            return DISCONNECT

    # -- out -----------------------------------------------------------------------------

    async def send(self, message: Message) -> None:
        """Called by the app with each message of its answer."""
        if self.timed_out or self._ended or self.upload_refusal:
            return
        if message["type"] == "http.response.start":
            if message["status"] >= HTTPStatus.BAD_REQUEST:
                self._error = message
                return
            self._streams = _content_type(message).startswith(b"text/event-stream")
            if self._streams and not self.placing.any_placed:
                self._held.append(message)
                return
            await self._begin(message)
        elif self._error is not None:
            if len(self._error_body) <= MAX_ERROR_BYTES:
                self._error_body += message.get("body", b"")
            if not message.get("more_body", False):
                await self._send_error(self._error)
        else:
            body = message.get("body", b"")
            if self._streams and body.startswith(EVENT_PREFIX):
                message = {**message, "body": reshape_event(body)}
            if not self._held or not await self._wait_with_head(message):
                self._ended = not message.get("more_body", False)
                await self._send(message)

    async def _wait_with_head(self, message: Message) -> bool:
        """Returns True if this message need not be sent any more, because it waits with the head or
        an error was sent in place of the head. Otherwise the head has been sent."""
        if self.placing.refusal is not None:
            await self.refuse(self.placing.refusal)
            return True
        if message.get("body", b"").startswith((EVENT_PREFIX, ANTHROPIC_EVENT_PREFIX)):
            status, body = event_status(message["body"])
            await self._answer(status, body, [])
            return True
        is_early = not self.placing.any_placed and len(self._held) <= MAX_EARLY_MESSAGES
        if is_early and message.get("more_body", False):
            self._held.append(message)
            return True
        await self._let_head_go()
        return False

    async def _let_head_go(self) -> None:
        """Sends the head and the messages behind it. No other message overtakes them, whichever
        task sends it."""
        async with self._head_goes:
            while self._held and not self._ended:
                if self._started:
                    await self._send(self._held[0])
                else:
                    await self._begin(self._held[0])
                del self._held[0]

    async def _begin(self, start: Message) -> None:
        """Sends the head of the answer, with the receipt as of now."""
        self._started, self._status = True, int(start["status"])
        if self._receipts and (receipt := receipt_of(self._records())) is not None:
            told = receipt_headers(receipt, is_over=not self._streams)
            start = {**start, "headers": [*start.get("headers", ()), *told]}
        await self._send(start)

    def _records(self) -> Sequence[RequestRecord]:
        return [record() for record in self.placing.records]

    def close(self) -> None:
        """Called when the answer is over, or its client is gone."""
        if self.placing.trace is None:
            self.placing.close()
        elif all(record.state in ENDED for record in self._records()):
            self._end_trace(time.time())
        else:  # vLLM is about to abort what an answer that was cut has left
            asyncio.get_running_loop().call_later(SETTLE_S, self._end_trace, time.time())

    def _end_trace(self, end_s: float) -> None:
        assert self.placing.trace is not None
        try:
            self.placing.trace.end(self._status, self._records(), end_s, self._why_cut)
        except Exception:
            log.exception("the trace of %s %s was lost", self._method, self._path)
        self.placing.close()

    async def refuse(self, refused: RefusedError) -> None:
        body = error_body(refused.status, refused.message, refused.param, self._path)
        await self._answer(refused.status, body, [], refused.retry_after_s)

    async def fail(self, status: HTTPStatus, message: str) -> None:
        """Sends an error as the answer, or as the end of a stream that has begun. Any other answer
        that has begun stays incomplete."""
        self.timed_out = False
        if self._ended:
            return
        self._why_cut = message
        if not self._started:
            await self.refuse(self.placing.refusal or RefusedError(status, message))
        elif self._streams:
            self._ended = True
            last = last_events(status, message, self._path)
            await self._send({"type": "http.response.body", "body": last})

    async def _send_error(self, start: Message) -> None:
        body = reshape(start["status"], self._error_body, self._method, self._path)
        kept = [
            (name, value)
            for name, value in start.get("headers", ())
            if name.lower() not in (b"content-type", b"content-length", b"retry-after")
        ]
        refusal = self.placing.refusal
        told = refusal is not None and refusal.status == start["status"]
        await self._answer(
            start["status"], body, kept, refusal.retry_after_s if refusal and told else 1
        )

    async def _answer(
        self, status: int, body: bytes, headers: list[Any], retry_after_s: int = 1
    ) -> None:
        headers = [
            *headers,
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
        ]
        if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
            headers.append((b"retry-after", b"%d" % retry_after_s))
        if status == HTTPStatus.UNAUTHORIZED:
            headers.append((b"www-authenticate", b"Bearer"))
        if self._cut:  # the rest of the body may never come
            headers.append((b"connection", b"close"))
        self._ended, self._streams = True, False
        self._held.clear()
        await self._begin(
            {"type": "http.response.start", "status": int(status), "headers": headers}
        )
        await self._send({"type": "http.response.body", "body": body})


def _content_type(start: Message) -> bytes:
    return next((v for k, v in start.get("headers", ()) if k.lower() == b"content-type"), b"")


class Turns:
    """Spreads callers that come at once over several turns of the event loop, in the order in which
    they came, so that running streams continue in between."""

    def __init__(self, per_turn: int) -> None:
        """`per_turn`: how many callers may begin in one turn of the event loop."""
        self._per_turn = per_turn
        self._num_taken = 0
        """How many callers have begun in this turn."""
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        """Returns at once for the first callers in a turn of the event loop, and in a later turn
        for the others."""
        loop = asyncio.get_running_loop()
        if self._num_taken == 0:
            loop.call_soon(self._begin, loop)
        if self._num_taken < self._per_turn:
            self._num_taken += 1
            return
        turn = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._num_taken = 0
        while self._waiting and self._num_taken < self._per_turn:
            turn = self._waiting.popleft()
            if not turn.done():  # else its caller was cancelled
                turn.set_result(None)
                self._num_taken += 1
        if self._num_taken:
            loop.call_soon(self._begin, loop)
