"""All that stands before vLLM's OpenAI app: the gate, with keys, limits, deadlines and checks that
vLLM lacks; middlewares around the gate; and routes that the app lacks. Nothing here imports vLLM,
so it can be tested without vLLM.

Every error that leaves has the shape and the size described in answers.py.

Touch points of vLLM: entrypoints/openai/models/serving.py `show_available_models`;
entrypoints/launchers/api_server/app_state.py `openai_serving_models`."""

import asyncio
import logging
from argparse import Namespace
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from types import MappingProxyType
from typing import Any
from uuid import uuid4

from fastapi import FastAPI, Request
from starlette.datastructures import MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from controller.adapters.vllm.checks.body import LEAST_MAX_TOKEN_IDS, find_fault, find_id_fault
from controller.adapters.vllm.endpoint.answers import INTERNAL, error_body
from controller.adapters.vllm.endpoint.exchange import (
    DISCONNECT,
    PLACING,
    BodyRoom,
    ClientLeftError,
    Exchange,
    Placing,
    Turns,
)
from controller.adapters.vllm.endpoint.headers import (
    ASKED_KEY,
    ASKED_PRIORITY,
    ASKED_SESSION,
    RECEIPT_HEADERS,
    ApiKeys,
    AskedPriority,
    KeyHolder,
    RefusedError,
    check_headers,
    check_host,
    read_asked_priority,
    read_session,
)
from controller.api.hosts import own_names
from controller.core.load.snapshot import BACKGROUND
from controller.core.record.request_record import RequestRecord
from controller.ports.processes import Traces

log = logging.getLogger(__name__)

# No key is needed for these paths: load balancers and metrics collectors have no key, and the
# answers contain no secrets.
OPEN_PATHS = frozenset({"/health", "/metrics", "/ready"})
STOPPING = "the cluster is stopping"
# These paths accept texts longer than the model's context. A text of 8 MB kept the event loop busy
# for 5 s; 1 MB, answered with each token's string, kept it busy for 0.13 s.
TOKEN_PATHS = frozenset({"/tokenize", "/detokenize"})
MAX_TOKEN_BODY_BYTES = 512 * 1024
# Reading a body, checking it and bringing it through vLLM's app takes some 2 ms of the event loop:
# 900 requests at once kept running streams waiting for 2.5 s.
REQUESTS_PER_TURN = 1
# The limit on the size of all bodies that are being read together, as a number of bodies of the
# largest size.
MAX_LARGE_BODIES = 32
DEFAULT_LEVELS: Mapping[str, int] = MappingProxyType({"normal": 0})


@dataclass(frozen=True, slots=True)
class GateLimits:
    max_body_bytes: int = 2 * 1024 * 1024
    max_live_requests: int = 4096
    request_timeout_s: float | None = None
    """The longest time from a request's headers to the end of its answer; None: no limit."""
    max_token_ids: int = LEAST_MAX_TOKEN_IDS


class Gate:
    def __init__(
        self,
        limits: GateLimits | None = None,
        api_keys: Sequence[str] = (),
        levels: Mapping[str, int] = DEFAULT_LEVELS,
        hosts: Collection[str] = (),
        traces: Traces | None = None,
        *,
        receipts: bool = False,
    ) -> None:
        """`api_keys`: the lines of the key file. `levels`: the rank of each level. `hosts`: names
        and addresses under which clients may call, besides loopback; with API keys any Host is
        accepted. `traces`: where the traces of requests go; None: nowhere. `receipts`: whether
        answers say in headers how their requests were served."""
        self.app: ASGIApp
        self.closed = False
        """Whether the cluster stops. New requests are refused then, and live ones continue."""
        self.num_live = 0
        """The number of live requests whose bodies are complete. Incomplete ones do not count, so
        that slow senders keep nobody out."""
        self.json_paths: frozenset[str] = frozenset()
        """The paths that take a JSON object by POST."""
        self.upload_paths: Mapping[str, int] = {}
        """The paths whose handlers read the body of a POST themselves, and its largest size."""
        self.is_forwarded: Callable[[str], bool] = lambda _: False
        """Whether the requests of the model of this name are forwarded as they came."""
        self.limits = limits or GateLimits()
        """May be replaced at any time; later requests get the new limits."""
        self.room = BodyRoom(MAX_LARGE_BODIES * self.limits.max_body_bytes)
        self._keys = ApiKeys(api_keys)
        self._turns = Turns(REQUESTS_PER_TURN)
        self._hosts = None if api_keys else own_names(hosts)
        self._levels = levels
        self._traces = traces
        self.receipts = receipts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":  # no model that is served here needs websockets
            await send({"type": "websocket.close"})
        else:
            scope = _as_routed(scope)
            exchange = Exchange(scope, receive, send, receipts=self.receipts)
            await self._answer(scope, exchange, self._pass(scope, exchange))

    async def ask(self, asked: "OwnRequest") -> "OwnAnswer":
        """Answers a request that this process makes itself, in the name of a key, like one of a
        client. It has the level of requests that nobody waits for, and no deadline."""
        scope, answer = asked.scope(), OwnAnswer(keeps_body=not asked.is_copy)
        exchange = Exchange(scope, asked.receive, answer.receive)
        exchange.placing = Placing(asked.tell_placed)
        records = exchange.placing.records
        await self._answer(scope, exchange, self._pass_own(scope, exchange, asked.key_id))
        answer.records = [record() for record in records]
        return answer

    async def _answer(self, scope: Scope, exchange: Exchange, passing: Awaitable[None]) -> None:
        try:
            await passing
        except RefusedError as refused:
            await exchange.refuse(refused)
        except ClientLeftError:
            pass
        except Exception as error:
            if why := _late_refusal(error):
                await exchange.fail(HTTPStatus.BAD_REQUEST, why)
                return
            log.exception("%s %s failed", scope["method"], scope["path"])
            await exchange.fail(HTTPStatus.INTERNAL_SERVER_ERROR, INTERNAL)
        finally:
            exchange.close()

    async def _pass(self, scope: Scope, exchange: Exchange) -> None:
        path, method = scope["path"], scope["method"]
        check_headers(scope["headers"])
        if self._hosts is not None:
            check_host(scope["headers"], self._hosts)
        holder = self._keys.find(scope["headers"])
        # A browser asks by OPTIONS, without a key, whether it may call at all.
        if holder is None and method != "OPTIONS" and path not in OPEN_PATHS:
            raise RefusedError(HTTPStatus.UNAUTHORIZED, "give a valid API key as a bearer token")
        holder = holder or KeyHolder()
        key_before = ASKED_KEY.set(holder.key_id)
        try:
            if method != "POST":
                await self.app(scope, exchange.receive, exchange.send)
                return
            self._check_open()
            asked = read_asked_priority(scope["headers"], self._levels, holder.levels)
            if path in self.json_paths:
                if self._traces is not None:
                    trace = self._traces.begin(method, path, scope["headers"])
                    exchange.placing.trace = trace
                exchange.set_deadline(self.limits.request_timeout_s)
            await self._post(scope, exchange, asked)
        finally:
            ASKED_KEY.reset(key_before)

    async def _pass_own(self, scope: Scope, exchange: Exchange, key_id: str | None) -> None:
        self._check_open()
        holder = KeyHolder() if key_id is None else self._keys.holder(key_id)
        if holder is None:
            why = "the API key of this request does not exist any more"
            raise RefusedError(HTTPStatus.UNAUTHORIZED, why)
        background = AskedPriority({BACKGROUND.name: BACKGROUND.rank}, BACKGROUND.name)
        key_before = ASKED_KEY.set(holder.key_id)
        try:
            await self._post(scope, exchange, background)
        finally:
            ASKED_KEY.reset(key_before)

    async def _post(self, scope: Scope, exchange: Exchange, asked_priority: AskedPriority) -> None:
        before = ASKED_PRIORITY.set(asked_priority)
        session_before = ASKED_SESSION.set(read_session(scope["headers"]))
        try:
            if scope["path"] in self.json_paths:
                await self._post_json(scope, exchange, asked_priority)
            else:
                await self._post_other(scope, exchange)
        finally:
            ASKED_PRIORITY.reset(before)
            ASKED_SESSION.reset(session_before)

    async def _post_other(self, scope: Scope, exchange: Exchange) -> None:
        if max_bytes := self.upload_paths.get(scope["path"]):
            exchange.let_app_read(max_bytes)
        await self.app(scope, exchange.receive, exchange.send)
        if refusal := exchange.upload_refusal:
            raise refusal

    async def _post_json(
        self, scope: Scope, exchange: Exchange, asked_priority: AskedPriority
    ) -> None:
        path = scope["path"]
        self._check_place()  # before the body is read, so that a refusal comes early
        max_bytes = self.limits.max_body_bytes
        if path in TOKEN_PATHS:
            max_bytes = min(max_bytes, MAX_TOKEN_BODY_BYTES)
        body = await exchange.read_body(max_bytes, self.room)
        self._check_open()
        self._check_place()
        self.num_live += 1
        try:
            await self._turns.take()
            await self._serve(scope, exchange, body, asked_priority)
        finally:
            self.num_live -= 1

    def _check_open(self) -> None:
        if self.closed:
            raise RefusedError(
                HTTPStatus.SERVICE_UNAVAILABLE, f"{STOPPING}; send it to another one"
            )

    def _check_place(self) -> None:
        if self.num_live >= self.limits.max_live_requests:
            raise RefusedError(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"this frontend serves {self.num_live} requests already; send it again",
            )

    async def _serve(
        self, scope: Scope, exchange: Exchange, body: bytes, asked_priority: AskedPriority
    ) -> None:
        own_id = exchange.headers.get(b"x-request-id", b"").decode("latin-1")
        if why := find_id_fault(own_id):
            raise RefusedError(HTTPStatus.BAD_REQUEST, why, "X-Request-Id")
        max_ids = self.limits.max_token_ids
        if fault := find_fault(body, asked_priority.rank, max_ids, self.is_forwarded):
            raise RefusedError(HTTPStatus.BAD_REQUEST, *fault)
        before = PLACING.set(exchange.placing)
        try:
            await self.app(scope, exchange.receive, exchange.send)
        except Exception:
            if not exchange.timed_out:  # the app may fail in any way when its request is cut
                raise
        finally:
            PLACING.reset(before)
        if exchange.timed_out:
            overdue = exchange.overdue
            await exchange.fail(overdue.status, overdue.message)


def _as_routed(scope: Scope) -> Scope:
    """The request as vLLM's app can route it. The app does not know HEAD, which is GET without the
    body; uvicorn sends no body then. It answers a path with a slash at its end by a redirect, which
    not all clients follow."""
    method = "GET" if scope["method"] == "HEAD" else scope["method"]
    return {**scope, "method": method, "path": scope["path"].rstrip("/") or "/"}


def _late_refusal(error: Exception) -> str | None:
    """Why vLLM refuses a request after its stream has begun; None for other errors. In this case
    Starlette raises a RuntimeError, because its handler cannot answer any more."""
    cause = error.__cause__
    return str(cause) if isinstance(error, RuntimeError) and isinstance(cause, ValueError) else None


# -- requests of this process ----------------------------------------------------------------------


COPY = "llumctl.copy"
"""The extension of the scope that marks a copy."""


class OwnRequest:
    """A request with a JSON body that this process makes itself. `key_id`: of the API key in whose
    name it is made; empty without keys. None: it is a copy of a client's request, made in nobody's
    name, and its answer is dropped. `session`: the name of its session."""

    def __init__(
        self,
        path: str,
        body: bytes,
        key_id: str | None,
        request_id: str,
        on_placed: Callable[[], None] = lambda: None,
        session: bytes = b"",
    ) -> None:
        self.key_id = key_id
        self._path, self._body, self._request_id = path, body, request_id
        self._on_placed = on_placed
        self._session = session
        self._read = False
        self._left = asyncio.Event()

    @property
    def is_copy(self) -> bool:
        return self.key_id is None

    def leave(self) -> None:
        """Ends the request, as if its client had left."""
        self._left.set()

    async def tell_placed(self) -> None:
        """Called when the request has an instance."""
        self._on_placed()

    async def receive(self) -> Message:
        if not self._read:
            self._read = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._left.wait()
        return DISCONNECT

    def scope(self) -> Scope:
        headers = {
            b"host": b"localhost",
            b"content-type": b"application/json",
            b"content-length": b"%d" % len(self._body),
            REQUEST_ID: self._request_id.encode("latin-1"),
        }
        if self._session:
            headers[b"x-session-id"] = self._session
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": self._path,
            "raw_path": self._path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": list(headers.items()),
            "extensions": {COPY: {}} if self.is_copy else {},
            "client": None,
            "server": None,
        }


class OwnAnswer:
    """The answer to an OwnRequest. `status`: 500 as long as there is none. `records`: of its engine
    requests, once it is over."""

    def __init__(self, *, keeps_body: bool = True) -> None:
        self._keeps_body = keeps_body
        self.records: Sequence[RequestRecord] = ()
        self.status: int = HTTPStatus.INTERNAL_SERVER_ERROR
        self.retry_after_s = 1
        self.body = b""

    async def receive(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.retry_after_s = int(dict(message["headers"]).get(b"retry-after", 1))
        elif self._keeps_body:
            self.body += message.get("body", b"")


# -- around the gate -------------------------------------------------------------------------------
# The middlewares also apply to the gate's refusals. The root path is removed from paths, because
# the gate and vLLM's routes only know paths without it. A request without an id gets one here,
# because otherwise vLLM would answer with another id than it uses itself. Refusals get the headers
# of CORS, without which browsers could not read them.

REQUEST_ID = b"x-request-id"


def around(app: ASGIApp, args: Namespace, *, receipts: bool = False) -> ASGIApp:
    """Puts the middlewares around the app. `args` are vLLM's; `without_outermost` keeps vLLM's app
    from adding the same middlewares again. `receipts`: whether pages may read these headers."""
    if args.root_path:
        app = _without_root_path(app, args.root_path)
    if args.enable_request_id_headers:
        app = _with_request_ids(app)
    if args.allowed_origins:
        exposed = ["X-Request-Id"] if args.enable_request_id_headers else []
        exposed += RECEIPT_HEADERS if receipts else ()
        app = CORSMiddleware(
            app,
            allow_origins=args.allowed_origins,
            allow_credentials=args.allow_credentials,
            allow_methods=args.allowed_methods,
            allow_headers=args.allowed_headers,
            expose_headers=exposed,
        )
    return app


def within(app: ASGIApp, args: Namespace) -> ASGIApp:
    """Adapts vLLM's app for use behind the gate. FastAPI removes the root path itself, and would
    remove it a second time from a path that begins with the same word."""
    return _with_root_path(app, args.root_path) if args.root_path else app


def without_outermost(args: Namespace) -> Namespace:
    """The arguments for vLLM's app within the gate."""
    inner = Namespace(**vars(args))
    inner.allowed_origins, inner.enable_request_id_headers = [], False
    return inner


def _without_root_path(app: ASGIApp, root_path: str) -> ASGIApp:
    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if path == root_path or path.startswith(root_path + "/"):
            scope = {**scope, "path": path.removeprefix(root_path) or "/"}
        await app(scope, receive, send)

    return call


def _with_root_path(app: ASGIApp, root_path: str) -> ASGIApp:
    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        if "path" in scope:
            scope = {**scope, "path": root_path + scope["path"]}
        await app(scope, receive, send)

    return call


def _with_request_ids(app: ASGIApp) -> ASGIApp:
    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        request_id = dict(scope["headers"]).get(REQUEST_ID)
        if request_id is None:
            request_id = uuid4().hex.encode()
            scope = {**scope, "headers": [*scope["headers"], (REQUEST_ID, request_id)]}

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=list(message.get("headers", ())))
                headers["X-Request-Id"] = request_id.decode("latin-1")
                message = {**message, "headers": headers.raw}
            await send(message)

        await app(scope, receive, send_with_id)

    return call


# -- routes that vLLM's app lacks ------------------------------------------------------------------
# The routes are `GET /v1/models/ID`, which OpenAI's API has, and `GET /ready`. `/health` is vLLM's
# own and says that this process serves: it stays 200 while live requests end. `/ready` is for load
# balancers and says whether a new request would be accepted.

READY_PATH = "/ready"
# For clients that read the header; load balancers check again at their own pace.
LOOK_AGAIN_S = 1


def add_model_route(app: FastAPI) -> None:
    app.add_api_route("/v1/models/{model_id:path}", show_model, methods=["GET"])


async def show_model(model_id: str, request: Request) -> Any:
    cards = await request.app.state.openai_serving_models.show_available_models()
    for card in cards.data:
        if card.id == model_id:
            return JSONResponse(card.model_dump())
    message = f"The model `{model_id}` does not exist."
    error = {"message": message, "param": "model", "code": HTTPStatus.NOT_FOUND}
    return JSONResponse({"error": error}, HTTPStatus.NOT_FOUND)


def add_ready_route(app: FastAPI, why_not_ready: Callable[[], str]) -> None:
    """Adds `/ready`. `why_not_ready`: returns an empty text while new requests are accepted."""

    async def ready() -> Response:
        if why := why_not_ready():
            status = HTTPStatus.SERVICE_UNAVAILABLE
            again = {"Retry-After": str(LOOK_AGAIN_S)}
            return Response(error_body(status, why), status, again, "application/json")
        return JSONResponse({"ready": True})

    app.add_api_route(READY_PATH, ready, methods=["GET", "HEAD"], include_in_schema=False)
