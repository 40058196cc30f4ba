"""Moves that operators order: where the request goes, when the move begins, and what is tried next.

The source carries a move out (`core/migration/source.py`), and the move goes on if the controller's
process dies. An order that names its destination has one attempt. Any other order has up to
MAX_TRIES, as long as the destinations are at fault. The states of an order:

    QUEUED    waits until both instances may begin another move
    ASKED     the source has it, and both instances count it
    RETRYING  an instance refused the move though it seemed to have room; the move is queued again
              after a pause
    TIMED     the request has moved; its next token tells the downtime
    OVER      the machine has forgotten the order

    state    event            next      instructions
    OVER     Ordered          QUEUED    WakeAt; AskSource if its turn has come
                              OVER      Done, if there is no destination, or no move may wait
    QUEUED   Looked           ASKED     AskSource
                              QUEUED, OVER  the attempt is over, as its source or destination died
                                        or was closed to it meanwhile
    QUEUED   Woken            OVER      Done: its turn did not come
    ASKED    SourceAnswered   TIMED     WakeAt, if the request has moved
                              RETRYING  WakeAt
                              QUEUED    WakeAt: another destination
                              OVER      Done
    ASKED    SourceSilent, SourceDied   as SourceAnswered; one that died may have moved it before
    RETRYING Woken            QUEUED
    TIMED    Timed, Woken     OVER      Done
    any      GivenUp          OVER

If the process dies, the log of ended moves is lost, and so is which destinations cool. The
requests' frontends keep their own part of the log.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol

from controller.core.emptying.openness import Cooling
from controller.core.emptying.relief import choose_destination
from controller.core.load.closed import Closed, stop_arrivals, stop_sending
from controller.core.load.snapshot import InstanceSnapshot, Level
from controller.core.migration.move_records import DESTINATION_DIED, MoveLog, MoveRecord
from controller.core.migration.protocol import MAX_STAGES
from controller.core.migration.refusals import MoveRefusal, reason_of

MAX_TRIES = 3
TIMED_PATIENCE_S = 2.0
"""How long the report of a move that is over waits for the request's next token, which tells the
downtime. This is enough for several steps. If the order has time left, the report waits longer, up
to MAX_TIMED_PATIENCE_S: the slowest step of an instance that does not count as stalled."""
MAX_TIMED_PATIENCE_S = 10.0
PAUSE_S = 0.2
"""The pause before a move is tried again that an instance refused although the instance seemed to
have room."""
NOT_ASKED = "not_asked"

MAX_WAITING = 64
"""How many moves may wait in the whole cluster; further moves are refused at once."""

# Why a move did not get its turn.
NO_TURN, QUEUE_FULL, NO_MOVES = "no_turn", "queue_full", "no_moves"
CLOSED, SOURCE_CLOSED = "closed", "source_closed"
BY_MAX_MOVES = frozenset({NO_TURN, QUEUE_FULL, NO_MOVES, str(MoveRefusal.TOO_MANY_MOVES)})
"""The codes of moves that fail because of `migration.max_moves`."""


@dataclass(frozen=True, slots=True)
class MoveByHand:
    """The move that an operator asked for. `num_blocks`: the request's blocks when it was asked
    for; 0 if the request was queued."""

    request_id: str
    source_id: str
    num_blocks: int
    reason: str
    verify_kv: bool = False
    max_stages: int = MAX_STAGES


@dataclass(frozen=True, slots=True)
class QueuedMove:
    """One attempt of a move by hand, which has waited for its turn since `since_s`."""

    migration_id: str
    wanted: MoveByHand
    destination_id: str
    since_s: float

    @property
    def instance_ids(self) -> tuple[str, str]:
        return self.wanted.source_id, self.destination_id


class MoveQueue:
    """The moves that wait, first come, first served at each instance. While a move waits, no later
    move may begin at either of its instances, so that moves between two busy instances get their
    turn too."""

    def __init__(self) -> None:
        self._waiting: dict[str, QueuedMove] = {}
        self._begun: dict[str, QueuedMove] = {}

    @property
    def waiting(self) -> tuple[QueuedMove, ...]:
        """The moves that wait for their turn, in order."""
        return tuple(self._waiting.values())

    @property
    def begun(self) -> set[str]:
        """The ids of the moves that have begun, which count at both of their instances."""
        return set(self._begun)

    def join(self, move: QueuedMove) -> bool:
        """Adds a move that waits. Returns False if too many moves wait already."""
        if len(self._waiting) >= MAX_WAITING:
            return False
        self._waiting[move.migration_id] = move
        return True

    def leave(self, migration_id: str) -> None:
        """Takes out a move that is over, or for which nobody waits any more."""
        self._waiting.pop(migration_id, None)
        self._begun.pop(migration_id, None)

    def begin(self, num_reported: Callable[[str], int], max_moves: int) -> list[QueuedMove]:
        """The moves that may begin now, in their order; from now on they count as begun.
        `num_reported`: how many moves are under way at an instance by its latest status, which may
        not show the newest moves yet."""
        own = Counter(end for move in self._begun.values() for end in move.instance_ids)
        taken: set[str] = set()
        begun = []
        for move in self.waiting:
            ends = move.instance_ids
            if taken.isdisjoint(ends) and all(
                max(own[end], num_reported(end)) < max_moves for end in ends
            ):
                begun.append(move)
                own.update(ends)
                self._begun[move.migration_id] = self._waiting.pop(move.migration_id)
            else:
                taken.update(ends)
        return begun


class OrderState(StrEnum):
    QUEUED = "queued"
    ASKED = "asked"
    RETRYING = "retrying"
    TIMED = "timed"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of an order, which is over. `outcome`: the outcome of the move's record;
    `refused` if the move was not begun; `unknown` if the source did not say how the move ended.
    `code`: why the outcome is not `migrated`."""

    migration_id: str
    destination_id: str
    outcome: str = "unknown"
    code: str = ""
    record: MoveRecord | None = None
    downtime_s: float | None = None
    step_time_s: float | None = None
    excess_s: float | None = None
    queued_s: float = 0.0
    """How long the move waited for its turn."""

    @property
    def another_may_take_it(self) -> bool:
        """Whether another destination may take the request: the request still runs at its source,
        and the destination was at fault, perhaps even before the source was asked."""
        if self.outcome == "refused":
            return self.code in (CLOSED, DESTINATION_DIED)
        return self.outcome in ("kept", "resumed") and reason_of(self.code).elsewhere


# -- events ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ordered:
    """An operator orders a move. `migration_id`: the id of the first attempt, which also names the
    order. `destination_id`: None lets the machine choose."""

    migration_id: str
    wanted: MoveByHand
    destination_id: str | None
    deadline_s: float


@dataclass(frozen=True, slots=True)
class SourceAnswered:
    """The source has answered. `record`: the move's record, or None if the move did not begin.
    `code`: why the request has not moved."""

    migration_id: str
    code: str
    record: MoveRecord | None = None


@dataclass(frozen=True, slots=True)
class SourceSilent:
    """The source did not answer within the order's time. The move itself goes on."""

    migration_id: str


@dataclass(frozen=True, slots=True)
class SourceDied:
    migration_id: str


@dataclass(frozen=True, slots=True)
class MoveEnded:
    """Any move is over, whoever ordered it. `reason`: one of `cluster_spec.MOVE_REASONS`."""

    record: MoveRecord
    reason: str


@dataclass(frozen=True, slots=True)
class Timed:
    """The request's frontend reports that its client has got a token since the move, with the
    downtime if it is known. `step_time_s`: the time of the destination's step."""

    migration_id: str
    downtime_s: float | None
    excess_s: float | None
    step_time_s: float | None


@dataclass(frozen=True, slots=True)
class Looked:
    """It is time to check whether instances have room for further moves now."""


@dataclass(frozen=True, slots=True)
class Woken:
    """The time of this WakeAt has come. This event also comes for a WakeAt that was replaced by
    another."""

    order_id: str
    time_s: float


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Nobody waits for the order any more."""

    order_id: str


Event = (
    Ordered
    | SourceAnswered
    | SourceSilent
    | SourceDied
    | MoveEnded
    | Timed
    | Looked
    | Woken
    | GivenUp
)


# -- instructions ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AskSource:
    """Have the source move the request. The answer is SourceAnswered, SourceSilent or SourceDied,
    and comes within `patience_s`."""

    order_id: str
    move: QueuedMove
    patience_s: float


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send `Woken` at this time. It replaces the order's previous WakeAt."""

    order_id: str
    time_s: float


@dataclass(frozen=True, slots=True)
class Done:
    """The order is over. `attempts`: all attempts in order, or none if there was no destination."""

    order_id: str
    attempts: Sequence[Attempt]


Instruction = AskSource | WakeAt | Done


# -- the machine -----------------------------------------------------------------------------


class Instances(Protocol):
    """What the machine reads of the cluster, as it is now."""

    def destinations(self, now_s: float, source_id: str) -> Sequence[InstanceSnapshot]:
        """The last statuses of the instances to which moves from the source may go."""

    def closed_by(
        self, instance_id: str, now_s: float, source_id: str | None = None
    ) -> Sequence[Closed]:
        """All reasons against the instance, including the reasons that only concern moves from
        `source_id` (None: from any source)."""

    def num_moves(self, instance_id: str) -> int:
        """The moves under way at the instance by its last status."""


@dataclass(slots=True)
class _Order:
    ordered: Ordered
    move: QueuedMove
    """The present attempt; its id is the key in `_by_move`."""
    state: OrderState = OrderState.QUEUED
    attempts: list[Attempt] = field(default_factory=list)
    """The attempts that have ended, without those that only came too early (`_is_too_early`). There
    are fewer than MAX_TRIES while the order goes on."""
    queued_s: float = 0.0
    """How long the present attempt waited for its turn; set when the source is asked."""
    timed: Timed | None = None
    """The frontend's report of the downtime, if it came before the source's answer."""
    moved: Attempt | None = None
    """The attempt that moved the request, while TIMED."""
    wake_s: float = 0.0

    @property
    def order_id(self) -> str:
        return self.ordered.migration_id


class MovesByHand:
    def __init__(
        self,
        instances: Instances,
        cooling: Cooling,
        levels: Sequence[Level],
        max_moves: int,
        epoch: str,
    ) -> None:
        self.levels, self.max_moves = levels, max_moves
        """Both settings may be changed at any time. With `max_moves` 0 no move gets a turn."""
        self.cooling = cooling
        self.log = MoveLog()
        self._instances = instances
        self._epoch = epoch
        self._numbers = itertools.count(1)
        self._queue = MoveQueue()
        """The present attempts of the orders that are QUEUED (waiting) or ASKED (begun)."""
        self._orders: dict[str, _Order] = {}
        """The orders that are not over, by order id."""
        self._by_move: dict[str, str] = {}
        """The id of each order, by the id of its present attempt."""

    @property
    def waiting(self) -> tuple[QueuedMove, ...]:
        """The moves that wait for their turn, in order."""
        return self._queue.waiting

    def next_migration_id(self) -> str:
        return f"m-{self._epoch}-{next(self._numbers)}"

    def choose(
        self, source_id: str, num_blocks: int, now_s: float, tried: Collection[str] = ()
    ) -> str | None:
        """The freest open instance that may take `num_blocks`, if possible an instance where
        another move may begin. None if there is no such instance."""
        snapshots = [
            snapshot
            for snapshot in self._instances.destinations(now_s, source_id)
            if snapshot.instance_id != source_id and snapshot.instance_id not in tried
        ]
        at_once = [
            each
            for each in snapshots
            if self._instances.num_moves(each.instance_id) < self.max_moves
        ]
        return choose_destination(at_once, self.levels, num_blocks) or choose_destination(
            snapshots, self.levels, num_blocks
        )

    def handle(self, event: Event, now_s: float) -> list[Instruction]:
        """Takes one event in; returns what to do now, in order. Mutates."""
        match event:
            case Ordered():
                return self._ordered(event, now_s)
            case MoveEnded(record, reason):
                self._ended(record, reason, now_s)
                return []
            case Timed():
                return self._timed(event, now_s)
            case Looked():
                return self._begin(now_s)
            case Woken():
                return self._woken(event, now_s)
            case GivenUp(order_id):
                if order_id in self._orders:
                    self._forget(self._orders[order_id])
                return self._begin(now_s)
        return self._answered(event, now_s)

    # -- an order --------------------------------------------------------------------------

    def _ordered(self, ordered: Ordered, now_s: float) -> list[Instruction]:
        wanted = ordered.wanted
        target = ordered.destination_id or self.choose(wanted.source_id, wanted.num_blocks, now_s)
        if target is None:
            return [Done(ordered.migration_id, ())]
        order = _Order(ordered, QueuedMove(ordered.migration_id, wanted, target, now_s))
        self._orders[order.order_id] = order
        return self._enqueue(order, order.move, now_s)

    def _enqueue(self, order: _Order, move: QueuedMove, now_s: float) -> list[Instruction]:
        """Lets the move wait for its turn as the order's present attempt."""
        self._by_move.pop(order.move.migration_id, None)
        self._by_move[move.migration_id] = order.order_id
        order.move, order.state, order.timed = move, OrderState.QUEUED, None
        if not self.max_moves:
            return self._over(order, self._refused(order, NO_MOVES, now_s), now_s)
        if not self._queue.join(move):
            return self._over(order, self._refused(order, QUEUE_FULL, now_s), now_s)
        return [self._wake_at(order, order.ordered.deadline_s), *self._begin(now_s)]

    def _begin(self, now_s: float) -> list[Instruction]:
        """Begins the moves whose turn has come."""
        instructions: list[Instruction] = []
        while begun := self._queue.begin(self._instances.num_moves, self.max_moves):
            for move in begun:
                order = self._orders[self._by_move[move.migration_id]]
                order.queued_s = now_s - move.since_s
                if code := self.barred(move, now_s):
                    self._queue.leave(move.migration_id)
                    refused = self._refused(order, code, now_s)
                    instructions += self._over(order, refused, now_s)
                else:
                    order.state = OrderState.ASKED
                    patience_s = max(0.0, order.ordered.deadline_s - now_s)
                    instructions.append(AskSource(order.order_id, move, patience_s))
        return instructions

    def barred(self, move: QueuedMove, now_s: float) -> str:
        """The code of the reason why the move cannot begin any more, because one of its instances
        died or was closed to it while the move waited for its turn. Empty if the move can begin."""
        source_id, destination_id = move.instance_ids
        here = self._instances.closed_by(source_id, now_s)
        if Closed.NOT_SERVING in here:
            return "source_died"
        if stop_sending(here):
            return SOURCE_CLOSED
        there = self._instances.closed_by(destination_id, now_s, source_id)
        if Closed.NOT_SERVING in there:
            return DESTINATION_DIED
        order = self._orders[self._by_move[move.migration_id]]
        if order.ordered.destination_id is None:
            return CLOSED if stop_arrivals(there) else ""
        return CLOSED if any(each.stops_named_arrivals for each in there) else ""

    def _woken(self, event: Woken, now_s: float) -> list[Instruction]:
        order = self._orders.get(event.order_id)
        if order is None or event.time_s != order.wake_s:
            return []
        match order.state:
            case OrderState.QUEUED:
                self._queue.leave(order.move.migration_id)
                refused = self._refused(order, NO_TURN, now_s)
                return [*self._over(order, refused, now_s), *self._begin(now_s)]
            case OrderState.RETRYING:
                again = replace(order.move, migration_id=self.next_migration_id(), since_s=now_s)
                return self._enqueue(order, again, now_s)
            case OrderState.TIMED:
                assert order.moved is not None
                return self._over(order, order.moved, now_s)
        return []

    def _answered(
        self, event: SourceAnswered | SourceSilent | SourceDied, now_s: float
    ) -> list[Instruction]:
        """Ends the turn of the attempt with the source's answer. Both instances may then begin
        other moves."""
        order = self._orders.get(self._by_move.get(event.migration_id, ""))
        if order is None or order.state is not OrderState.ASKED:
            return []
        self._queue.leave(event.migration_id)
        attempt = Attempt(event.migration_id, order.move.destination_id, queued_s=order.queued_s)
        match event:
            case SourceAnswered(_, code, record):
                outcome = "refused" if record is None else record.outcome
                attempt = replace(attempt, outcome=outcome, code=code, record=record)
            case SourceSilent():
                attempt = replace(attempt, code="timed_out")
            case SourceDied():
                attempt = replace(attempt, code="source_died")
        may_have_moved = attempt.outcome == "migrated" or attempt.code == "source_died"
        if not may_have_moved or attempt.outcome == "refused":
            return [*self._over(order, attempt, now_s), *self._begin(now_s)]
        if order.timed is not None:
            attempt = _with_downtime(attempt, order.timed)
            return [*self._over(order, attempt, now_s), *self._begin(now_s)]
        order.state, order.moved = OrderState.TIMED, attempt
        left_s = order.ordered.deadline_s - now_s
        patience_s = max(TIMED_PATIENCE_S, min(left_s, MAX_TIMED_PATIENCE_S))
        return [self._wake_at(order, now_s + patience_s), *self._begin(now_s)]

    def _timed(self, event: Timed, now_s: float) -> list[Instruction]:
        if event.downtime_s is not None and event.excess_s is not None:
            self.log.timed(event.migration_id, event.downtime_s, event.excess_s)
        order = self._orders.get(self._by_move.get(event.migration_id, ""))
        if order is None:
            return []
        order.timed = event
        if order.state is not OrderState.TIMED:
            return []
        assert order.moved is not None
        return self._over(order, _with_downtime(order.moved, event), now_s)

    # -- an attempt is over ----------------------------------------------------------------

    def _refused(self, order: _Order, code: str, now_s: float) -> Attempt:
        move = order.move
        queued_s = now_s - move.since_s
        return Attempt(move.migration_id, move.destination_id, "refused", code, queued_s=queued_s)

    def _over(self, order: _Order, attempt: Attempt, now_s: float) -> list[Instruction]:
        """Decides what follows an attempt: the same attempt again, another destination, or the
        end."""
        ordered, wanted = order.ordered, order.ordered.wanted
        if _is_too_early(attempt, ordered.destination_id) and now_s + PAUSE_S < ordered.deadline_s:
            order.state = OrderState.RETRYING
            return [self._wake_at(order, now_s + PAUSE_S)]
        order.attempts.append(attempt)
        target = None
        if (
            ordered.destination_id is None
            and attempt.another_may_take_it
            and len(order.attempts) < MAX_TRIES
            and now_s < ordered.deadline_s
        ):
            tried = [each.destination_id for each in order.attempts]
            target = self.choose(wanted.source_id, wanted.num_blocks, now_s, tried)
        if target is None:
            self._forget(order)
            return [Done(order.order_id, tuple(order.attempts))]
        again = QueuedMove(self.next_migration_id(), wanted, target, now_s)
        return self._enqueue(order, again, now_s)

    def _wake_at(self, order: _Order, time_s: float) -> WakeAt:
        order.wake_s = time_s
        return WakeAt(order.order_id, time_s)

    def _forget(self, order: _Order) -> None:
        self._queue.leave(order.move.migration_id)
        self._by_move.pop(order.move.migration_id, None)
        del self._orders[order.order_id]

    def _ended(self, record: MoveRecord, reason: str, now_s: float) -> None:
        self.log.ended(record, now_s, reason)
        if record.code == DESTINATION_DIED:
            self.cooling.died(record.destination_id, now_s)
        elif reason_of(record.code).cools:
            self.cooling.failed(record.source_id, record.destination_id, now_s)

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken."""
        queued = {each.migration_id for each in self._queue.waiting}
        states = {o.move.migration_id: o.state for o in self._orders.values()}
        assert queued == {m for m, s in states.items() if s is OrderState.QUEUED}, "lost its turn"
        begun = {m for m, s in states.items() if s is OrderState.ASKED}
        assert begun == self._queue.begun, "a place is kept for a move that is over"
        named = {o.move.migration_id: key for key, o in self._orders.items()}
        assert self._by_move == named, "an attempt belongs to no order"
        for order in self._orders.values():
            assert len(order.attempts) < MAX_TRIES, "tried too often"
            tried = [each.destination_id for each in order.attempts]
            assert len(set(tried)) == len(tried), "a destination was tried twice"
            assert (order.moved is None) == (order.state is not OrderState.TIMED)


def _is_too_early(attempt: Attempt, destination_id: str | None) -> bool:
    """Whether an instance refused the attempt only because the rescheduler's moves took the places
    that its latest status showed as free. If the order names no destination, another destination is
    tried when this one is full."""
    by_source = attempt.outcome == "refused"
    by_destination = attempt.outcome == "kept" and destination_id is not None
    return attempt.code == MoveRefusal.TOO_MANY_MOVES and (by_source or by_destination)


def _with_downtime(attempt: Attempt, timed: Timed) -> Attempt:
    """The attempt with the downtime. A request whose frontend reports a downtime has moved, even if
    its source has died since."""
    return replace(
        attempt,
        outcome="migrated",
        code="",
        downtime_s=timed.downtime_s,
        step_time_s=timed.step_time_s,
        excess_s=timed.excess_s,
    )
