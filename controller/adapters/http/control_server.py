"""The control API's listener: bearer tokens, JSON in and out, small errors.

`ControlServer` has the routes of what is looked at, and takes those of orders from their handlers.
Before them stands the `Guard`, which says who may call, and how large a body may be. `AnswersByKey`
lets calls take effect once. `CALLS` describes the routes (`GET /openapi.json`), by the wire models
that they read and answer with; those of orders are described by their table. A test compares both.
"""

import asyncio
import hashlib
import hmac
import json
import logging
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.json_schema import JsonSchemaMode
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from controller.adapters.connections import KEEP_ALIVE_S, KeepAlive
from controller.adapters.http import cluster_orders, instance_orders, request_orders
from controller.adapters.http.answers import (
    ApiError,
    Endpoint,
    error_response,
    json_answer,
    on_api_error,
    on_crash,
    on_failure,
    on_http_error,
    on_invalid_input,
    on_revision_conflict,
    unread_body,
)
from controller.adapters.http.cluster_view import ClusterLabels, cluster_status, rolling_report
from controller.adapters.http.drain_reports import SteerReports
from controller.adapters.http.live_settings import LiveSettings
from controller.adapters.http.perform import (
    EngineCheck,
    Handler,
    Operated,
    OperationsQuery,
    OperatorLog,
    Orders,
    allow_all,
    operations_done,
)
from controller.adapters.http.requests import (
    MAX_REFERENCE_CHARS,
    NameQuery,
    RequestsQuery,
    event_model,
    explain_request,
    find_request,
    list_requests,
    name_request,
)
from controller.adapters.http.streams import (
    EventsQuery,
    LatestStatus,
    LogQuery,
    TrafficStream,
    WatchQuery,
    frames,
    member_log,
    wanted_traffic,
)
from controller.api.errors import LlumctlError
from controller.api.hosts import is_own_host, own_names
from controller.api.operations.on_cluster import SettingList
from controller.api.operations.on_instances import DrainList
from controller.api.operations.table import ORDERS, OperationList
from controller.api.settings.settings import Settings
from controller.api.state.audit import AuditLog
from controller.api.text.hints import own_version
from controller.api.wire import ErrorBody
from controller.api.wire.requests import (
    EventPage,
    Explanation,
    RequestDetail,
    RequestList,
    RequestName,
)
from controller.api.wire.status import ClusterStatus, RollingReport, StopProgress, StopRequest
from controller.api.wire.stream import Frame, MemberLog, TrafficBatch, TrafficRequest
from controller.runtime.controller.cluster import ControllerProcess
from controller.runtime.controller.operations.operated_cluster import RevisionConflictError

log = logging.getLogger(__name__)

MAX_WATCHERS = 64
# Watch streams never end by themselves; a stopping server does not wait for them.
LAST_BYTES_S = 1
# Who has no token may connect, too. Of more connections the oldest without a request is closed.
MAX_CONNECTIONS = 256

HANDLERS: tuple[type[Handler[Any, Any]], ...] = (
    *instance_orders.HANDLERS,
    *request_orders.HANDLERS,
    *cluster_orders.HANDLERS,
)
"""One for each row of `controller.api.operations.table`."""

Query = TypeVar("Query", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Access:
    """Where the control API listens, and who may do what (see `Guard`)."""

    host: str
    port: int
    control_token: str = field(repr=False)
    view_token: str = field(repr=False)


class ControlServer:
    """`settings`: those that the controller runs with. `metrics` renders the answer to `/metrics`,
    of media type `metrics_type`. Members write their logs to `log_dir`. `listening`: a socket on
    the address of `access`; without it the server makes one. `check_engine` looks at engine
    arguments that a rolling restart is to change."""

    def __init__(
        self,
        controller: ControllerProcess,
        labels: ClusterLabels,
        access: Access,
        audit: AuditLog,
        settings: Settings,
        metrics: Callable[[ClusterStatus], bytes],
        metrics_type: str,
        log_dir: Path,
        listening: socket.socket | None = None,
        check_engine: EngineCheck = allow_all,
    ) -> None:
        self._controller = controller
        self._labels = labels
        self._audit = audit
        self._log = OperatorLog(audit, controller.journal)
        self._live_settings = LiveSettings(controller, settings)
        self._metrics, self._metrics_type = metrics, metrics_type
        self._log_dir = log_dir
        self._started_s = time.monotonic()
        self._statuses = LatestStatus(self._new_status)
        answers = AnswersByKey()
        self._operated = Operated(controller, self._live_settings, check_engine)
        self._orders = Orders(self._operated, self._log, answers.once)
        self._num_watchers = 0
        self._socket = listening or socket.create_server((access.host, access.port), backlog=128)
        # asyncio does this only where a socket names its protocol, which one of create_server does
        # not: an answer's body then waited 40 ms until the client had acknowledged its head.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        app = Starlette(
            routes=[
                Route("/v1/status", self._status, methods=["GET"]),
                Route("/v1/events", self._events, methods=["GET"]),
                Route("/v1/watch", self._watch, methods=["GET"]),
                Route("/v1/requests", self._requests, methods=["GET"]),
                Route("/v1/requests/{reference}", self._request, methods=["GET"]),
                Route("/v1/requests/{reference}/id", self._request_name, methods=["GET"]),
                Route("/v1/requests/{reference}/explain", self._explain, methods=["GET"]),
                Route("/v1/members/{member_id}/log", self._member_log, methods=["GET"]),
                Route("/v1/answers/{key}", answers.told, methods=["GET"]),
                Route("/v1/operations", self._operations, methods=["GET"]),
                Route("/v1/drains", self._drains, methods=["GET"]),
                *self._orders.routes(
                    HANDLERS,
                    {"/v1/settings": self._settings, "/v1/rolling-restart": self._rolling},
                ),
                Route("/v1/traffic", self._traffic, methods=["POST"]),
                Route("/v1/stop", self._stop, methods=["POST"]),
                Route("/metrics", self._scrape, methods=["GET"]),
                Route(DESCRIPTION_PATH, self._describe, methods=["GET"]),
            ],
            middleware=[
                Middleware(
                    Guard,
                    control_token=access.control_token,
                    view_token=access.view_token,
                    host=access.host,
                    on_refused=self._log.refused,
                    on_acted=self._statuses.forget,
                )
            ],
            exception_handlers={
                ApiError: on_api_error,
                RevisionConflictError: on_revision_conflict,
                LlumctlError: on_failure,
                HTTPException: on_http_error,
                ValidationError: on_invalid_input,
                BodyTooLargeError: _on_too_large,
                Exception: on_crash,
            },
        )
        app.router.redirect_slashes = False
        config = uvicorn.Config(
            app,
            http=KeepAlive(MAX_CONNECTIONS // 2, unread_body, MAX_CONNECTIONS),  # type: ignore[arg-type]  # uvicorn only calls it
            log_level="warning",
            access_log=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=LAST_BYTES_S,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        self._server = uvicorn.Server(config)

    async def run_beside(self, work: Coroutine[Any, Any, None]) -> None:
        """Serve while `work` runs; whichever ends or fails first ends both."""
        with self._socket:
            async with asyncio.TaskGroup() as group:
                working = group.create_task(work)
                serving = group.create_task(self._server.serve(sockets=[self._socket]))
                working.add_done_callback(lambda _: setattr(self._server, "should_exit", True))
                serving.add_done_callback(lambda _: working.cancel())
        await self._log.close()

    # -- looking -------------------------------------------------------------------------

    def _new_status(self) -> ClusterStatus:
        uptime_s = time.monotonic() - self._started_s
        return cluster_status(self._controller, self._labels, uptime_s)

    async def _status(self, _request: Request) -> Response:
        return json_answer(self._statuses.now())

    async def _scrape(self, _request: Request) -> Response:
        return Response(self._metrics(self._statuses.now()), media_type=self._metrics_type)

    async def _describe(self, _request: Request) -> Response:
        return Response(_encoded_description(), media_type="application/json")

    async def _events(self, request: Request) -> Response:
        query = _query(request, EventsQuery)
        try:
            page = self._controller.journal.log.after(query.after or None, query.limit)
        except ValueError as error:
            raise ApiError(400, "bad_position", str(error), "llumctl events") from error
        events = tuple(event_model(event, position) for position, event in page.entries)
        return json_answer(
            EventPage(events=events, next_position=page.next_position, missed=page.missed)
        )

    async def _watch(self, request: Request) -> Response:
        query = _query(request, WatchQuery)
        if self._num_watchers >= MAX_WATCHERS:
            raise ApiError(429, "too_many_watchers", f"{MAX_WATCHERS} watch already")
        try:
            lines = frames(self._controller.journal, self._statuses, query)
        except ValueError as error:
            raise ApiError(400, "bad_position", str(error), "llumctl events -f") from error

        async def counted() -> Any:
            try:
                async for line in lines:
                    yield line
            finally:
                self._num_watchers -= 1

        self._num_watchers += 1  # before anything is awaited: many may ask in one turn
        return StreamingResponse(counted(), media_type="application/x-ndjson")

    async def _requests(self, request: Request) -> Response:
        query = _query(request, RequestsQuery, repeatable=("state",))
        return json_answer(await list_requests(self._controller, query))

    async def _request(self, request: Request) -> Response:
        return json_answer(await find_request(self._controller, request.path_params["reference"]))

    async def _request_name(self, request: Request) -> Response:
        query, reference = _query(request, NameQuery), request.path_params["reference"]
        return json_answer(await name_request(self._controller, reference, query))

    async def _explain(self, request: Request) -> Response:
        return json_answer(
            await explain_request(self._controller, request.path_params["reference"])
        )

    async def _member_log(self, request: Request) -> Response:
        query, member_id = _query(request, LogQuery), request.path_params["member_id"]
        return json_answer(await member_log(self._controller, self._log_dir, member_id, query))

    async def _settings(self, _request: Request) -> Response:
        return json_answer(self._live_settings.listed())

    async def _drains(self, _request: Request) -> Response:
        keeper = self._controller.keeper
        reports = await SteerReports(self._controller).several(
            sorted(keeper.spec.drains), keeper.spec.revision, lately=True
        )
        # A drain may have ended while the frontends were asked.
        return json_answer(DrainList(drains=tuple(r for r in reports if r.drain_id)))

    async def _rolling(self, _request: Request) -> Response:
        return json_answer(rolling_report(self._controller))

    async def _operations(self, request: Request) -> Response:
        query = _query(request, OperationsQuery)
        done = await operations_done(
            self._operated,
            {each.row.kind: each for each in HANDLERS},
            self._audit,
            since_s=self._labels.started_at_s,
            limit=query.limit,
        )
        return json_answer(done)

    # -- acting --------------------------------------------------------------------------

    async def _stop(self, request: Request) -> Response:
        """Idempotent: asked again, it tells how far the stop has come."""
        order = StopRequest.model_validate_json(await request.body() or b"{}")
        if self._controller.would_stop(order.drain):  # else this call only asks how far it is
            how = f"stop: grace {order.grace_s:g} s" if order.drain else "stop at once"
            await self._log.note(request.scope, how, "the cluster", "begun")
            self._controller.stop(order.drain, order.grace_s)
        progress = StopProgress(
            stopped=self._controller.stopped, num_live_reqs=self._controller.num_live_reqs
        )
        return json_answer(progress)

    async def _traffic(self, request: Request) -> Response:
        """Records until the caller leaves."""
        asked = wanted_traffic(await request.body())
        return TrafficStream(self._controller.traffic, asked, self._log)


def _query(request: Request, model: type[Query], *, repeatable: Sequence[str] = ()) -> Query:
    """The query's parameters. Of a name that is not `repeatable` the last value counts.

    Raises ValidationError, for an unknown name too, so that a typing error is not ignored."""
    given: dict[str, Any] = {}
    for name in request.query_params:
        values = request.query_params.getlist(name)
        given[name] = values if name in repeatable else values[-1]
    return model.model_validate(given)


async def _on_too_large(_request: Request, _error: Exception) -> Response:
    return error_response(413, "too_large", "the body is too large")


MAX_BODY_BYTES = 65_536
MAX_DIGITS = len(str(MAX_BODY_BYTES))
# Where such a header is given twice, one reader takes the first and another the last.
ONCE = (b"authorization", b"content-length", b"host", b"idempotency-key", b"origin")
# Refused calls are counted, and the log tells of them at most this often.
TELL_EVERY_S = 60.0
LOOKING = ("GET", "HEAD")

OnRefused = Callable[[Scope, str], Awaitable[None]]


class Guard:
    """The control token may do everything, the view token may look (GET). Browsers are refused: a
    page that makes a browser call here gives itself away by an Origin, or by a foreign Host.

    `on_refused` is called when the holder of the view token asks for more than to look,
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


KEY_HEADER = "Idempotency-Key"
MAX_KEPT = 1000
MAX_KEY_CHARS = 64


class AnswersByKey:
    """Answers to the last 1,000 calls that had a key, refusals and failures too: a client that
    missed the answer repeats its call with the same `Idempotency-Key`, and gets the answer of the
    first time; or, to change nothing by asking, gets `/v1/answers/KEY`.

    Moves, drains, undrains and aborts need that: the second one would find another state, or count
    its deadline anew. Only this process keeps the answers: a controller that starts again carries
    such a call out once more."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[bytes, asyncio.Task[Response]]] = {}
        """By key: a digest of the call, and its answer."""

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
                    409, "key_reused", f"that {KEY_HEADER} was another order's; each has its own"
                )
            # A client that hangs up must not cancel the answer for its next call.
            return await asyncio.shield(answering)

        return answer

    async def told(self, request: Request) -> Response:
        """The answer, or the refusal, that the call with this key got. Raises ApiError for a key
        that no call had, and for a call that is under way."""
        key = request.path_params["key"]
        if key not in self._kept:
            raise ApiError(
                404, "no_such_call", f"no call with the {KEY_HEADER} {key[:64]!r} came here"
            )
        _, answering = self._kept[key]
        if not answering.done():
            raise ApiError(409, "under_way", "the call is under way")
        return answering.result()


DESCRIPTION_PATH = "/openapi.json"
JSON, LINES, TEXT = "application/json", "application/x-ndjson", "text/plain"
Model = type[BaseModel]
_REF = "#/components/schemas/{model}"


@dataclass(frozen=True, slots=True)
class Call:
    """`answer`: the model, or None for an answer of any form. `wants_body`: without one the call is
    refused. `once`: an Idempotency-Key is read."""

    does: str
    answer: Any
    query: Model | None = None
    body: Model | None = None
    wants_body: bool = False
    once: bool = False
    media_type: str = JSON


CALLS: Mapping[tuple[str, str], Call] = {
    ("GET", "/v1/status"): Call("How the cluster is now", ClusterStatus),
    ("GET", "/v1/events"): Call("A page of the event log", EventPage, EventsQuery),
    ("GET", "/v1/watch"): Call(
        "Statuses and events as they come, one in each line", Frame, WatchQuery, media_type=LINES
    ),
    ("GET", "/v1/requests"): Call("Requests that live or ended lately", RequestList, RequestsQuery),
    ("GET", "/v1/requests/{reference}"): Call("A request with its history", RequestDetail),
    ("GET", "/v1/requests/{reference}/id"): Call(
        "The whole id of a request, as orders take it", RequestName, NameQuery
    ),
    ("GET", "/v1/requests/{reference}/explain"): Call("Why a request is where it is", Explanation),
    ("GET", "/v1/members/{member_id}/log"): Call("The last lines of a log", MemberLog, LogQuery),
    ("GET", "/v1/answers/{key}"): Call("What the call with this Idempotency-Key got", None),
    ("GET", "/v1/operations"): Call(
        "What operators did lately, and what undoes it", OperationList, OperationsQuery
    ),
    ("GET", "/v1/settings"): Call("The settings that may change", SettingList),
    ("GET", "/v1/drains"): Call("The drains under way", DrainList),
    ("GET", "/v1/rolling-restart"): Call("The last rolling restart", RollingReport),
    **{
        (row.method, row.path): Call(
            row.does, row.report, body=row.body, wants_body=row.wants_body, once=True
        )
        for row in ORDERS.values()
    },
    ("POST", "/v1/traffic"): Call(
        "Record the traffic while the caller reads",
        TrafficBatch,
        body=TrafficRequest,
        wants_body=True,
        media_type=LINES,
    ),
    ("POST", "/v1/stop"): Call(
        "Stop the cluster, or ask how far it is", StopProgress, None, StopRequest
    ),
    ("GET", "/metrics"): Call("The status for Prometheus", None, media_type=TEXT),
    ("GET", DESCRIPTION_PATH): Call("This description", None),
}


def description() -> dict[str, Any]:
    """OpenAPI 3.1."""
    schemas = _Schemas()
    paths: dict[str, dict[str, Any]] = {}
    error = {"description": "why not", "content": {JSON: {"schema": schemas.of(ErrorBody)}}}
    for (method, path), call in CALLS.items():
        answer = {"schema": {} if call.answer is None else schemas.of(call.answer)}
        described: dict[str, Any] = {
            "summary": call.does,
            "parameters": [*_in_path(path), *schemas.in_query(call.query), *_keys(call)],
            "responses": {
                "200": {"description": call.does, "content": {call.media_type: answer}},
                "default": error,
            },
        }
        if call.body is not None:
            body = {"schema": schemas.of(call.body, "validation")}
            described["requestBody"] = {"required": call.wants_body, "content": {JSON: body}}
        paths.setdefault(path, {})[method.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "llumctl's control API",
            "version": own_version(),
            "description": "Without a bearer token nothing is answered; the view token may look.",
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": schemas.found,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


class _Schemas:
    """References to the schemas of models, which are collected in `found`."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}

    def of(self, model: Any, mode: JsonSchemaMode = "serialization") -> dict[str, Any]:
        schema = TypeAdapter(model).json_schema(ref_template=_REF, mode=mode)
        self.found |= schema.pop("$defs", {})
        if not isinstance(model, type):
            return schema
        self.found[model.__name__] = schema
        return {"$ref": _REF.format(model=model.__name__)}

    def in_query(self, model: Model | None) -> list[dict[str, Any]]:
        if model is None:
            return []
        schema = model.model_json_schema(ref_template=_REF)
        self.found |= schema.get("$defs", {})
        fields = schema["properties"].items()
        return [
            {"name": name, "in": "query", "schema": _without_null(each)} for name, each in fields
        ]


def _in_path(path: str) -> list[dict[str, Any]]:
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    schema = {"type": "string", "minLength": 1, "maxLength": MAX_REFERENCE_CHARS}
    return [{"name": name, "in": "path", "required": True, "schema": schema} for name in names]


@cache
def _encoded_description() -> bytes:
    return json.dumps(description()).encode()


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter that has no value is left out, as a query has no null."""
    kinds = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    if len(kinds) != 1:
        return schema
    rest = {key: each for key, each in schema.items() if key not in ("anyOf", "default")}
    return {**rest, **kinds[0]}


def _keys(call: Call) -> list[dict[str, Any]]:
    if not call.once:
        return []
    schema = {"type": "string", "minLength": 1, "maxLength": MAX_KEY_CHARS}
    return [{"name": KEY_HEADER, "in": "header", "schema": schema}]
