"""The calls of the control API about one model: those that look, and the routes of orders, which
their handlers carry out. `calls.py` has what all calls share."""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from controller.adapters.http import (
    adapter_orders,
    attached_orders,
    cluster_orders,
    instance_orders,
    request_orders,
)
from controller.adapters.http.calls import (
    AnswersByKey,
    ApiError,
    json_answer,
    shown,
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
    NameQuery,
    RequestsQuery,
    event_model,
    explain_request,
    find_request,
    list_requests,
    name_request,
)
from controller.api.operations.on_instances import DrainList
from controller.api.operations.table import OperationList, Undo
from controller.api.settings.settings import Settings
from controller.api.state.audit import AuditLog
from controller.api.state.log_tail import LogTail
from controller.api.text.events import matches, searched
from controller.api.wire import WireModel
from controller.api.wire.requests import (
    Event,
    EventPage,
    RequestState,
)
from controller.api.wire.status import ClusterStatus
from controller.api.wire.stream import (
    EventFrame,
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
from controller.runtime.controller.traffic import Batch, Traffic, TrafficRecording
from controller.runtime.messages.requests import TrafficAsked

log = logging.getLogger(__name__)

MAX_WATCHERS = 64

HANDLERS: tuple[type[Handler[Any, Any]], ...] = (
    *instance_orders.HANDLERS,
    *request_orders.HANDLERS,
    *cluster_orders.HANDLERS,
    *adapter_orders.HANDLERS,
    *attached_orders.HANDLERS,
)
"""One handler for each row of `controller.api.operations.table`."""

Query = TypeVar("Query", bound=BaseModel)


class ModelApi:
    """The calls about one model: all calls but those about the whole process. `settings`: the
    settings of the running controller. `log_dir`: where members write their logs. `check_engine`
    checks engine arguments that a rolling restart is to change, `check_python` an interpreter that
    it is to use, `check_adapter` a LoRA adapter that is to be loaded, `check_server` a
    server that is to be attached. The history is kept in `history`. `beside`: the calls about the
    first one of several models."""

    def __init__(
        self,
        controller: ControllerProcess,
        labels: ClusterLabels,
        audit: AuditLog,
        settings: Settings,
        log_dir: Path,
        check_engine: EngineCheck = allow_all,
        check_python: PythonCheck = allow_all,
        check_adapter: AdapterCheck = no_adapters,
        check_server: ServerCheck = no_servers,
        history: HistoryStore | None = None,
        beside: "ModelApi | None" = None,
    ) -> None:
        self.controller = controller
        self.limits = settings.console
        self._labels = labels
        self._audit = audit
        self.log = OperatorLog(audit, controller.journal)
        first = None if beside is None else beside._live_settings
        self._live_settings: LiveSettings = LiveSettings(controller, settings, first)
        self._log_dir = log_dir
        self._started_s = time.monotonic()
        self.statuses = LatestStatus(self._new_status)
        self.observer = Observer([controller], self.statuses.now, settings.console, history)
        self.operated = Operated(
            controller,
            self._live_settings,
            check_engine,
            check_python,
            check_adapter,
            check_server,
        )
        self._num_watchers = 0

    def routes(self, answers: AnswersByKey, changing: asyncio.Lock) -> list[Route]:
        """`changing`: held from the check of the cluster's revision until a spec is changed."""
        orders = Orders(self.operated, self.log, answers.once, changing)
        return [
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
            *orders.routes(
                HANDLERS,
                {"/v1/settings": self._settings, "/v1/rolling-restart": self._rolling},
            ),
            Route("/v1/traffic", self._traffic, methods=["POST"]),
        ]

    # -- looking -------------------------------------------------------------------------

    def _new_status(self) -> ClusterStatus:
        uptime_s = time.monotonic() - self._started_s
        status = cluster_status(self.controller, self._labels, uptime_s)
        return self.observer.with_findings(status)

    async def _status(self, _request: Request) -> Response:
        return json_answer(self.statuses.now())

    async def _events(self, request: Request) -> Response:
        query = query_of(request, EventsQuery)
        log = self.controller.journal.log
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
        body = await self.observer.report(query_of(request, HistoryQuery))
        return Response(body, media_type="application/json")

    async def _watch(self, request: Request) -> Response:
        return self.watched(request, self.statuses)

    def watched(self, request: Request, statuses: "LatestStatus") -> Response:
        """The stream of the events and of these statuses. Raises ApiError."""
        query = query_of(request, WatchQuery)
        if self._num_watchers >= MAX_WATCHERS:
            raise ApiError(429, "too_many_watchers", f"{MAX_WATCHERS} watch already")
        try:
            lines = frames(self.controller.journal, statuses, query)
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
        query = query_of(request, RequestsQuery, repeatable=("state",))
        return json_answer(await list_requests(self.controller, query))

    async def _request(self, request: Request) -> Response:
        return json_answer(await find_request(self.controller, request.path_params["reference"]))

    async def _request_name(self, request: Request) -> Response:
        query, reference = query_of(request, NameQuery), request.path_params["reference"]
        return json_answer(await name_request(self.controller, reference, query))

    async def _explain(self, request: Request) -> Response:
        return json_answer(await explain_request(self.controller, request.path_params["reference"]))

    async def _member_log(self, request: Request) -> Response:
        query, member_id = query_of(request, LogQuery), request.path_params["member_id"]
        return json_answer(await member_log(self.controller, self._log_dir, member_id, query))

    async def _settings(self, _request: Request) -> Response:
        return json_answer(self._live_settings.listed())

    async def _drains(self, _request: Request) -> Response:
        return json_answer(await self.drains())

    async def drains(self) -> DrainList:
        keeper = self.controller.keeper
        reports = await SteerReports(self.controller).several(
            sorted(keeper.spec.drains), keeper.revision, lately=True
        )
        # A drain may have ended while the frontends answered.
        return DrainList(drains=tuple(r for r in reports if r.drain_id))

    async def _rolling(self, _request: Request) -> Response:
        return json_answer(rolling_report(self.controller))

    async def _operations(self, request: Request) -> Response:
        query = query_of(request, OperationsQuery)
        return json_answer(await self.operations(query, self._operated_of))

    def _operated_of(self, undo: Undo | None) -> Operated | None:
        is_own = undo is None or undo.model in ("", self.controller.model)
        return self.operated if is_own else None

    async def operations(
        self, query: OperationsQuery, operated_of: Callable[[Undo | None], Operated | None]
    ) -> OperationList:
        """`operated_of`: as in `operations_done`."""
        return await operations_done(
            operated_of,
            {each.row.kind: each for each in HANDLERS},
            self._audit,
            since_s=self._labels.started_at_s,
            limit=query.limit,
        )

    # -- acting --------------------------------------------------------------------------

    async def _traffic(self, request: Request) -> Response:
        """Records traffic until the caller leaves."""
        wanted = TrafficRequest.model_validate_json(await request.body())
        asked = TrafficAsked(bytes.fromhex(wanted.key), wanted.prefix_hash_tokens)
        return TrafficStream(self.controller.traffic, asked, self.log)


def query_of(request: Request, model: type[Query], *, repeatable: Sequence[str] = ()) -> Query:
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
