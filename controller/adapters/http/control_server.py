"""The control API's listener: bearer tokens, JSON in both directions, small errors.

`ControlServer` serves the calls about each model (`ModelApi`) and, if there are several models, the
calls about all of them (`SeveralModels`). `CALLS` describes the routes (`GET /openapi.json`) by the
wire models that they read and answer with; orders are described by their table. A test compares
`CALLS` with the routes."""

import asyncio
import json
import socket
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import uvicorn
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.json_schema import JsonSchemaMode
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, Router

from controller.adapters.connections import KEEP_ALIVE_S, KeepAlive
from controller.adapters.http.calls import (
    KEY_HEADER,
    MAX_KEY_CHARS,
    AnswersByKey,
    ApiError,
    BodyTooLargeError,
    Guard,
    json_answer,
    on_api_error,
    on_crash,
    on_failure,
    on_http_error,
    on_invalid_input,
    on_revision_conflict,
    on_too_large,
    unread_body,
)
from controller.adapters.http.model_api import EventsQuery, LogQuery, ModelApi, WatchQuery
from controller.adapters.http.observer import HistoryQuery
from controller.adapters.http.perform import (
    OperationsQuery,
)
from controller.adapters.http.requests import (
    MAX_REFERENCE_CHARS,
    NameQuery,
    RequestsQuery,
)
from controller.adapters.http.several_models import SeveralModels, of_models
from controller.api.errors import LlumctlError
from controller.api.operations.on_cluster import SettingList
from controller.api.operations.on_instances import DrainList
from controller.api.operations.table import ORDERS, OperationList
from controller.api.text.hints import own_version
from controller.api.wire import ErrorBody
from controller.api.wire.history import HistoryReport
from controller.api.wire.requests import (
    EventPage,
    Explanation,
    RequestDetail,
    RequestList,
    RequestName,
)
from controller.api.wire.status import ClusterStatus, RollingReport, StopProgress, StopRequest
from controller.api.wire.stream import (
    Frame,
    MemberLog,
    TrafficBatch,
    TrafficRequest,
)
from controller.ports.processes import HistoryStore
from controller.runtime.controller.operations.operated_cluster import RevisionConflictError

# Watch streams never end by themselves. A server that stops waits this long for them, and no
# longer.
LAST_BYTES_S = 1
# Clients without a token may connect too. When there are more connections than this, the oldest one
# without a request is closed.
MAX_CONNECTIONS = 256


@dataclass(frozen=True, slots=True)
class Access:
    """Where the control API listens, and who may do what (see `Guard`)."""

    host: str
    port: int
    control_token: str = field(repr=False)
    view_token: str = field(repr=False)


class ControlServer:
    """Serves the control API. `apis`: the calls about each model, by its name. `metrics` renders
    the answer to `/metrics`, of media type `metrics_type`, of the status of each model.
    `listening`: a socket on the address of `access`; without it the server makes one. The history
    of a cluster of several models is kept in `history`."""

    def __init__(
        self,
        apis: Mapping[str, ModelApi],
        access: Access,
        metrics: Callable[[Mapping[str, ClusterStatus]], bytes],
        metrics_type: str,
        listening: socket.socket | None = None,
        history: HistoryStore | None = None,
    ) -> None:
        self._apis = apis
        self._first = first = next(iter(apis.values()))
        self._metrics, self._metrics_type = metrics, metrics_type
        answers, changing = AnswersByKey(), asyncio.Lock()
        if len(apis) == 1:
            calls = first.routes(answers, changing)
            routes: list[BaseRoute] = [*calls, *of_models({name: Router(calls) for name in apis})]
            self._observers, statuses = [first.observer], [first.statuses]
        else:
            several = SeveralModels(apis, answers, changing, history)
            routes = several.routes()
            self._observers = [*(each.observer for each in apis.values()), several.observer]
            statuses = [*(each.statuses for each in apis.values()), several.statuses]
        self._socket = listening or socket.create_server((access.host, access.port), backlog=128)
        # asyncio sets this option only if a socket names its protocol, which a socket of
        # create_server does not. Without it, the body of an answer waited 40 ms, until the client
        # had acknowledged the head.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def forget() -> None:
            for each in statuses:
                each.forget()

        app = Starlette(
            routes=[
                Route("/v1/stop", self._stop, methods=["POST"]),
                Route("/metrics", self._scrape, methods=["GET"]),
                Route(DESCRIPTION_PATH, self._describe, methods=["GET"]),
                *routes,
            ],
            middleware=[
                Middleware(
                    Guard,
                    control_token=access.control_token,
                    view_token=access.view_token,
                    host=access.host,
                    on_refused=first.log.refused,
                    on_acted=forget,
                )
            ],
            exception_handlers={
                ApiError: on_api_error,
                RevisionConflictError: on_revision_conflict,
                LlumctlError: on_failure,
                HTTPException: on_http_error,
                ValidationError: on_invalid_input,
                BodyTooLargeError: on_too_large,
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
        """Serves while `work` runs. When either of them ends or fails, both end."""
        with self._socket:
            async with asyncio.TaskGroup() as group:
                working = group.create_task(work)
                serving = group.create_task(self._server.serve(sockets=[self._socket]))
                observing = [group.create_task(each.run()) for each in self._observers]
                working.add_done_callback(lambda _: setattr(self._server, "should_exit", True))
                serving.add_done_callback(
                    lambda _: [each.cancel() for each in (working, *observing)]
                )
        await self._first.log.close()

    async def _scrape(self, _request: Request) -> Response:
        found = {name: each.statuses.now() for name, each in self._apis.items()}
        return Response(self._metrics(found), media_type=self._metrics_type)

    async def _describe(self, _request: Request) -> Response:
        return Response(_encoded_description(), media_type="application/json")

    async def _stop(self, request: Request) -> Response:
        """Begins to stop the cluster. Called again, it only reports how far the stop has come."""
        order = StopRequest.model_validate_json(await request.body() or b"{}")
        # A call that would change nothing only asks for progress.
        if self._first.controller.would_stop(order.drain):
            how = f"stop: grace {order.grace_s:g} s" if order.drain else "stop at once"
            await self._first.log.note(request.scope, how, "the cluster", "begun")
            self._first.controller.stop_all(order.drain, order.grace_s)
        progress = StopProgress(
            stopped=all(each.controller.stopped for each in self._apis.values()),
            num_live_reqs=sum(each.controller.num_live_reqs for each in self._apis.values()),
        )
        return json_answer(progress)


# -- the description -------------------------------------------------------------------------------

DESCRIPTION_PATH = "/openapi.json"
JSON, LINES, TEXT = "application/json", "application/x-ndjson", "text/plain"
Model = type[BaseModel]
_REF = "#/components/schemas/{model}"


@dataclass(frozen=True, slots=True)
class Call:
    """What the description says of a call. `answer`: the model of the answer; None if it may have
    any form. `wants_body`: whether the call is refused without a body. `once`: whether an
    Idempotency-Key is read."""

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
    ("GET", "/v1/history"): Call("What led to the present", HistoryReport, HistoryQuery),
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
    """The description of the routes, in OpenAPI 3.1."""
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
    """Makes references to the schemas of models, and collects the schemas in `found`."""

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
    """Removes null from a query's schema: a parameter without a value is left out of a query."""
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
