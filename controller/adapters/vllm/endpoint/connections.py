"""Closes connections, but never under a request that is on its way.

A client that sends its next request while the server closes the idle connection gets no answer,
and cannot know whether the request was carried out. uvicorn closes after 5 idle seconds, which is
also when httpx's pool gives a connection up: of 6,000 requests on used connections 518 were lost.
So connections are kept for longer than clients and load balancers keep theirs; when there are too
many, an answer announces that it is its connection's last, by `Connection: close`.

Touch points (uvicorn 0.54): protocols/http/httptools_impl.py `HttpToolsProtocol`, its `cycle`,
`connections`, `shutdown`, `timeout_keep_alive_handler`, `send_400_response`, `ws_protocol_class`,
`parser`, which is httptools' (`should_upgrade`).
"""

import asyncio
import resource
import select
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from controller.adapters.vllm.endpoint.error_bodies import error_body

# Load balancers keep an idle connection for up to 600 s, clients' pools for 5 to 300 s.
KEEP_ALIVE_S = 620
# A connection with a request on its way is looked at again after this.
AGAIN_S = 1.0
# While the server ends, a client that has just connected may still send a request for so long.
FIRST_REQUEST_S = 1.0
MAX_KEPT = 4096
# A client that sends its request's head byte by byte holds a descriptor, but not for longer.
HEAD_TIMEOUT_S = 60.0


@dataclass(slots=True)
class KeepAlive:
    """Makes uvicorn's protocol for each connection. Connections end with their answer while there
    are more than `max_kept`, or when the server `ends`."""

    max_kept: int
    ends: bool = False

    def __call__(self, **options: Any) -> "Connection":
        return Connection(self, **options)


class Connection(HttpToolsProtocol):
    def __init__(self, keep_alive: KeepAlive, **options: Any) -> None:
        super().__init__(**options)
        # Nothing here speaks WebSocket; a POST that asks for it would get no answer.
        self.ws_protocol_class = None
        self._keep_alive = keep_alive
        self._in_headers = False
        self._head_timer: asyncio.TimerHandle | None = None

    # uvicorn's method, too, takes a Transport where asyncio's takes any BaseTransport.
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_head(HEAD_TIMEOUT_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_more()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        self._in_headers = True
        self._wait_for_head(HEAD_TIMEOUT_S)
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._wait_no_more()
        before = self.cycle
        super().on_headers_complete()
        rule = self._keep_alive
        is_last = rule.ends or len(self.connections) > rule.max_kept
        # After an upgrade's head the parser takes all further bytes for the other protocol.
        if self.cycle is not before and (is_last or self.parser.should_upgrade()):
            self.cycle.keep_alive = False  # its answer says so

    def send_400_response(self, msg: str) -> None:
        """Bytes that are no HTTP never reach the gate; the answer has the shape of other errors."""
        self._refuse(HTTPStatus.BAD_REQUEST, msg)

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        body = error_body(status, why)
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

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
        """The server ends. A request that has come is answered, which closes the connection; a
        client that has just connected may still send its first request."""
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
        """Whether a request has begun to arrive, perhaps only in the kernel."""
        if self._in_headers:
            return True
        found = self.transport.get_extra_info("socket")
        if self.transport.is_closing() or found is None or found.fileno() < 0:
            return False
        poll = select.poll()
        poll.register(found.fileno(), select.POLLIN)
        return bool(poll.poll(0))


def max_kept_connections() -> int:
    """At most half of the descriptors; the others are for connections in use."""
    may_open, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_KEPT if may_open == resource.RLIM_INFINITY else min(MAX_KEPT, may_open // 2)
