"""What happened in the cluster, in order: one bounded log that readers follow by position.

An event says what happened, when, to whom and why. Its `cause_id` names what led to it, so that all
events with one cause can be read together:

    arrive-REQ             a request came in: its dispatch, its end
    step-INSTANCE-N-K      step K of incarnation N: admissions and evictions
    lost-MEMBER-N          incarnation N of a member was lost: the failures of its requests
    lost-events-MEMBER-N   events of incarnation N of a member did not arrive
    start-MEMBER-N         incarnation N of a member began to serve
    start-controller       the controller came, or came back
    ray                    Ray's head, or the controller's raylet, was lost or is back
    stall-MEMBER-N         incarnation N of a member fell silent, or reports again
    busy-MEMBER-N          incarnation N of an instance computes without a request, or no more
    held-K                 requests wait at a controller for the Kth time: until none does
    notice-MEMBER-N        incarnation N of an instance, or its machine, will be ended: its
                           evacuation; notice-MEMBER-N-K is the Kth notice of the same incarnation
    verdict-WORD           the cluster is in another state now
    alarm-SUBJECT          an alarm about a member or the cluster
    op-HEX                 what an operator asked for, and the drains that came of it
    autoscale-HEX-K        check K of a controller's auto-scaling, and the drain that came of it
    m-HEX-K                move K that a controller ordered: how it went
    m-INSTANCE-N-K         move K of incarnation N of an instance that relieved itself
    round-HEX-K            round K of a controller's rescheduling: what was not moved, and for whom
                           no room was made

A position is `EPOCH-SEQ`. Each controller has its own epoch, so that no two events ever have the
same position. A controller begins with the events of earlier controllers that were kept.
"""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

Number = float | int | None


class EventKind(StrEnum):
    """The kinds of events. The docstring of a kind says what happened, and which figures the event
    has."""

    DISPATCHED = "dispatched"
    """A request was sent to an instance. The figures: the score of that instance, and how many
    instances there were to choose from."""
    REJECTED = "rejected"
    """No instance would take the request (overloaded) or could take it (unavailable), or its API
    key has reached a limit (live_limit, token_limit). At most one such event is logged every 10 s
    for each reason and level. It names the latest request that was refused, its rank and its
    Retry-After, and says how many were refused since the previous event."""
    ADMITTED = "admitted"
    """The request entered the batch, for the first time or again. The figures: its tokens, and how
    many of them the prefix cache had."""
    EVICTED = "evicted"
    """The request lost its blocks because memory was short. The figure: how many tokens it had."""
    PREFIX_FETCHED = "prefix_fetched"
    """Before the request was computed, its instance copied what another one had cached of its
    prompt, or failed to. The figures: the tokens and blocks that were copied, and how long it took.
    """
    COPY_CORRUPT = "copy_corrupt"
    """KV blocks that an instance copied from another one differ from those of their source, by
    their digests, and were not used. The event says what was copied, from where and to where, and
    whose request it was for. The figure: the blocks of the copy."""
    MIGRATED = "migrated"
    """The request has its first token from another instance. The figures: downtime, excess, the
    time of the step that made the token, the time from the commit to the token, and the tokens,
    blocks, bytes and time of the copy, in all and by stage."""
    MIGRATION_FAILED = "migration_failed"
    """A move came to nothing: the request stayed where it was, or ended. The figures of the copy
    are the same as in `migrated`."""
    REQUEST_LOST = "request_lost"
    """The request was lost with its instance, or an instance that has restarted did not take it. It
    is to go on elsewhere. The figures: the tokens to compute again, and the time since its latest
    token."""
    REQUEST_FOUND = "request_found"
    """The request was taken for lost, but an instance has it after all."""
    REPLAYED = "replayed"
    """The request was lost with its instance, and has its first token from another instance. The
    loss is the cause. The figures: downtime (none if the request had no token before), tokens that
    were computed again, and the attempt."""
    HELD = "held"
    """Requests have waited at the controller for 2 s. The figures: how long the wait is, and how
    many requests wait."""
    HELD_ENDED = "held_ended"
    """The controller's queue has been empty for 10 s. The event says how long requests had waited
    without such a break before, and the largest number of requests that waited at once."""
    INSTANCE_RESERVED = "instance_kept"
    """An instance has been kept free for a held request for 5 s; at most one such event every 10 s.
    The figures: how long the instance has been kept, the blocks that the request needs, and how
    many of them are not free yet."""
    OVERTAKEN = "overtaken"
    """10, 100, 1,000 ... requests went ahead of a held request while it was the first in the queue;
    at most one such event every 10 s. The figures: how many went ahead, how long the first request
    has waited, and the blocks that it needs."""
    NOT_MOVED = "not_moved"
    """The request's instance was to be relieved; this request was considered and not moved. The
    round is the cause. The figures: the freeness of source and destination,
    `freeness_of_<instance>` of the freest instances of the round, and the figures that spoke
    against the move."""
    ROOM_NOT_MADE = "room_not_made"
    """Requests were to leave an instance so that this request fits on it, but no move made room.
    The round is the cause. Logged once for each request and reason: the blocks that the request
    lacks, how many requests of the instance may leave, and the spare blocks on other instances."""
    PRIORITY_CHANGED = "priority_changed"
    """An operator gave the request a new priority level: the level and its rank, who did it, and
    why."""
    FINISHED = "finished"
    """The request's last token, or a stop string, was delivered. The figures: tokens in and out,
    TTFT, latency, and evictions."""
    ABORTED = "aborted"
    """The client left, or an operator ended the request. The event says which of the two, who, and
    the figures of `finished`."""
    FAILED = "failed"
    """The request ended in an error, with the figures of `finished`."""
    INSTANCE_STARTED = "instance_started"
    """A process of the instance began to serve."""
    INSTANCE_DIED = "instance_died"
    """The instance's process is gone."""
    NODE_LOST = "node_lost"
    """All instances of one machine, at least two, are gone, and the cluster has other machines. The
    figure: how many instances are gone."""
    RAY_LOST = "ray_lost"
    """Ray's head, or the raylet on the controller's machine, is gone: no process can be started or
    ended."""
    RAY_FOUND = "ray_found"
    """Processes can be started and ended again."""
    INSTANCE_STALLED = "instance_stalled"
    """The instance made no progress for too long. The figure: the seconds of silence."""
    INSTANCE_RECOVERED = "instance_recovered"
    """The instance reports again. The figure: the seconds of silence."""
    INSTANCE_BUSY = "instance_busy"
    """The instance's process computes although it has no request and no move: a grammar that nobody
    waits for any more, or a thread that spins. The figures: for how long, and on how many cores."""
    INSTANCE_QUIET = "instance_quiet"
    """The instance is no longer busy without a request. The figure: for how long it was."""
    INSTANCE_FAILED = "instance_failed"
    """The instance could not start, and no other start is tried."""
    DRAIN_STARTED = "drain_started"
    """An instance is to be emptied, or its drain has a new deadline. The event says who wants that
    and why, whether the instance is then removed, restarted or evacuated, how many requests it had,
    and the seconds until the deadline."""
    DRAIN_OVERDUE = "drain_overdue"
    """The drain's deadline passed, and the drain goes on. The event says how many requests are
    left, and which requests cannot move."""
    DRAINED = "drained"
    """The instance has no request left and gets none. The figures: how many requests were moved,
    and the seconds that the drain took."""
    HANDED_OVER = "handed_over"
    """A drained instance has handed its cached prompts over to others, before its process ends; or
    an instance has given a part of them to a new one. The figures: how many prompts these have now,
    how many tokens they copied, and the seconds that it took."""
    DRAIN_ENDED = "drain_ended"
    """The drain was undone, by an operator or by its deadline, or the instance was removed,
    restarted or evacuated. The event says how many requests were left, how many were moved, and who
    undid it."""
    ROLLING_STARTED = "rolling_started"
    """All instances are to be restarted, one after the other. The event says who wants that and
    why, the engine arguments, and how many instances there are."""
    ROLLING_STEPPED = "rolling_stepped"
    """The next process of one instance serves. The figures: the seconds that the restart took in
    all, and how many of them passed until the instance was empty."""
    ROLLING_ENDED = "rolling_ended"
    """Every instance was restarted, or an operator stopped the rolling restart. The figures: how
    many instances were restarted, how many are left, and the seconds that the rolling restart took.
    """
    ROLLING_FAILED = "rolling_failed"
    """One instance could not be emptied in time, could not start or did not serve, so no other
    instance is restarted. The event says whether that instance gets its old arguments back, and has
    the figures of `rolling_ended`."""
    FRONTEND_STARTED = "frontend_started"
    """A process of the frontend began to serve."""
    FRONTEND_DIED = "frontend_died"
    """The frontend's process is gone."""
    FRONTEND_FAILED = "frontend_failed"
    """The frontend could not start, and no other start is tried."""
    CONTROLLER_STARTED = "controller_started"
    """The controller came, or came back."""
    AUTOSCALED = "autoscaled"
    """Auto-scaling added instances, began to remove one, or keeps one that was to be removed. The
    event says why, and has these figures: the instances wanted, the requests, the cluster's
    F_scale, the instances added, and how long the latest starts took."""
    AUTOSCALE_PLANNED = "autoscale_planned"
    """Auto-scaling would have added or removed instances, but this is a dry run, or an operator's
    own scale takes precedence. Logged once while that stays so, with the figures of
    `autoscaled`."""
    AUTOSCALE_BLOCKED = "autoscale_blocked"
    """More instances are wanted but cannot be added (no room, the maximum, or one failed to start),
    or an instance cannot be removed. Logged once while that stays so, with the figures of
    `autoscaled`."""
    AUTOSCALE_HELD = "autoscale_held"
    """From now on an operator's scale takes precedence over auto-scaling. The figure: the
    operator's number of instances."""
    AUTOSCALE_RELEASED = "autoscale_released"
    """An operator's scale no longer takes precedence over auto-scaling."""
    VERDICT = "verdict"
    """The verdict on the whole cluster is another one than before. The event says which one, and
    why. The figure: how long the one before lasted."""
    ALARM_RAISED = "alarm_raised"
    """A member, or the cluster, has an alarm. The event says why."""
    ALARM_CLEARED = "alarm_cleared"
    """An alarm is over. The event says what it said last. The figure: how long it lasted."""
    OPERATOR = "operator"
    """An operator gave an order; `audit.log` has all of it."""
    EVENTS_LOST = "events_lost"
    """Some events that a member reported did not arrive, because the controller lagged or was away.
    The figure: how many events."""


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """One event. `numbers`: its figures, with the unit in the name of each. `labels`: what else is
    involved, by name. `actor`: who asked for it."""

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
    """Some events of the log, in order. `missed`: how many events the log has forgotten between the
    position asked for and the first event of the page; None if that is not known, because the
    position is of another epoch."""

    entries: tuple[tuple[str, LoggedEvent], ...]
    """The events, each as (position, event)."""
    next_position: str
    """The position after which the next page begins."""
    missed: int | None = 0


class EventLog:
    """The last `max_events` events. It begins with the events `kept` of earlier controllers, in
    order and with their positions. Raises ValueError for a bound below 1."""

    def __init__(
        self, epoch: str, max_events: int, kept: Sequence[tuple[str, LoggedEvent]] = ()
    ) -> None:
        self._epoch = epoch
        self._events: deque[LoggedEvent] = deque()
        self._last_seq = 0
        self._ends: dict[str, int] = {}
        """For each earlier epoch, the number of the last of its events that was kept."""
        for position, event in kept:
            self._restore(position, event)
        self.resize(max_events)

    def resize(self, max_events: int) -> None:
        """Changes the bound. The newest events stay. Raises ValueError for a bound below 1."""
        if max_events < 1:
            raise ValueError("an event log holds at least one event")
        self._events = deque(self._events, maxlen=max_events)

    @property
    def last_position(self) -> str:
        return self._position(self._last_seq)

    def append(self, event: LoggedEvent) -> str:
        """Appends an event. Returns the event's position."""
        self._events.append(event)
        self._last_seq += 1
        return f"{self._epoch}-{self._last_seq}"

    def about(self, request_id: str, kinds: Collection[EventKind]) -> list[LoggedEvent]:
        """The kept events of these kinds about the request. The method looks through all kept
        events."""
        return [e for e in self._events if e.kind in kinds and e.request_id == request_id]

    def after(self, position: str | None, limit: int) -> LogPage:
        """The oldest `limit` events after `position`; None means: from the oldest event that is
        kept.

        Raises ValueError if `position` does not have the form of a position.
        """
        oldest = self._last_seq - len(self._events) + 1
        missed: int | None = 0
        first = oldest
        if position is not None:
            epoch, seq = parse_position(position)
            end = self._last_seq if epoch == self._epoch else self._ends.get(epoch)
            if end is None or (epoch == self._epoch and seq > end):
                missed = None
            elif seq > end:  # the latest events of that epoch were not kept
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
        # events are missing in between: forget the events before the gap
        if seq != self._last_seq + 1:
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
    """Returns (epoch, sequence number). Raises ValueError if the position has another form."""
    epoch, dash, seq = position.rpartition("-")
    if not (dash and epoch.isalnum() and seq.isascii() and seq.isdigit() and len(seq) < 19):
        raise ValueError(f"{position[:40]!r} is not a position in the event log")
    return epoch, int(seq)
