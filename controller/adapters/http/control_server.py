"""The control API's listener: bearer tokens, JSON in both directions, small errors.

`ControlServer` has the routes that only look, and gets the routes of orders from their handlers.
`calls.py` has what all calls share. `CALLS` describes the routes (`GET /openapi.json`) by the wire
models that they read and answer with; orders are described by their table. A test compares `CALLS`
with the routes."""

import asyncio
import contextlib
import json
import logging
import socket
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.json_schema import JsonSchemaMode
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from controller.adapters.connections import KEEP_ALIVE_S, KeepAlive
from controller.adapters.http import (
    adapter_orders,
    attached_orders,
    cluster_orders,
    instance_orders,
    request_orders,
)
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
    shown,
    unread_body,
)
from controller.adapters.http.cluster_view import ClusterLabels, cluster_status, rolling_report
from controller.adapters.http.instance_orders import SteerReports
from controller.adapters.http.live_settings import LiveSettings
from controller.adapters.http.observer import HistoryQuery, Observer
from controller.adapters.http.perform import (
    AdapterCheck,
    EngineCheck,
    Handler,
    Operated,
    OperationsQuery,
    OperatorLog,
    Orders,
    PythonCheck,
    ServerCheck,
    allow_all,
    no_adapters,
    no_servers,
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
from controller.api.errors import LlumctlError
from controller.api.operations.on_cluster import SettingList
from controller.api.operations.on_instances import DrainList
from controller.api.operations.table import ORDERS, OperationList
from controller.api.settings.settings import Settings
from controller.api.state.audit import AuditLog
from controller.api.state.log_tail import LogTail
from controller.api.text.events import matches, searched
from controller.api.text.hints import own_version
from controller.api.wire import ErrorBody, WireModel
from controller.api.wire.history import HistoryReport
from controller.api.wire.requests import (
    Event,
    EventPage,
    Explanation,
    RequestDetail,
    RequestList,
    RequestName,
    RequestState,
)
from controller.api.wire.status import ClusterStatus, RollingReport, StopProgress, StopRequest
from controller.api.wire.stream import (
    EventFrame,
    Frame,
    GapFrame,
    MemberLog,
    PingFrame,
    RequestTraffic,
    StatusFrame,
    TrafficBatch,
    TrafficRequest,
)
from controller.core.record.event_log import EventLog
from controller.ports.processes import HistoryStore
from controller.runtime.controller.cluster import ControllerProcess
from controller.runtime.controller.journal import Journal
from controller.runtime.controller.operations.operated_cluster import RevisionConflictError
from controller.runtime.controller.traffic import Batch, Traffic, TrafficRecording
from controller.runtime.messages.requests import TrafficAsked

log = logging.getLogger(__name__)

MAX_WATCHERS = 64
# Watch streams never end by themselves. A server that stops waits this long for them, and no
# longer.
LAST_BYTES_S = 1
# Clients without a token may connect too. When there are more connections than this, the oldest one
# without a request is closed.
MAX_CONNECTIONS = 256

HANDLERS: tuple[type[Handler[Any, Any]], ...] = (
    *instance_orders.HANDLERS,
    *request_orders.HANDLERS,
    *cluster_orders.HANDLERS,
    *adapter_orders.HANDLERS,
    *attached_orders.HANDLERS,
)
"""One handler for each row of `controller.api.operations.table`."""

Query = TypeVar("Query", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Access:
    """Where the control API listens, and who may do what (see `Guard`)."""

    host: str
    port: int
    control_token: str = field(repr=False)
    view_token: str = field(repr=False)


class ControlServer:
    """Serves the control API. `settings`: the settings of the running controller. `metrics` renders
    the answer to `/metrics`, which has the media type `metrics_type`. `log_dir`: where members
    write their logs. `listening`: a socket on the address of `access`; without it the server makes
    one. `check_engine` checks engine arguments that a rolling restart is to change, `check_python`
    an interpreter that it is to use, `check_adapter` a LoRA adapter that is to be loaded,
    `check_server` a server that is to be attached. The history is kept in `history`."""

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
        check_python: PythonCheck = allow_all,
        check_adapter: AdapterCheck = no_adapters,
        check_server: ServerCheck = no_servers,
        history: HistoryStore | None = None,
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
        self._observer = Observer(controller, self._statuses.now, settings.console, history)
        answers = AnswersByKey()
        self._operated = Operated(
            controller,
            self._live_settings,
            check_engine,
            check_python,
            check_adapter,
            check_server,
        )
        self._orders = Orders(self._operated, self._log, answers.once)
        self._num_watchers = 0
        self._socket = listening or socket.create_server((access.host, access.port), backlog=128)
        # asyncio sets this option only if a socket names its protocol, which a socket of
        # create_server does not. Without it, the body of an answer waited 40 ms, until the client
        # had acknowledged the head.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        app = Starlette(
            routes=[
                Route("/v1/status", self._status, methods=["GET"]),
                Route("/v1/events", self._events, methods=["GET"]),
                Route("/v1/watch", self._watch, methods=["GET"]),
                Route("/v1/history", self._history, methods=["GET"]),
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
                observing = group.create_task(self._observer.run())
                working.add_done_callback(lambda _: setattr(self._server, "should_exit", True))
                serving.add_done_callback(lambda _: (working.cancel(), observing.cancel()))
        await self._log.close()

    # -- looking -------------------------------------------------------------------------

    def _new_status(self) -> ClusterStatus:
        uptime_s = time.monotonic() - self._started_s
        status = cluster_status(self._controller, self._labels, uptime_s)
        return self._observer.with_findings(status)

    async def _status(self, _request: Request) -> Response:
        return json_answer(self._statuses.now())

    async def _scrape(self, _request: Request) -> Response:
        return Response(self._metrics(self._statuses.now()), media_type=self._metrics_type)

    async def _describe(self, _request: Request) -> Response:
        return Response(_encoded_description(), media_type="application/json")

    async def _events(self, request: Request) -> Response:
        query = _query(request, EventsQuery)
        log = self._controller.journal.log
        try:
            if query.matching.strip():
                return json_answer(await found_events(log, query))
            page = log.after(query.after or None, query.limit)
        except ValueError as error:
            raise ApiError(400, "bad_position", str(error), "llumctl events") from error
        events = tuple(event_model(event, position) for position, event in page.entries)
        return json_answer(
            EventPage(events=events, next_position=page.next_position, missed=page.missed)
        )

    async def _history(self, request: Request) -> Response:
        body = await self._observer.report(_query(request, HistoryQuery))
        return Response(body, media_type="application/json")

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

        self._num_watchers += 1  # before any await, because many clients may ask at once
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
        # A drain may have ended while the frontends answered.
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
        """Begins to stop the cluster. Called again, it only reports how far the stop has come."""
        order = StopRequest.model_validate_json(await request.body() or b"{}")
        if self._controller.would_stop(order.drain):  # otherwise the call only asks for progress
            how = f"stop: grace {order.grace_s:g} s" if order.drain else "stop at once"
            await self._log.note(request.scope, how, "the cluster", "begun")
            self._controller.stop(order.drain, order.grace_s)
        progress = StopProgress(
            stopped=self._controller.stopped, num_live_reqs=self._controller.num_live_reqs
        )
        return json_answer(progress)

    async def _traffic(self, request: Request) -> Response:
        """Records traffic until the caller leaves."""
        wanted = TrafficRequest.model_validate_json(await request.body())
        asked = TrafficAsked(bytes.fromhex(wanted.key), wanted.prefix_hash_tokens)
        return TrafficStream(self._controller.traffic, asked, self._log)


def _query(request: Request, model: type[Query], *, repeatable: Sequence[str] = ()) -> Query:
    """The query's parameters. For a name that is not `repeatable` the last value counts.

    Raises ValidationError for a wrong value. It raises the same error for an unknown name, so that
    a typing error is not ignored."""
    given: dict[str, Any] = {}
    for name in request.query_params:
        values = request.query_params.getlist(name)
        given[name] = values if name in repeatable else values[-1]
    return model.model_validate(given)


# -- what is read line by line ---------------------------------------------------------------------
# Statuses and events as they come, the traffic that is being recorded, and the logs of members.
#
# Nothing is queued for a slow reader of the watch stream: it gets the events that the journal still
# has, and a gap frame for the events that the journal has dropped.

PING_EVERY_S = 1.0
# Events, or requests, that come this close together are sent together.
GATHER_S = 0.05
PAGE_EVENTS = 500
# A status for watchers is built again after this time. With 64 instances it takes 3 ms to build.
# When each of 64 watchers had a status of its own, that took four cores.
STATUS_LASTS_S = 0.05
LATEST = "latest"


class EventsQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    after: str = Field(default="", max_length=64)
    limit: int = Field(default=1000, ge=1, le=10_000)
    matching: str = Field(default="", max_length=400)
    """With words, the answer has the newest events that have all of them, instead of the oldest."""


SEARCHED_AT_ONCE = 500
"""Events that are searched before others get the event loop: 3 ms."""


async def found_events(log: EventLog, query: EventsQuery) -> EventPage:
    """The newest events with the wanted words. Raises ValueError for a bad position."""
    found: deque[Event] = deque(maxlen=query.limit)
    position, num_searched = query.after or None, 0
    while True:
        page = log.after(position, SEARCHED_AT_ONCE)
        if not num_searched:
            missed = page.missed
        num_searched += len(page.entries)
        for at, event in page.entries:
            shown_event = event_model(event, at)
            if matches(searched(shown_event), query.matching):
                found.append(shown_event)
        if len(page.entries) < SEARCHED_AT_ONCE:
            return EventPage(
                events=tuple(found),
                next_position=page.next_position,
                missed=missed,
                num_searched=num_searched,
            )
        position = page.next_position
        await asyncio.sleep(0)


class WatchQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    after: str = Field(default=LATEST, max_length=64)
    events: bool = True
    status_every_s: float | None = Field(default=None, ge=0.05, le=3600)


class LatestStatus:
    """One status for all readers. It is built again when it is older than 50 ms."""

    def __init__(self, build: Callable[[], ClusterStatus]) -> None:
        self._build = build
        self.lasts_s = STATUS_LASTS_S
        self._latest: tuple[ClusterStatus, float] | None = None
        """The status, and when it was built."""
        self._line: bytes | None = None

    def now(self) -> ClusterStatus:
        now_s = time.monotonic()
        if self._latest is None or now_s >= self._latest[1] + self.lasts_s:
            self._latest, self._line = (self._build(), now_s), None
        return self._latest[0]

    def line(self) -> bytes:
        """The status as a line of the watch stream, which is the same for all watchers."""
        status = self.now()
        if self._line is None:
            self._line = _line(StatusFrame(time_s=time.time(), status=status))
        return self._line

    def forget(self) -> None:
        """Drops the status, because an operator changed something that the next reader has to
        see."""
        self._latest = None


def frames(journal: Journal, statuses: LatestStatus, query: WatchQuery) -> AsyncIterator[bytes]:
    """The lines of a watch stream. Raises ValueError if `query.after` is not a position."""
    position = journal.log.last_position if query.after == LATEST else query.after or None
    journal.log.after(position, 0)
    return _frames(journal, statuses, query, position)


def _line(frame: WireModel) -> bytes:
    return frame.model_dump_json().encode() + b"\n"


async def _frames(
    journal: Journal,
    statuses: LatestStatus,
    query: WatchQuery,
    position: str | None,
) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    status_at_s = loop.time() if query.status_every_s is not None else float("inf")
    ping_at_s = 0.0
    while True:
        lines: list[bytes] = []
        if query.events:
            page = journal.log.after(position, PAGE_EVENTS)
            position = page.next_position
            if page.missed != 0:
                lines.append(_line(GapFrame(time_s=time.time(), missed=page.missed)))
            lines += [
                _line(EventFrame(time_s=time.time(), event=event_model(event, at)))
                for at, event in page.entries
            ]
        now_s = loop.time()
        if query.status_every_s is not None and now_s >= status_at_s:
            status_at_s = max(status_at_s + query.status_every_s, now_s)
            lines.append(statuses.line())
        if not lines and now_s >= ping_at_s:
            lines.append(_line(PingFrame(time_s=time.time())))
        if lines:
            ping_at_s = now_s + PING_EVERY_S
            yield b"".join(lines)
        if not query.events or position == journal.log.last_position:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(min(status_at_s, ping_at_s)):
                    await (journal.wait() if query.events else asyncio.Event().wait())
        if query.events:
            await asyncio.sleep(GATHER_S)


TRAFFIC_EVERY_S = 1.0


class TrafficStream(StreamingResponse):
    """Begins the recording when the stream is made, and ends it when the stream ends, even if the
    first line was never read. The operators' log has an entry for both. Raises ApiError if another
    recording is under way."""

    def __init__(self, traffic: Traffic, asked: TrafficAsked, log: OperatorLog) -> None:
        if not traffic.takes(asked):
            raise ApiError(
                409,
                "recorded_already",
                "the traffic of this cluster is being recorded already, and there is one recording"
                " at a time",
                "llumctl events --kind operator",
            )
        self._traffic = traffic
        self._log = log
        self._recording = traffic.begin(asked)
        super().__init__(_traffic_lines(self._recording), media_type="application/x-ndjson")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            deed = ("record the traffic", "the cluster")
            async with self._log.operation(scope, deed, lasts=True):
                await super().__call__(scope, receive, send)
        finally:
            self._traffic.end(self._recording)


async def _traffic_lines(recording: TrafficRecording) -> AsyncIterator[bytes]:
    while not recording.replaced:
        yield _traffic_line(recording.take())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(recording.news.wait(), TRAFFIC_EVERY_S)
        await asyncio.sleep(GATHER_S)


def _traffic_line(batch: Batch) -> bytes:
    return _line(
        TrafficBatch(
            time_s=time.time(),
            requests=tuple(
                shown(
                    RequestTraffic,
                    each,
                    outcome=RequestState(each.outcome),
                    prefix_hashes=each.prefix_hashes.hex(),
                )
                for each in batch.requests
            ),
            num_lost=batch.num_lost,
            num_live=batch.num_live,
        )
    )


OURS = ("controller", "head")
"""The processes that write logs but are not members."""
MAX_LINES = 500
MAX_LINE_CHARS = 1000
"""A longer line is cut, so that an answer has half a million characters at most."""


class LogQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    lines: int = Field(default=100, ge=1, le=MAX_LINES)


async def member_log(
    controller: ControllerProcess, log_dir: Path, member_id: str, query: LogQuery
) -> MemberLog:
    """The last lines of the log of a member, of the controller or of the head process, if that log
    is on this machine. A file is only named by a member's id or by one of `OURS`, never by a path.
    """
    if member_id not in controller.roster.members and member_id not in OURS:
        raise ApiError(404, "not_found", f"there is no member {member_id[:60]!r}", "llumctl status")
    path = log_dir / f"{member_id}.log"
    if not path.exists():
        message = f"the log of {member_id} is not on the controller's machine"
        raise ApiError(404, "no_log", message, "llumctl logs      on the member's machine")
    lines = await asyncio.to_thread(_last, path, query.lines)
    return MemberLog(member_id=member_id, lines=tuple(line[:MAX_LINE_CHARS] for line in lines))


def _last(path: Path, num_lines: int) -> list[str]:
    with closing(LogTail(path)) as tail:
        return (tail.last(num_lines) + tail.unfinished())[-num_lines:]


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
