"""What every call of the control API has in common: who may make it (`Guard`), that it takes effect
only once (`AnswersByKey`), and its answer, which is a model or an error. Errors are small and
always JSON."""

import asyncio
import hashlib
import hmac
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from http import HTTPStatus
from typing import Any, TypeVar

from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from controller.api.errors import LlumctlError
from controller.api.hosts import is_own_host, own_names
from controller.api.wire import ErrorBody, WireModel

log = logging.getLogger(__name__)

Endpoint = Callable[[Request], Coroutine[Any, Any, Response]]
Shown = TypeVar("Shown", bound=WireModel)


def shown(model: type[Shown], value: object, **fields: object) -> Shown:
    """Makes a wire model from `value`: fields of the same name are copied, except for those given
    in `fields`. This takes twice as long as naming each field, some 3 us more, so lists of
    thousands of items name their fields."""
    own = model.model_fields.keys() - fields.keys()
    return model(**{name: getattr(value, name) for name in own if hasattr(value, name)}, **fields)


def json_answer(model: WireModel) -> Response:
    return Response(model.model_dump_json(), media_type="application/json")


def by_method(path: str, **endpoints: Endpoint) -> Route:
    """Makes one route for all methods of a path. If each method had a route of its own, the refusal
    of a method that the path lacks would name only the methods of the first route."""

    async def answer(request: Request) -> Response:
        return await endpoints["GET" if request.method == "HEAD" else request.method](request)

    return Route(path, answer, methods=list(endpoints))


MAX_MESSAGE_CHARS = 500


class ApiError(Exception):
    def __init__(self, status: int, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.body = ErrorBody(code=code, message=message[:MAX_MESSAGE_CHARS], hint=hint)


def no_such_instance(instance_id: str) -> ApiError:
    return ApiError(
        404, "no_such_instance", f"there is no instance {instance_id[:64]!r}", "llumctl status"
    )


def error_response(
    status: int,
    code: str,
    message: str,
    hint: str = "",
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    body = ErrorBody(code=code, message=message[:MAX_MESSAGE_CHARS], hint=hint)
    return JSONResponse(body.model_dump(), status, headers)


async def on_api_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return JSONResponse(error.body.model_dump(), error.status)


async def on_revision_conflict(request: Request, error: Exception) -> Response:
    shown_by = "llumctl set" if request.url.path == "/v1/settings" else "llumctl status"
    return error_response(
        409, "revision_conflict", f"the cluster was changed meanwhile: {error}", shown_by
    )


async def on_failure(_request: Request, error: Exception) -> Response:
    """Answers a call whose operation failed before it changed anything."""
    assert isinstance(error, LlumctlError)
    return error_response(500, "failed", f"{error.message}; nothing was done", error.hint)


def unread_body(status: int, message: str) -> bytes:
    """The body of the answer to bytes that cannot be read as a request."""
    body = ErrorBody(code=_code_of(status), message=message)
    return body.model_dump_json().encode()


def _code_of(status: int) -> str:
    return HTTPStatus(status).phrase.lower().replace(" ", "_")


async def on_http_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = _code_of(error.status_code)
    return error_response(error.status_code, code, error.detail, headers=error.headers)


async def on_invalid_input(_request: Request, error: Exception) -> Response:
    """Answers a call whose body or query has a wrong form. The answer does not repeat what was
    sent."""
    assert isinstance(error, ValidationError)
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    message = f"{where}: {first['msg']}" if where else first["msg"]
    return error_response(400, "bad_request", message)


async def on_crash(_request: Request, _error: Exception) -> Response:
    """Answers a call that met a defect of ours. The traceback is in the controller's log, not in
    the answer."""
    return error_response(
        500, "internal", "the controller failed on this", "llumctl logs controller"
    )


# -- who may call ----------------------------------------------------------------------------------

MAX_BODY_BYTES = 65_536
MAX_DIGITS = len(str(MAX_BODY_BYTES))
# A call may have each of these headers only once. If one comes twice, some HTTP parsers use the
# first value and others the last.
ONCE = (b"authorization", b"content-length", b"host", b"idempotency-key", b"origin")
# Refused calls are counted, and the log mentions them at most this often.
TELL_EVERY_S = 60.0
LOOKING = ("GET", "HEAD")
OnRefused = Callable[[Scope, str], Awaitable[None]]


class Guard:
    """Decides who may call. The holder of the control token may do everything, the holder of the
    view token may only look (GET). Browsers are refused: a page that makes a browser call the
    control API can be recognised by its Origin header, or by a foreign Host header.

    `on_refused` is called when the holder of the view token tries to act. `on_acted` is called
    before a call that may act gets its answer."""

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
                return 403, "view_only", "this token may only look, not act"
        # Python cannot read a number of more than 4,300 digits, even if they are zeros.
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
    """A body without a stated length is larger than the limit."""


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


async def on_too_large(_request: Request, _error: Exception) -> Response:
    return error_response(413, "too_large", "the body is too large")


# -- calls that take effect once -------------------------------------------------------------------

KEY_HEADER = "Idempotency-Key"
MAX_KEPT = 1000
MAX_KEY_CHARS = 64


class AnswersByKey:
    """The answers to the last 1,000 calls that had a key, including refusals and failures. A client
    that missed the answer repeats its call with the same `Idempotency-Key`, and gets the first
    answer. By `/v1/answers/KEY` a client asks for that answer without any effect.

    Moves, drains, undrains and aborts need this: a second call would find a different state, or
    restart the deadline. Only this process keeps the answers: a restarted controller carries such a
    call out again."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[bytes, asyncio.Task[Response]]] = {}
        """For each key, a digest of the call, and its answer."""

    def once(self, endpoint: Endpoint) -> Endpoint:
        async def answer(request: Request) -> Response:
            key = request.headers.get(KEY_HEADER)
            if key is None:
                return await endpoint(request)
            if not 0 < len(key) <= MAX_KEY_CHARS:
                raise ApiError(400, "bad_key", f"{KEY_HEADER}: 1 to {MAX_KEY_CHARS} characters")
            order = hashlib.sha256(request.url.path.encode() + b"\0" + await request.body())
            if key not in self._kept:
                answering = asyncio.get_running_loop().create_task(endpoint(request))
                self._kept[key] = order.digest(), answering
                if len(self._kept) > MAX_KEPT:
                    del self._kept[next(iter(self._kept))]
            known, answering = self._kept[key]
            if known != order.digest():
                raise ApiError(
                    409,
                    "key_reused",
                    f"another order had that {KEY_HEADER}; each order has its own",
                )
            # A client that hangs up must not cancel the answer, because its next call will want it.
            return await asyncio.shield(answering)

        return answer

    async def told(self, request: Request) -> Response:
        """The answer or refusal that the call with this key got. Raises ApiError if no call had
        this key, or if that call is still under way."""
        key = request.path_params["key"]
        if key not in self._kept:
            raise ApiError(
                404, "no_such_call", f"no call with the {KEY_HEADER} {key[:64]!r} came here"
            )
        _, answering = self._kept[key]
        if not answering.done():
            raise ApiError(409, "under_way", "the call is under way")
        return answering.result()
