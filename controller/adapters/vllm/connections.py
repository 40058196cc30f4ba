"""When the endpoint closes a connection: never under a request that is on its way.

A client that sends its next request while the server closes the idle connection gets no answer,
and cannot know whether it was carried out. uvicorn closes after 5 idle seconds, which is also
when httpx's pool gives a connection up: of 6,000 requests on used connections 518 were lost. So
connections are kept for longer than clients and load balancers keep theirs, and where there are
too many the answer before says that it is the last: `Connection: close`.

Touch points (uvicorn 0.54): protocols/http/httptools_impl.py `HttpToolsProtocol`, its `cycle`,
`connections`, `shutdown`, `timeout_keep_alive_handler`, `send_400_response`.
"""

import resource
import select
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from controller.adapters.vllm.error_bodies import error_body

# Load balancers keep an idle connection for up to 600 s, clients' pools for 5 to 300 s.
KEEP_ALIVE_S = 620
# Looked at again after this, where a request was found on its way.
AGAIN_S = 1.0
# After connecting, while the server ends.
FIRST_REQUEST_S = 1.0
MAX_KEPT = 4096


@dataclass(slots=True)
class KeepAlive:
    """Whether connections go on after an answer: not while there are more than `max_kept`, nor
    when the server `ends`. It makes uvicorn's protocol for each connection."""

    max_kept: int
    ends: bool = False

    def __call__(self, **options: Any) -> "Connection":
        return Connection(self, **options)


class Connection(HttpToolsProtocol):
    def __init__(self, keep_alive: KeepAlive, **options: Any) -> None:
        super().__init__(**options)
        self._keep_alive = keep_alive
        self._in_headers = False

    def on_message_begin(self) -> None:
        self._in_headers = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_headers = False
        before = self.cycle
        super().on_headers_complete()
        rule = self._keep_alive
        if self.cycle is not before and (rule.ends or len(self.connections) > rule.max_kept):
            self.cycle.keep_alive = False  # its answer says so

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP never gets to the gate; its answer has the body of every other error."""
        body = error_body(HTTPStatus.BAD_REQUEST, msg)
        head = (
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head % len(body) + body)
        self.transport.close()

    def shutdown(self) -> None:
        """The server ends. A request that is here already is answered, and that closes; a client
        that has just connected may still send its first."""
        self._keep_alive.ends = True
        if self.cycle is None:
            later = self.loop.call_later(FIRST_REQUEST_S, self.timeout_keep_alive_handler)
            self.timeout_keep_alive_task = later
        elif not self._has_request():
            super().shutdown()

    def timeout_keep_alive_handler(self) -> None:
        if self._has_request():  # the loop was too busy to read it
            again = self.loop.call_later(AGAIN_S, self.timeout_keep_alive_handler)
            self.timeout_keep_alive_task = again
        else:
            super().timeout_keep_alive_handler()

    def _has_request(self) -> bool:
        """Whether one has begun to come in, be it only to the kernel."""
        if self._in_headers:
            return True
        found = self.transport.get_extra_info("socket")
        if self.transport.is_closing() or found is None or found.fileno() < 0:
            return False
        poll = select.poll()
        poll.register(found.fileno(), select.POLLIN)
        return bool(poll.poll(0))


def max_kept_connections() -> int:
    """Half of what this process may open stays for connections that are in use."""
    may_open, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_KEPT if may_open == resource.RLIM_INFINITY else min(MAX_KEPT, may_open // 2)
