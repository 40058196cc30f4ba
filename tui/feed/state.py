"""What the dashboard knows, as a pure function of what it heard.

All times are seconds. `at_s` is the dashboard's own clock (any origin; in a replay the recording's)
and tells ages; `time_s` is the controller's, since the epoch, and tells times of day.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter

from controller.api.recorded_requests import Recorded, after
from controller.api.settings.settings import ConsoleTable
from controller.api.text.alarms import Alarm, alarms
from controller.api.wire.status import ClusterStatus, InstanceStatus
from controller.api.wire.stream import RequestsFrame, StatusFrame
from tui.feed import entries, histories
from tui.feed.entries import RATE_S, Counts, Entry, Unread, Way
from tui.feed.histories import History
from tui.feed.messages import (
    Arrived,
    ExplanationArrived,
    LogArrived,
    Lost,
    RecordingFailed,
    RequestsArrived,
    Stopped,
)

PINGED_S = 3.0
"""An idle stream is pinged every second: a longer silence than this is no jitter."""


@dataclass(frozen=True, slots=True)
class DashboardState:
    status: ClusterStatus | None = None
    status_at_s: float | None = None
    heard_at_s: float | None = None
    time_s: float = 0.0
    """The controller's clock when it was last heard."""
    lost: str = ""
    """Why there is no stream at present; empty while there is one."""
    stopped: Stopped | None = None
    histories: Mapping[str, History] = field(default_factory=dict)
    routine: tuple[Entry, ...] = ()
    """The last routine events, the oldest first."""
    rare: tuple[Entry, ...] = ()
    """The other events, and gaps, the oldest first; the same object until there is another."""
    num_entries: int = 0
    """How many entries ever came."""
    ways: tuple[Way, ...] = ()
    """The moves of the last minute, as the controller's clock had it when it was last heard."""
    head_seen_s: float = float("-inf")
    """When a request was last seen to wait, by the controller's clock."""
    counts: Counts = field(default_factory=dict)
    """Of routine events in the last seconds."""
    requests: RequestsArrived | None = None
    explanation: ExplanationArrived | None = None
    log: LogArrived | None = None
    recorded: Recorded | None = None
    """In a replay: the requests that were recorded last, if requests were."""
    recording_failed: str = ""
    recording_ended: bool = False
    limits: ConsoleTable = field(default_factory=ConsoleTable)
    """From where on there is an alarm."""
    alarms: tuple[Alarm, ...] = ()
    """The worst first."""

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries, the oldest first; put together when they are asked for."""
        return tuple(sorted((*self.rare, *self.routine), key=attrgetter("seq")))

    @property
    def num_kept(self) -> int:
        return len(self.rare) + len(self.routine)

    def instance(self, instance_id: str) -> InstanceStatus | None:
        instances = self.status.instances if self.status else ()
        return next((item for item in instances if item.id == instance_id), None)

    def rates(self) -> dict[str, float]:
        """Routine events of each kind per second."""
        now = int(self.time_s)
        found: Counter[str] = Counter()
        for second, counts in self.counts.items():
            if now - RATE_S <= second < now:
                found.update(counts)
        return {kind: count / RATE_S for kind, count in found.items()}

    def age_s(self, now_s: float) -> float | None:
        """The age of the newest status; None before the first."""
        return None if self.status_at_s is None else max(0.0, now_s - self.status_at_s)

    def controller_time_s(self, now_s: float) -> float | None:
        """What the controller's clock shows now; None if it was never heard."""
        if self.heard_at_s is None:
            return None
        return self.time_s + max(0.0, now_s - self.heard_at_s)

    def is_stale(self, now_s: float, status_every_s: float) -> bool:
        """Whether what is shown is no longer how things are."""
        if self.stopped is not None:
            return True
        if self.status_at_s is None or self.heard_at_s is None:
            return bool(self.lost)
        silent = now_s - self.heard_at_s > PINGED_S
        overdue = now_s - self.status_at_s > 2 * status_every_s + PINGED_S
        return bool(self.lost) or silent or overdue


@dataclass(frozen=True, slots=True)
class Replayed:
    """A replay went to another moment, at which this was known."""

    state: DashboardState


Heard = (
    Arrived
    | Lost
    | Stopped
    | RequestsArrived
    | ExplanationArrived
    | LogArrived
    | RecordingFailed
    | Replayed
)


def reduce(state: DashboardState, heard: Iterable[Heard]) -> DashboardState:
    """The state after all that was heard, in order."""
    unread = Unread(state.num_entries)
    for item in heard:
        if isinstance(item, Arrived):
            if state.stopped is not None:
                state = _of_another_cluster(state)
                unread = Unread(state.num_entries)
            if not isinstance(item.frame, StatusFrame | RequestsFrame):
                unread.hear(item.frame, item.at_s)
                continue
        state = _read(state, unread)
        unread = Unread(state.num_entries)
        if isinstance(item, Arrived) and isinstance(item.frame, StatusFrame):
            state = _status(state, item.frame, item.at_s)
        elif isinstance(item, Arrived) and isinstance(item.frame, RequestsFrame):
            state = replace(state, recorded=after(state.recorded or {}, item.frame))
        elif isinstance(item, Lost):
            state = replace(state, lost=item.reason or "the stream ended")
        elif isinstance(item, Stopped):
            since = state.stopped or item
            now = replace(item, at_s=since.at_s)
            state = replace(state, lost="", stopped=now, recording_ended=True)
        elif isinstance(item, RequestsArrived):
            state = replace(state, requests=item)
        elif isinstance(item, ExplanationArrived):
            state = replace(state, explanation=item)
        elif isinstance(item, LogArrived):
            state = replace(state, log=item)
        elif isinstance(item, RecordingFailed):
            state = replace(state, recording_failed=item.reason)
        elif isinstance(item, Replayed):
            # What was asked for meanwhile is asked for again soon; until then it is shown.
            state = replace(item.state, requests=state.requests, explanation=state.explanation)
            unread = Unread(state.num_entries)
    return _read(state, unread)


def _read(state: DashboardState, unread: Unread) -> DashboardState:
    if unread.last is None:
        return state
    at_s, time_s = unread.last
    if unread.num_entries == state.num_entries:
        return replace(state, heard_at_s=at_s, time_s=time_s, lost="")
    return replace(
        state,
        heard_at_s=at_s,
        time_s=time_s,
        lost="",
        routine=entries.latest(state.routine, unread.routine),
        rare=entries.rare(state.rare, unread.rare),
        num_entries=unread.num_entries,
        counts=entries.counted(state.counts, unread.counts, time_s),
        ways=entries.recent_ways((*state.ways, *unread.ways), time_s),
    )


def _of_another_cluster(state: DashboardState) -> DashboardState:
    """What is known of a cluster that has just begun. Entries keep their numbers: they are ids."""
    return DashboardState(
        num_entries=state.num_entries,
        recording_failed=state.recording_failed,
        recording_ended=state.recording_ended,
        limits=state.limits,
    )


def _status(state: DashboardState, frame: StatusFrame, at_s: float) -> DashboardState:
    return replace(
        state,
        heard_at_s=at_s,
        time_s=frame.time_s,
        lost="",
        status=frame.status,
        status_at_s=at_s,
        histories=histories.after(state.histories, frame),
        alarms=tuple(alarms(frame.status, state.limits, state.alarms)),
        ways=entries.recent_ways(state.ways, frame.time_s),
        head_seen_s=frame.time_s
        if frame.status.held or any(item.queue_head for item in frame.status.instances)
        else min(state.head_seen_s, frame.time_s),
    )
