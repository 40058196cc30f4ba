"""The control API's listener: bearer tokens, JSON in and out, small errors."""

import asyncio
import socket
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from controller.adapters.connections import KEEP_ALIVE_S, KeepAlive
from controller.adapters.http import cluster_orders, instance_orders, openapi, request_orders
from controller.adapters.http.answers import json_answer
from controller.adapters.http.drain_reports import SteerReports
from controller.adapters.http.errors import (
    ApiError,
    error_response,
    on_api_error,
    on_crash,
    on_failure,
    on_http_error,
    on_invalid_input,
    on_revision_conflict,
    unread_body,
)
from controller.adapters.http.explain import explain_request
from controller.adapters.http.guard import BodyTooLargeError, Guard
from controller.adapters.http.idempotency import AnswersByKey
from controller.adapters.http.live_settings import LiveSettings
from controller.adapters.http.member_log import LogQuery, member_log
from controller.adapters.http.operations_done import OperationsQuery, operations_done
from controller.adapters.http.operator_log import OperatorLog
from controller.adapters.http.perform import EngineCheck, Operated, Orders, allow_all
from controller.adapters.http.requests import (
    NameQuery,
    RequestsQuery,
    find_request,
    list_requests,
    name_request,
)
from controller.adapters.http.traffic_stream import TrafficStream, wanted_traffic
from controller.adapters.http.views.cluster_view import ClusterLabels, cluster_status
from controller.adapters.http.views.record_view import event_model
from controller.adapters.http.views.rolling_view import rolling_report
from controller.adapters.http.watch import EventsQuery, LatestStatus, WatchQuery, frames
from controller.api.errors import LlumctlError
from controller.api.settings.settings import Settings
from controller.api.state.audit import AuditLog
from controller.api.wire.models import ClusterStatus, EventPage, StopProgress, StopRequest
from controller.api.wire.operations import DrainList
from controller.runtime.controller.cluster import ControllerProcess
from controller.runtime.controller.operations.operated_cluster import RevisionConflictError

MAX_WATCHERS = 64
# Watch streams never end by themselves; a stopping server does not wait for them.
LAST_BYTES_S = 1
# Who has no token may connect, too. Of more connections the oldest without a request is closed.
MAX_CONNECTIONS = 256

HANDLERS = (*instance_orders.HANDLERS, *request_orders.HANDLERS, *cluster_orders.HANDLERS)
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
                Route(openapi.PATH, self._describe, methods=["GET"]),
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
        return Response(openapi.encoded(), media_type="application/json")

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
