"""What the dashboard knows, computed by a pure function from what it heard: `reduce`.

The file begins with what can be heard: frames of the stream, the loss of the stream, and answers to
questions. Then comes the state that is kept: the last status, the event list, and for each instance
its last minute, its last hour and its changes of state. Routine events are kept apart from the
others: hundreds of them may come with each status, and most screens show none.

All times are in seconds. `at_s` is the time on the dashboard's own clock (of any origin; in a
replay it is the recording's clock) and gives ages. `time_s` is the time on the controller's clock,
since the epoch, and gives times of day.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import NamedTuple

from controller.api.recording import Recorded, after
from controller.api.settings.settings import ConsoleTable
from controller.api.text.alarms import Alarm, alarms
from controller.api.text.events import STORM_KINDS, Weight, weight
from controller.api.wire.history import HistoryReport
from controller.api.wire.requests import Event, Explanation, RequestList
from controller.api.wire.status import ClusterStatus, InstanceState, InstanceStatus
from controller.api.wire.stream import (
    EventFrame,
    Frame,
    GapFrame,
    HistoryFrame,
    MemberLog,
    PingFrame,
    RequestsFrame,
    StatusFrame,
)
from tui.past import Past

MOVES_S = 60.0
MAX_EVENTS = 1000
"""How many routine events are kept."""
MAX_RARE = 300
"""How many events are kept of each other kind. There are four such kinds: notable events and bad
events, each about requests or about members. So neither routine events nor a thousand refused
requests push out the news that an instance died."""
RATE_S = 5
"""Over how many whole seconds routine events are counted by kind."""
TREND_S = 60.0
HEAT_MINUTES = 60
MAX_CHANGES = 50
REMEMBERED_S = 3600.0
"""How long the history of an instance that left is kept."""
PINGED_S = 3.0
"""A silence of the stream that is longer than this is more than jitter, because an idle stream
carries a ping every second."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """A frame of the stream."""

    frame: Frame
    at_s: float


@dataclass(frozen=True, slots=True)
class Lost:
    """The stream ended, or there was none."""

    reason: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Stopped:
    """An operator stopped the cluster, so its recording is complete. Later frames belong to another
    cluster."""

    reason: str
    at_s: float


@dataclass(frozen=True, slots=True)
class RequestsArrived:
    """An instance's requests, or the reason why there are none to show."""

    instance_id: str
    found: RequestList | None
    reason: str
    at_s: float


@dataclass(frozen=True, slots=True)
class ExplanationArrived:
    """A request's life and its present state, or the reason why there is nothing to show."""

    request_id: str
    found: Explanation | None
    reason: str
    at_s: float


@dataclass(frozen=True, slots=True)
class LogArrived:
    """The last lines of a member's log, or the reason why there are none to show."""

    member_id: str
    found: MemberLog | None
    reason: str
    at_s: float


@dataclass(frozen=True, slots=True)
class HistoryArrived:
    """What the controller remembers: the history of the cluster, that of its instances, or what is
    new; empty if it tells none."""

    found: tuple[HistoryReport, ...]
    at_s: float


@dataclass(frozen=True, slots=True)
class RecordingFailed:
    """A recording failed: from here on nothing is recorded."""

    reason: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the event list: an event, or a gap in which `missed` events were lost."""

    seq: int
    time_s: float
    event: Event | None = None
    missed: int | None = None
    reason: str = ""
    """Why the events of a gap are missing; empty if the controller has forgotten them."""
    weight: Weight = Weight.ROUTINE

    @property
    def ring(self) -> tuple[Weight, bool]:
        """The weight, and whether the entry is about a request. These two name the ring to which
        the entry belongs: a rare entry pushes out only older entries of its own ring."""
        return self.weight, self.event is not None and self.event.request_id is not None


@dataclass(frozen=True, slots=True)
class Way:
    """The instances between which a request moved."""

    time_s: float
    source: str
    destination: str


Counts = Mapping[int, Mapping[str, int]]
"""For each second with routine events, the number of events of each kind."""


class Sample(NamedTuple):
    time_s: float
    freeness_steps: float | None
    step_time_s: float | None = None


class Minute(NamedTuple):
    """The KV use in one minute of the controller's clock: the sum of the samples and their
    number."""

    minute: int
    sum: float
    num: int

    @property
    def mean(self) -> float:
        return self.sum / self.num


@dataclass(frozen=True, slots=True)
class Change:
    """An instance appeared, changed its state, or disappeared (state None)."""

    time_s: float
    state: InstanceState | None
    incarnation: int
    detail: str
    was_so: bool = False
    """Whether the state was the same already when the dashboard began to follow the cluster, so
    that nobody knows since when."""


@dataclass(frozen=True, slots=True)
class History:
    """One instance's freeness in the last minute, its KV use in the last hour, and its last
    changes, the oldest first."""

    samples: tuple[Sample, ...] = ()
    """One sample for each second, from the first status in that second. The curves show no more,
    and further statuses in the same second cost nothing."""
    changes: tuple[Change, ...] = ()
    minutes: tuple[Minute, ...] = ()
    """The KV use of the last hour, oldest first; minutes without a figure are missing."""


@dataclass(frozen=True, slots=True)
class DashboardState:
    status: ClusterStatus | None = None
    status_at_s: float | None = None
    heard_at_s: float | None = None
    time_s: float = 0.0
    """The controller's clock when the controller was last heard."""
    lost: str = ""
    """Why there is no stream at present; empty while there is one."""
    stopped: Stopped | None = None
    histories: Mapping[str, History] = field(default_factory=dict)
    routine: tuple[Entry, ...] = ()
    """The last routine events, the oldest first."""
    storm: tuple[Entry, ...] = ()
    """The last routine events that many at once would make trouble, the oldest first."""
    rare: tuple[Entry, ...] = ()
    """The other events, and gaps, the oldest first. The tuple stays the same object until another
    entry comes."""
    num_entries: int = 0
    """How many entries have come since the beginning."""
    ways: tuple[Way, ...] = ()
    """The moves of the last minute, which ends when the controller was last heard, on its own
    clock."""
    head_seen_s: float = float("-inf")
    """When a request was last seen waiting, on the controller's clock."""
    counts: Counts = field(default_factory=dict)
    """The numbers of routine events in the last seconds."""
    requests: RequestsArrived | None = None
    explanation: ExplanationArrived | None = None
    log: LogArrived | None = None
    past: Past = field(default_factory=Past)
    recorded: Recorded | None = None
    """In a replay, the last recorded requests; None if no requests were recorded."""
    recording_failed: str = ""
    recording_ended: bool = False
    limits: ConsoleTable = field(default_factory=ConsoleTable)
    """The thresholds of alarms."""
    alarms: tuple[Alarm, ...] = ()
    """The alarms, the worst first."""

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries, the oldest first. They are put together on each call."""
        return tuple(sorted((*self.rare, *self.routine), key=attrgetter("seq")))

    @property
    def num_kept(self) -> int:
        return len(self.rare) + len(self.routine)

    def instance(self, instance_id: str) -> InstanceStatus | None:
        instances = self.status.instances if self.status else ()
        return next((item for item in instances if item.id == instance_id), None)

    def rates(self) -> dict[str, float]:
        """How many routine events of each kind come per second."""
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
        """The time on the controller's clock now; None if the controller was never heard."""
        if self.heard_at_s is None:
            return None
        return self.time_s + max(0.0, now_s - self.heard_at_s)

    def is_stale(self, now_s: float, status_every_s: float) -> bool:
        """Whether the state no longer shows the present."""
        if self.stopped is not None:
            return True
        if self.status_at_s is None or self.heard_at_s is None:
            return bool(self.lost)
        silent = now_s - self.heard_at_s > PINGED_S
        overdue = now_s - self.status_at_s > 2 * status_every_s + PINGED_S
        return bool(self.lost) or silent or overdue


class Unread:
    """Collects events and gaps that are not in the state yet. Hundreds may come between two
    statuses; making a new state for each took as long as everything else in `reduce`."""

    def __init__(self, num_entries: int) -> None:
        """`num_entries`: how many entries came before."""
        self.num_entries = num_entries
        self.routine: list[Entry] = []
        self.storm: list[Entry] = []
        self.rare: list[Entry] = []
        self.ways: list[Way] = []
        self.counts: dict[int, Counter[str]] = {}
        self.last: tuple[float, float] | None = None
        """When the last frame was heard, and what the controller's clock said then."""

    def hear(self, frame: EventFrame | GapFrame | PingFrame, at_s: float) -> None:
        self.last = at_s, frame.time_s
        if isinstance(frame, EventFrame):
            self._hear_event(frame.event)
        elif isinstance(frame, GapFrame):
            missed, reason = frame.missed, frame.reason
            self.rare.append(
                Entry(self.num_entries, frame.time_s, None, missed, reason, Weight.TROUBLE)
            )
            self.num_entries += 1

    def _hear_event(self, event: Event) -> None:
        of = weight(event)
        entry = Entry(self.num_entries, event.time_s, event, weight=of)
        self.num_entries += 1
        if of is Weight.ROUTINE:
            self.routine.append(entry)
            if event.kind in STORM_KINDS:
                self.storm.append(entry)
            # Past events, which come first after connecting, count in their own seconds.
            second = int(event.time_s)
            if (counts := self.counts.get(second)) is None:
                counts = self.counts[second] = Counter()
            counts[event.kind] += 1
        else:
            self.rare.append(entry)
        if event.kind == "migrated" and event.labels.keys() >= {"from", "to"}:
            self.ways.append(Way(event.time_s, event.labels["from"], event.labels["to"]))


@dataclass(frozen=True, slots=True)
class Replayed:
    """A replay went to another moment; this is the state at that moment."""

    state: DashboardState


Heard = (
    Arrived
    | Lost
    | Stopped
    | RequestsArrived
    | ExplanationArrived
    | LogArrived
    | HistoryArrived
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
            if isinstance(item.frame, EventFrame | GapFrame | PingFrame):
                unread.hear(item.frame, item.at_s)
                continue
        state = _read(state, unread)
        unread = Unread(state.num_entries)
        if isinstance(item, Arrived) and isinstance(item.frame, StatusFrame):
            state = _status(state, item.frame, item.at_s)
        elif isinstance(item, Arrived) and isinstance(item.frame, RequestsFrame):
            state = replace(state, recorded=after(state.recorded or {}, item.frame))
        elif isinstance(item, Arrived) and isinstance(item.frame, HistoryFrame):
            state = _with_past(state, state.past.with_history(item.frame.history))
        elif isinstance(item, HistoryArrived):
            state = _told(state, item)
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
            # Screens ask again soon; until then they show the answers that they have.
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
        routine=_latest(state.routine, unread.routine),
        storm=_latest(state.storm, unread.storm),
        rare=_rare(state.rare, unread.rare),
        num_entries=unread.num_entries,
        counts=_counted(state.counts, unread.counts, time_s),
        ways=_recent_ways((*state.ways, *unread.ways), time_s),
    )


def _of_another_cluster(state: DashboardState) -> DashboardState:
    """The state at the beginning of another cluster. Entries keep counting, as their numbers are
    ids."""
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
        histories=_histories_after(state.histories, frame, state.past),
        past=state.past.with_status(frame.status),
        alarms=tuple(alarms(frame.status, state.limits, state.alarms)),
        ways=_recent_ways(state.ways, frame.time_s),
        head_seen_s=frame.time_s
        if frame.status.held or any(item.queue_head for item in frame.status.instances)
        else min(state.head_seen_s, frame.time_s),
    )


def _told(state: DashboardState, item: HistoryArrived) -> DashboardState:
    """The state after an answer about the history. Without an answer nothing is told, and what is
    missing is derived from the statuses."""
    past = state.past
    for report in item.found:
        past = past.with_history(report)
    return _with_past(state, replace(past, is_told=bool(item.found) or past.is_told))


def _with_past(state: DashboardState, past: Past) -> DashboardState:
    """The state with this past. The trends of the instances begin with what is told of them."""
    if past.freeness is state.past.freeness:
        return replace(state, past=past)
    histories = {
        instance_id: replace(history, samples=_earlier(past, instance_id, history.samples))
        for instance_id, history in state.histories.items()
    }
    return replace(state, past=past, histories=histories)


def _earlier(past: Past, instance_id: str, samples: tuple[Sample, ...]) -> tuple[Sample, ...]:
    """The samples, and before them what is told of the time before."""
    if not samples or instance_id not in past.freeness:
        return samples
    first_s, last_s = samples[0].time_s, samples[-1].time_s
    told = [
        Sample(time_s, steps)
        for time_s, steps in past.freeness[instance_id]
        if last_s - TREND_S < time_s < first_s
    ]
    return (*told, *samples)


def _latest(known: tuple[Entry, ...], new: list[Entry]) -> tuple[Entry, ...]:
    """The routine entries that are kept."""
    return (*known, *new)[-MAX_EVENTS:] if new else known


def _rare(known: tuple[Entry, ...], new: list[Entry]) -> tuple[Entry, ...]:
    """The other entries that are kept. Each ring forgets its oldest entries."""
    if not new:
        return known
    found = (*known, *new)
    sizes = Counter(entry.ring for entry in found)
    excess = {ring: size - MAX_RARE for ring, size in sizes.items() if size > MAX_RARE}
    if not excess:
        return found
    kept: list[Entry] = []
    for entry in found:
        if excess.get(entry.ring):
            excess[entry.ring] -= 1
        else:
            kept.append(entry)
    return tuple(kept)


def _counted(known: Counts, new: Mapping[int, Counter[str]], now_s: float) -> Counts:
    """The counts of the last seconds."""
    counts = {at: each for at, each in known.items() if abs(now_s - at) <= RATE_S + 2}
    for second, of_second in new.items():
        counts[second] = Counter(counts.get(second, {})) + of_second
    return counts


def _recent_ways(ways: Iterable[Way], now_s: float) -> tuple[Way, ...]:
    """The moves of the last minute. Because machines' clocks differ and may be set back, a move may
    seem to be up to a minute in the future; such a move counts too."""
    return tuple(way for way in ways if abs(now_s - way.time_s) < MOVES_S)


def _histories_after(
    known: Mapping[str, History], frame: StatusFrame, past: Past
) -> dict[str, History]:
    """The histories after one more status."""
    present = {item.id: item for item in frame.status.instances}
    is_first = not known
    found = {
        instance_id: _observed(
            known.get(instance_id, History()), item, frame.time_s, past, is_first=is_first
        )
        for instance_id, item in present.items()
    }
    for instance_id, history in known.items():
        if instance_id not in present and frame.time_s - history.changes[-1].time_s < REMEMBERED_S:
            found[instance_id] = _departed(history, frame.time_s)
    return found


def _observed(
    history: History, item: InstanceStatus, time_s: float, past: Past, *, is_first: bool
) -> History:
    samples, minutes = history.samples, history.minutes
    if not samples or int(samples[-1].time_s) != int(time_s):
        freeness = None if item.state is InstanceState.DRAINING else item.freeness_steps
        is_new = not samples
        samples = (*_recent(samples, time_s), Sample(time_s, freeness, item.step_time_s))
        if is_new:
            samples = _earlier(past, item.id, samples)
        minutes = _minutes(minutes, item.kv_cache_usage, int(time_s // 60))
    changes = _changes(history.changes, item, time_s, was_so=is_first)
    if samples is history.samples and changes is history.changes:
        return history
    return History(samples, changes, minutes)


def _recent(samples: tuple[Sample, ...], time_s: float) -> tuple[Sample, ...]:
    """The samples of the minute before `time_s`; none if the clock was set back."""
    if samples and samples[-1].time_s > time_s:
        return ()
    first = 0
    while first < len(samples) and samples[first].time_s <= time_s - TREND_S:
        first += 1
    return samples[first:]


def _changes(
    known: tuple[Change, ...], item: InstanceStatus, time_s: float, *, was_so: bool
) -> tuple[Change, ...]:
    last = known[-1] if known else None
    if last is None or last.state is not item.state or last.incarnation != item.incarnation:
        change = Change(time_s, item.state, item.incarnation, item.detail, was_so)
        return (*known, change)[-MAX_CHANGES:]
    if last.detail == item.detail:
        return known
    return (*known[:-1], replace(last, detail=item.detail))


def _minutes(known: tuple[Minute, ...], usage: float | None, now: int) -> tuple[Minute, ...]:
    if known and (known[-1].minute > now or known[0].minute <= now - HEAT_MINUTES):
        known = tuple(each for each in known if now - HEAT_MINUTES < each.minute <= now)
    if usage is None:
        return known
    if known and known[-1].minute == now:
        last = known[-1]
        return (*known[:-1], Minute(now, last.sum + usage, last.num + 1))
    return (*known, Minute(now, usage, 1))


def _departed(history: History, time_s: float) -> History:
    last = history.changes[-1]
    if last.state is None:
        return history
    gone = Change(time_s, None, last.incarnation, "no longer part of the cluster")
    return History((), (*history.changes, gone)[-MAX_CHANGES:])
