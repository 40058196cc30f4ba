"""Who may call the control API, and how large a body may be.

The control token may do everything, the view token may look (GET). Browsers are refused: a page
that makes a browser call here gives itself away by an Origin, or by a foreign Host.
"""

import hmac
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from controller.adapters.http.errors import error_response
from controller.api.hosts import is_own_host, own_names

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 65_536
MAX_DIGITS = len(str(MAX_BODY_BYTES))
# Where such a header is given twice, one reader takes the first and another the last.
ONCE = (b"authorization", b"content-length", b"host", b"idempotency-key", b"origin")
# Refused calls are counted, and the log tells of them at most this often.
TELL_EVERY_S = 60.0
LOOKING = ("GET", "HEAD")

OnRefused = Callable[[Scope, str], Awaitable[None]]


class Guard:
    """`on_refused` is called when the holder of the view token asks for more than to look,
    `on_acted` before whoever asked for more gets his answer."""

    def __init__(
        self,
        app: ASGIApp,
        control_token: str,
        view_token: str,
        host: str,
        on_refused: OnRefused,
        on_acted: Callable[[], None],
    ) -> None:
        self._app = app
        self._control = f"Bearer {control_token}".encode()
        self._view = f"Bearer {view_token}".encode()
        self._own_hosts = own_names([host])
        self._on_refused = on_refused
        self._on_acted = on_acted
        self._refused: Counter[str] = Counter()
        self._told_s = float("-inf")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        refusal = self._refusal(scope)
        if refusal is None:
            looks = scope["method"] in LOOKING
            await self._app(scope, _limited(receive), send if looks else self._telling(send))
            return
        status, code, message = refusal
        if code == "view_only":
            await self._on_refused(scope, code)
        else:
            self._count(code)
        hint = "" if code == "too_large" else "llumctl status"
        await error_response(status, code, message, hint)(scope, receive, send)

    def _telling(self, send: Send) -> Send:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._on_acted()
            await send(message)

        return sending

    def _refusal(self, scope: Scope) -> tuple[int, str, str] | None:
        names = [name for name, _ in scope["headers"]]
        if any(names.count(name) > 1 for name in ONCE):
            return 400, "ambiguous", "a header is given more than once"
        headers = dict(scope["headers"])
        given = headers.get(b"authorization", b"")
        if not given:
            return 401, "no_token", "the control API wants a bearer token"
        if b"origin" in headers:
            return 403, "foreign_origin", "the control API is not for browsers"
        if not is_own_host(headers.get(b"host", b"").decode("latin-1"), self._own_hosts):
            return 403, "foreign_host", "this Host is not the control API's"
        if not hmac.compare_digest(given, self._control):
            if not hmac.compare_digest(given, self._view):
                return 403, "bad_token", "this is not the cluster's control token"
            if scope["method"] not in LOOKING:
                return 403, "view_only", "this token may look, not act"
        # Python reads no number of more than 4,300 digits, not even of zeros.
        length = headers.get(b"content-length", b"0").lstrip(b"0") or b"0"
        if not length.isdigit() or len(length) > MAX_DIGITS or int(length) > MAX_BODY_BYTES:
            return 413, "too_large", f"a body may have {MAX_BODY_BYTES} bytes"
        return None

    def _count(self, code: str) -> None:
        self._refused[code] += 1
        now_s = time.monotonic()
        if now_s - self._told_s >= TELL_EVERY_S:
            self._told_s = now_s
            log.warning("calls refused so far: %s", dict(self._refused))


class BodyTooLargeError(Exception):
    """A body that named no length is over the limit."""


def _limited(receive: Receive) -> Receive:
    num_bytes = 0

    async def receiving() -> Message:
        nonlocal num_bytes
        message = await receive()
        num_bytes += len(message.get("body", b""))
        if num_bytes > MAX_BODY_BYTES:
            raise BodyTooLargeError
        return message

    return receiving
