"""Bounds on uvicorn's connections that apply before a key or a token is known, and an orderly end
of connections. The endpoint and the control API both use them; uvicorn itself lacks them.

**Bounds.** Anyone who reaches the port may send the head of a request, so the size of a head and
the time that it may take are bounded. The bytes around a body are bounded too: extensions of
chunks, trailers, blank lines. Trailers are dropped, because uvicorn appends them to headers that
the gate may have judged already. When an answer has been sent before its body has arrived in full,
the rest of the body is read and dropped, up to a limit of bytes and time: a client that is still
sending would not read the answer. Where the number of connections is limited and exceeded, the
oldest connection without a request under way is closed. So a client that opens many connections
does not keep other clients out.

**Other protocols.** An offer to continue in another protocol (`Upgrade: h2c`, which Java's client
adds to each request) is ignored, as HTTP allows. The parser cannot ignore it: it takes the bytes
after that head for the other protocol. So a new parser gets the same head without the offer. A
client of HTTP/1.0, which does not know chunks, gets a stream that ends with the connection.

**End.** A connection is never closed while a request on it is under way.

A client that sends its next request while the server closes the idle connection gets no answer, and
cannot know whether the request was carried out. uvicorn closes a connection after 5 idle seconds,
and httpx's pool drops its connections after the same time: of 6,000 requests on connections that
had been used before, 518 were lost. So connections are kept for longer than clients and load
balancers keep theirs. When there are too many connections, an answer says by `Connection: close`
that it is the last one on its connection.

Touch points (uvicorn 0.54): protocols/http/httptools_impl.py `HttpToolsProtocol`, its `cycle`,
`pipeline`, `connections`, `shutdown`, `timeout_keep_alive_handler`, `ws_protocol_class`, its
callbacks of the `parser`, which is httptools', and `RequestResponseCycle`, its
`chunked_encoding`."""

import asyncio
import resource
import select
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import httptools
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

# Load balancers keep an idle connection for up to 600 s, clients' pools for 5 to 300 s.
KEEP_ALIVE_S = 620
# A connection whose request is under way is checked again after this time.
AGAIN_S = 1.0
# While the server ends, a client that has just connected may still send a request for this long.
FIRST_REQUEST_S = 1.0
MAX_KEPT = 4096
# A client that sends its request's head byte by byte occupies a descriptor for at most this long.
HEAD_TIMEOUT_S = 60.0
# The limit for the request line and the headers together; other servers allow 8 to 64 KiB. An
# unfinished header counts from the second read on. One read gets up to 256 KiB, so a single
# unfinished header may be that long.
MAX_HEAD_BYTES = 64 * 1024
# The separators around a header have this many bytes. They count even for a header without a value.
HEADER_EXTRA_BYTES = 4
# For each byte of a body, this many bytes outside it are allowed. The shortest chunk has one byte
# of the body and five bytes around it.
EXTRA_PER_BODY_BYTE = 16
# Clients finish sending a body before they read the answer that it is too large.
MAX_DROPPED_BYTES = 64 * 1024 * 1024
# After a refusal the rest of the request is read for this long: if the connection were closed with
# unread bytes, the kernel would discard the answer.
LINGER_S = 2.0
# How many requests may wait for the answers to earlier requests on the same connection.
MAX_PIPELINED = 64
# The headers of an offer to continue in another protocol. Without `Upgrade` there is no offer.
OFFER = frozenset({b"upgrade", b"http2-settings"})

HEAD_TOO_LARGE = f"the request's headers have more than {MAX_HEAD_BYTES} bytes"
URL_TOO_LONG = f"the request's URL has more than {MAX_HEAD_BYTES} bytes"


class NotReadError(Exception):
    """The server must read no further bytes of this client."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


@dataclass(slots=True)
class KeepAlive:
    """Makes uvicorn's protocol object for each connection. While there are more than `max_kept`
    connections, or once the server `ends`, a connection is closed after its next answer.
    `error_body` makes the JSON of an error from a status and a message. `max_open`: the largest
    number of connections; None: only the number of descriptors limits it."""

    max_kept: int
    error_body: Callable[[int, str], bytes]
    max_open: int | None = None
    ends: bool = False

    def __call__(self, **options: Any) -> "Connection":
        return Connection(self, **options)


class Connection(HttpToolsProtocol):
    def __init__(self, keep_alive: KeepAlive, **options: Any) -> None:
        super().__init__(**options)
        self.ws_protocol_class = None
        self._keep_alive = keep_alive
        self._in_headers = False
        self._head_timer: asyncio.TimerHandle | None = None
        self._num_head_bytes = 0
        """How many bytes of the present request's head (URL and headers) have been parsed so far. A
        header counts once it is complete, with `HEADER_EXTRA_BYTES` added."""
        self._num_extra_bytes = 0
        """How many bytes outside bodies have come since the read in which the request began."""
        self._num_dropped_bytes = 0
        """How many bytes were read and dropped, after the answer was sent or the request was
        refused."""
        self._is_deaf = False
        """Whether all further bytes are dropped. The connection then ends when its requests are
        answered."""
        self._opened_s = self.loop.time()

    # uvicorn's method also takes a Transport where asyncio's takes any BaseTransport.
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_head(HEAD_TIMEOUT_S)
        max_open = self._keep_alive.max_open
        if max_open is not None and len(self.connections) > max_open:
            self._show_one_out()

    def _show_one_out(self) -> None:
        """Closes the oldest connection without a request under way. The connection that has just
        been made is spared: it has no request yet."""
        waiting = [
            each
            for each in self.connections
            if isinstance(each, Connection) and not each.transport.is_closing() and each.is_idle
        ]
        oldest = min(waiting, key=lambda each: each._opened_s)
        oldest.transport.close()

    @property
    def is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_more()
        super().connection_lost(exc)

    # -- receiving --------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            self._drop(len(data))
            return
        self._num_extra_bytes += len(data)
        try:
            self._parse(data)
        except httptools.HttpParserError as error:
            why = error.__context__
            if isinstance(why, NotReadError):
                self._refuse(why.status, why.message)
            else:
                self._refuse(HTTPStatus.BAD_REQUEST, "Invalid HTTP request received.")
            return
        self._num_extra_bytes = max(0, self._num_extra_bytes)
        if self._num_extra_bytes > MAX_HEAD_BYTES:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, HEAD_TOO_LARGE)

    def _parse(self, data: bytes) -> None:
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as offer:
                data = self._head_without_offer() + data[offer.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def _head_without_offer(self) -> bytes:
        version = self.parser.get_http_version().encode()
        lines = [self.parser.get_method() + b" " + self.url + b" HTTP/" + version]
        lines += [name + b": " + value for name, value in self.headers if name not in OFFER]
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def on_message_begin(self) -> None:
        # uvicorn stops this timer as soon as any bytes come. Here only a request stops it, because
        # otherwise blank lines would keep a connection open for ever.
        self._unset_keepalive_if_required()
        self._in_headers = True
        self._num_head_bytes = self._num_extra_bytes = self._num_dropped_bytes = 0
        self._wait_for_head(HEAD_TIMEOUT_S)
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url), HTTPStatus.REQUEST_URI_TOO_LONG, URL_TOO_LONG)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_headers:
            num_bytes = len(name) + len(value) + HEADER_EXTRA_BYTES
            self._count_head(num_bytes, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, HEAD_TOO_LARGE)
            super().on_header(name, value)

    def _count_head(self, num_bytes: int, status: HTTPStatus, why: str) -> None:
        """Adds to the bytes of the head. Raises NotReadError if they are too many."""
        self._num_head_bytes += num_bytes
        if self._num_head_bytes > MAX_HEAD_BYTES:
            raise NotReadError(status, why)

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._wait_no_more()
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise NotReadError(HTTPStatus.METHOD_NOT_ALLOWED, "this server is no proxy")
            return  # the parser will get the same head again, without the offer
        if len(self.pipeline) >= MAX_PIPELINED:
            raise NotReadError(HTTPStatus.TOO_MANY_REQUESTS, "too many requests wait here")
        super().on_headers_complete()
        rule = self._keep_alive
        if rule.ends or len(self.connections) > rule.max_kept:
            self.cycle.keep_alive = False  # the answer tells the client so

    def on_body(self, body: bytes) -> None:
        self._num_extra_bytes -= len(body) * (1 + EXTRA_PER_BODY_BYTE)
        if self.cycle.response_complete:
            self._drop(len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if cycle.scope["http_version"] == "1.0":
            app = _UntilClosed(cycle, app)
        super()._start_asgi_task(cycle, app)

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        """Answers a request that cannot be read, in the shape of other errors, and reads no more
        bytes. If earlier requests on the connection are not answered yet, they are answered first,
        and the last of these answers ends the connection."""
        if self.transport.is_closing():
            return
        self._is_deaf = True
        newest = self.cycle
        is_awaited = newest is not None and not newest.response_complete
        if is_awaited and not newest.more_body:
            newest.keep_alive = False
            return
        if is_awaited and (self.pipeline or newest.response_started):
            self.transport.close()  # the refusal cannot be sent within another answer
            return
        if is_awaited:  # the body of that request stays incomplete
            newest.disconnected = True
            newest.message_event.set()
        body = self._keep_alive.error_body(status, why)
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._wait_no_more()
        self._head_timer = self.loop.call_later(LINGER_S, self.transport.close)

    def _drop(self, num_bytes: int) -> None:
        self._num_dropped_bytes += num_bytes
        if self._num_dropped_bytes > MAX_DROPPED_BYTES:
            self.transport.close()

    # -- ending -----------------------------------------------------------------------

    def _wait_for_head(self, patience_s: float) -> None:
        self._wait_no_more()
        self._head_timer = self.loop.call_later(patience_s, self._head_is_late)

    def _wait_no_more(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()

    def _head_is_late(self) -> None:
        if self._in_headers:
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, "the request's headers came too slowly")
        elif self._has_request():  # the loop was too busy to read the request
            self._wait_for_head(AGAIN_S)
        else:
            self.transport.close()

    def shutdown(self) -> None:
        """Called when the server ends. A request that has arrived is still answered; then the
        connection is closed. A client that has just connected may still send its first request."""
        self._keep_alive.ends = True
        if self.cycle is None:
            later = self.loop.call_later(FIRST_REQUEST_S, self.timeout_keep_alive_handler)
            self.timeout_keep_alive_task = later
        elif not self._has_request():
            super().shutdown()

    def timeout_keep_alive_handler(self) -> None:
        if self._has_request():  # the loop was too busy to read the request
            again = self.loop.call_later(AGAIN_S, self.timeout_keep_alive_handler)
            self.timeout_keep_alive_task = again
        else:
            super().timeout_keep_alive_handler()

    def _has_request(self) -> bool:
        """Whether a request has begun to arrive; its bytes may still be in the kernel's buffer."""
        if self._in_headers:
            return True
        found = self.transport.get_extra_info("socket")
        if self.transport.is_closing() or found is None or found.fileno() < 0:
            return False
        poll = select.poll()
        poll.register(found.fileno(), select.POLLIN)
        return bool(poll.poll(0))


class _UntilClosed:
    """Wraps the app for a client of HTTP/1.0. Without a Content-Length the end of the connection
    marks the end of the answer. uvicorn would send each answer of unknown length in chunks."""

    def __init__(self, cycle: RequestResponseCycle, app: ASGIApp) -> None:
        self._cycle = cycle
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._cycle.chunked_encoding = False

        async def send_plain(message: Message) -> None:
            if message["type"] == "http.response.body":
                self._cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await self._app(scope, receive, send_plain)


def max_kept_connections() -> int:
    """Half of the process's descriptors, so that the other half is left for connections in use."""
    may_open, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_KEPT if may_open == resource.RLIM_INFINITY else min(MAX_KEPT, may_open // 2)
