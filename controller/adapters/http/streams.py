"""What is read line by line: statuses and events as they come, the traffic that is being recorded,
and the logs of members.

Nothing is queued for a reader of the watch stream that lags: it gets what the journal still has,
and a gap frame for the events that the journal has dropped.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from controller.adapters.http.answers import ApiError
from controller.adapters.http.perform import OperatorLog
from controller.adapters.http.requests import event_model
from controller.api.state.log_tail import LogTail
from controller.api.wire import WireModel
from controller.api.wire.requests import RequestState
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
from controller.runtime.controller.cluster import ControllerProcess
from controller.runtime.controller.journal import Journal
from controller.runtime.controller.traffic import Batch, Traffic, TrafficRecording
from controller.runtime.messages.requests import TrafficAsked

PING_EVERY_S = 1.0
# Events, or requests, that come close together are sent together.
GATHER_S = 0.05
PAGE_EVENTS = 500
# As often as one watcher may want a status. With 64 instances one takes 3 ms to build, so 64
# watchers that each had their own built took four cores.
STATUS_LASTS_S = 0.05
LATEST = "latest"


class EventsQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    after: str = Field(default="", max_length=64)
    limit: int = Field(default=1000, ge=1, le=10_000)


class WatchQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    after: str = Field(default=LATEST, max_length=64)
    events: bool = True
    status_every_s: float | None = Field(default=None, ge=0.05, le=3600)


class LatestStatus:
    """The status for whoever asks, built anew when it is older than 50 ms."""

    def __init__(self, build: Callable[[], ClusterStatus]) -> None:
        self._build = build
        self.lasts_s = STATUS_LASTS_S
        self._latest: tuple[ClusterStatus, float] | None = None
        """With the time at which it was built."""
        self._line: bytes | None = None

    def now(self) -> ClusterStatus:
        now_s = time.monotonic()
        if self._latest is None or now_s >= self._latest[1] + self.lasts_s:
            self._latest, self._line = (self._build(), now_s), None
        return self._latest[0]

    def line(self) -> bytes:
        """Its line in the watch stream, which is the same for all watchers."""
        status = self.now()
        if self._line is None:
            self._line = _line(StatusFrame(time_s=time.time(), status=status))
        return self._line

    def forget(self) -> None:
        """An operator changed something: who asks next sees it."""
        self._latest = None


def frames(journal: Journal, statuses: LatestStatus, query: WatchQuery) -> AsyncIterator[bytes]:
    """Raises ValueError if `query.after` is no position."""
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


def wanted_traffic(body: bytes) -> TrafficAsked:
    """Raises ValidationError."""
    wanted = TrafficRequest.model_validate_json(body)
    return TrafficAsked(bytes.fromhex(wanted.key), wanted.prefix_hash_tokens)


def refuse_a_second(traffic: Traffic, asked: TrafficAsked) -> None:
    """Raises ApiError if another recording is on."""
    if not traffic.takes(asked):
        raise ApiError(
            409,
            "recorded_already",
            "the traffic of this cluster is being recorded already, and there is one recording at"
            " a time",
            "llumctl events --kind operator",
        )


class TrafficStream(StreamingResponse):
    """Begins the recording, and ends it whether or not its first line was ever asked for; the
    operators' log has both. Raises ApiError if another recording is on."""

    def __init__(self, traffic: Traffic, asked: TrafficAsked, log: OperatorLog) -> None:
        refuse_a_second(traffic, asked)
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
                RequestTraffic(
                    arrival_time_s=each.arrival_time_s,
                    num_prompt_tokens=each.num_prompt_tokens,
                    num_output_tokens=each.num_output_tokens,
                    rank=each.rank,
                    outcome=RequestState(each.outcome),
                    session=each.session,
                    prefix_hashes=each.prefix_hashes.hex(),
                )
                for each in batch.requests
            ),
            num_lost=batch.num_lost,
            num_live=batch.num_live,
        )
    )


OURS = ("controller", "head")
"""Processes that are no members, and write logs all the same."""
MAX_LINES = 500
MAX_LINE_CHARS = 1000
"""Of a longer line the beginning is told: an answer has half a million characters at most."""


class LogQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    lines: int = Field(default=100, ge=1, le=MAX_LINES)


async def member_log(
    controller: ControllerProcess, log_dir: Path, member_id: str, query: LogQuery
) -> MemberLog:
    """The last lines of the log of a member, of the controller or of the head process, if that is
    on this machine. Only a member's id, or one of `OURS`, names a file, so a path cannot."""
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
