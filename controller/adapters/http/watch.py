"""The watch stream: statuses and events as lines of JSON, for as long as someone reads.

Nothing is queued for a reader that lags: it gets what the journal still has, and a gap frame for
the events that the journal has dropped.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

from pydantic import BaseModel, ConfigDict, Field

from controller.adapters.http.views.record_view import event_model
from controller.api.wire.base import WireModel
from controller.api.wire.models import ClusterStatus
from controller.api.wire.stream import EventFrame, GapFrame, PingFrame, StatusFrame
from controller.runtime.controller.journal import Journal

PING_EVERY_S = 1.0
# Events that come close together are sent together.
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
