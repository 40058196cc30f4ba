"""What happened in the cluster, in order: one bounded log that readers follow by position.

An event says what, when, to whom and why. Its `cause_id` names the stimulus that led to it,
so that all that came of one cause can be read together:

    arrive-REQ             a request came in: its dispatch, its end
    step-INSTANCE-N-K      step K of incarnation N: admissions and evictions
    lost-MEMBER-N          incarnation N of a member was lost: the failures of its requests
    lost-events-MEMBER-N   events of incarnation N of a member did not arrive
    start-MEMBER-N         incarnation N of a member began to serve
    start-controller       the controller came, or came back
    ray                    Ray's head, or its raylet beside the controller, was lost or is back
    stall-MEMBER-N         incarnation N of a member fell silent, or reports again
    busy-MEMBER-N          incarnation N of an instance computes without a request, or no more
    held-K                 requests wait at a controller for the Kth time: until none does
    notice-MEMBER-N        incarnation N of an instance was told to end: its evacuation
    op-HEX                 what an operator asked for, and the drains that came of it
    autoscale-HEX-K        check K of a controller's auto-scaling, and the drain that came of it
    m-HEX-K                move K that a controller ordered: how it went
    m-INSTANCE-N-K         move K of incarnation N of an instance that relieved itself
    round-HEX-K            round K of a controller's rescheduling: what was not moved, and for whom
                           no room was made

A position is `EPOCH-SEQ`. The epoch is a controller's own, so that no two events ever have the same
position. A successor begins with the events that were kept of those before, and counts on.
"""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

Number = float | int | None


class EventKind(StrEnum):
    DISPATCHED = "dispatched"
    REJECTED = "rejected"
    """No instance took the request."""
    ADMITTED = "admitted"
    EVICTED = "evicted"
    MIGRATED = "migrated"
    MIGRATION_FAILED = "migration_failed"
    """The request stayed where it was, or ended."""
    REQUEST_LOST = "request_lost"
    """No instance has the request any more; it is to go on elsewhere."""
    REQUEST_FOUND = "request_found"
    """An instance has a request that was taken for lost."""
    REPLAYED = "replayed"
    """The request was lost with its instance and goes on elsewhere."""
    HELD = "held"
    """Requests have waited at the controller for a while."""
    HELD_ENDED = "held_ended"
    """None waits there any more."""
    INSTANCE_KEPT = "instance_kept"
    """An instance has been kept free for a held request for a while."""
    OVERTAKEN = "overtaken"
    """Many requests went ahead of the first of those that are held."""
    NOT_MOVED = "not_moved"
    """The request's instance was to be relieved; the request was tried and not moved."""
    ROOM_NOT_MADE = "room_not_made"
    """Requests were to leave an instance so that this one fits there, and did not."""
    PRIORITY_CHANGED = "priority_changed"
    FINISHED = "finished"
    ABORTED = "aborted"
    """The client left, or an operator ended the request."""
    FAILED = "failed"
    """The request ended in an error."""
    INSTANCE_STARTED = "instance_started"
    INSTANCE_DIED = "instance_died"
    NODE_LOST = "node_lost"
    """All instances of a machine are gone, and there are other machines."""
    RAY_LOST = "ray_lost"
    """No process can be started or ended any more."""
    RAY_FOUND = "ray_found"
    """They can again."""
    INSTANCE_STALLED = "instance_stalled"
    INSTANCE_RECOVERED = "instance_recovered"
    INSTANCE_BUSY = "instance_busy"
    """The instance's process computes though it has no request."""
    INSTANCE_QUIET = "instance_quiet"
    """An instance that was busy without a request no longer is."""
    INSTANCE_FAILED = "instance_failed"
    """The instance could not start, and is not tried again."""
    DRAIN_STARTED = "drain_started"
    DRAIN_OVERDUE = "drain_overdue"
    """The drain's deadline passed, and the drain goes on."""
    DRAINED = "drained"
    """The instance has no request left and gets none."""
    DRAIN_ENDED = "drain_ended"
    """The drain was undone, or the instance is gone."""
    ROLLING_STARTED = "rolling_started"
    """All instances are to be restarted, one after the other."""
    ROLLING_STEPPED = "rolling_stepped"
    """The next process of one instance serves."""
    ROLLING_ENDED = "rolling_ended"
    """Each was, or an operator stopped it."""
    ROLLING_FAILED = "rolling_failed"
    """One instance could not be restarted, and no other is."""
    FRONTEND_STARTED = "frontend_started"
    FRONTEND_DIED = "frontend_died"
    FRONTEND_FAILED = "frontend_failed"
    CONTROLLER_STARTED = "controller_started"
    AUTOSCALED = "autoscaled"
    """Auto-scaling added instances, or removes one, or keeps one that was to go."""
    AUTOSCALE_PLANNED = "autoscale_planned"
    """Auto-scaling would have done so, but for a dry run or an operator's scale."""
    AUTOSCALE_BLOCKED = "autoscale_blocked"
    """More instances are wanted, and cannot be had; or one cannot go."""
    AUTOSCALE_HELD = "autoscale_held"
    """An operator's scale wins over auto-scaling from now on."""
    AUTOSCALE_RELEASED = "autoscale_released"
    OPERATOR = "operator"
    EVENTS_LOST = "events_lost"
    """A member's events did not all arrive: the controller lagged, or was not there."""


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """`numbers` have units in their names; `labels` name what else is involved; `actor` asked for
    it."""

    kind: EventKind
    time_s: float
    """Seconds since the epoch, by the clock of the machine where it happened."""
    cause_id: str
    reason: str = ""
    instance_id: str | None = None
    incarnation: int | None = None
    frontend_id: str | None = None
    request_id: str | None = None
    level: str | None = None
    actor: str | None = None
    numbers: Mapping[str, Number] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LogPage:
    """`missed`: how many events the log has forgotten between the position asked for and the first
    one here; None if it cannot tell (a position of another epoch)."""

    entries: tuple[tuple[str, LoggedEvent], ...]
    """(position, event)."""
    next_position: str
    """Ask for what comes after this position."""
    missed: int | None = 0


class EventLog:
    """The last `max_events` events, among them those `kept` of controllers before, with their
    positions and in order. Raises ValueError for a bound below 1."""

    def __init__(
        self, epoch: str, max_events: int, kept: Sequence[tuple[str, LoggedEvent]] = ()
    ) -> None:
        self._epoch = epoch
        self._events: deque[LoggedEvent] = deque()
        self._last_seq = 0
        self._ends: dict[str, int] = {}
        """By earlier epoch: the number of the last event that was kept of it."""
        for position, event in kept:
            self._restore(position, event)
        self.resize(max_events)

    def resize(self, max_events: int) -> None:
        """The newest events stay. Raises ValueError for a bound below 1."""
        if max_events < 1:
            raise ValueError("an event log holds at least one event")
        self._events = deque(self._events, maxlen=max_events)

    @property
    def last_position(self) -> str:
        return self._position(self._last_seq)

    def append(self, event: LoggedEvent) -> str:
        """Returns the event's position."""
        self._events.append(event)
        self._last_seq += 1
        return f"{self._epoch}-{self._last_seq}"

    def about(self, request_id: str, kinds: Collection[EventKind]) -> list[LoggedEvent]:
        """The events of these kinds about the request, as far as they are kept; takes a look at
        each event."""
        return [e for e in self._events if e.kind in kinds and e.request_id == request_id]

    def after(self, position: str | None, limit: int) -> LogPage:
        """The oldest `limit` events after `position`; None: from the oldest that is kept.

        Raises ValueError for what is no position at all.
        """
        oldest = self._last_seq - len(self._events) + 1
        missed: int | None = 0
        first = oldest
        if position is not None:
            epoch, seq = parse_position(position)
            end = self._last_seq if epoch == self._epoch else self._ends.get(epoch)
            if end is None or (epoch == self._epoch and seq > end):
                missed = None
            elif seq > end:  # the last events of that epoch were not kept
                first = max(oldest, end + 1)
                missed = None
            else:
                first = max(oldest, seq + 1)
                missed = first - (seq + 1)
        last = min(self._last_seq, first + limit - 1)
        entries = tuple(
            (self._position(seq), self._events[seq - oldest]) for seq in range(first, last + 1)
        )
        return LogPage(entries, self._position(max(last, first - 1)), missed)

    def _restore(self, position: str, event: LoggedEvent) -> None:
        epoch, seq = parse_position(position)
        if seq != self._last_seq + 1:  # some events before were not kept: forget those before them
            self._events.clear()
            self._ends.clear()
        self._events.append(event)
        self._last_seq = self._ends[epoch] = seq

    def _position(self, seq: int) -> str:
        for epoch, end in self._ends.items():
            if seq <= end:
                return f"{epoch}-{seq}"
        return f"{self._epoch}-{seq}"


def parse_position(position: str) -> tuple[str, int]:
    """(epoch, sequence number). Raises ValueError."""
    epoch, dash, seq = position.rpartition("-")
    if not (dash and epoch.isalnum() and seq.isascii() and seq.isdigit() and len(seq) < 19):
        raise ValueError(f"{position[:40]!r} is not a position in the event log")
    return epoch, int(seq)
