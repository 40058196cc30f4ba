"""The machine of a source: which requests leave the instance, and where to, by the orders that it
gets in the controller's rounds. Unlike the rounds, this machine sees the single requests.

    relief    requests leave for one destination until the instance is no source any more
              (`relief`); the order is renewed in each round, or ends
    head      the queue head moves to another queue
    room      other requests leave so that a blocked request fits, or so that the running requests
              can grow: whole plans only (`room_plan`)

The machine looks at its requests between two steps of the engine, once for all orders that came
meanwhile, and only if there is an order by which a move may begin:

    state      left by              what it waits for
    resting    an order, or the     an order. When a move of a relief ends well, the instance may
               end of a move        still be a source, so the machine looks again
    looking    Looked               the end of the step under way; orders that come meanwhile count
    beginning  MoveBegan,           whether the move may begin. Moves begin one after the other, as
               MoveRefused          each counts as leaving when the next one is chosen

In one look, orders for room and heads come first, in the order in which they came, then the relief.
Moves begin only by `BeginMove`, whose runner asks `MoveTable.leave`; so this machine cannot begin a
move that the instance's check refuses.

The machine remembers requests that the destination's snapshot does not count yet (`_sent`), and
adds them to the snapshot when it chooses the next one. Nothing of this has to survive a crash:
orders come again, and moves end by themselves.
"""

import itertools
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from controller.core.emptying.gain import GainRules
from controller.core.emptying.openness import Avoided
from controller.core.emptying.relief import (
    Candidate,
    Decision,
    HelpReason,
    MoveReason,
    NotMoved,
    PastMoves,
    ReliefRules,
    ReliefView,
    next_move,
)
from controller.core.emptying.room_plan import (
    PLAN_FAILED,
    MakeRoom,
    MoveHead,
    ends_plan,
    head_to_leave,
    room_plan_for,
)
from controller.core.emptying.rounds import HeadOrder, ReliefOrder, RoomOrder
from controller.core.load.snapshot import InstanceRef, InstanceSnapshot
from controller.core.migration.move_table import MoveTable
from controller.core.migration.refusals import MoveRefusal, ReliefRefusal
from controller.core.record.event_log import Number
from controller.core.value import value

ORDER_INTERVALS = 2
"""An order ends after this many intervals without a new order, because the controller is gone
then."""
FAILED_AGAIN_S = 1.0
"""For this long, a request whose move failed is not tried again, unless the reason was the request
itself. Destinations that fail are avoided by the controller."""
SENT_KNOWN_S = 1.0
"""For this long after its end, a move is remembered even if no snapshot of its destination counts
the request."""
DRAIN_CANCELLED = "drain_cancelled"
_TRY_AT_ONCE = frozenset({"evicted", "admitted", DRAIN_CANCELLED, PLAN_FAILED})
_UNTOLD = frozenset({MoveRefusal.IN_PREFILL, ReliefRefusal.GAINS_LITTLE})
"""A prefill is over soon, and most requests of a source would gain little."""
MAX_TOLD_PER_S = 2
"""How many requests that were not moved an instance reports in a second, at most. With 64 instances
that makes up to 128 reports in a second."""
NUM_NOT_MOVED_TOLD = 1024
"""How many pairs of a request and a code are remembered, so that they are not reported again. The
number is enough for at least eight minutes."""
NUM_ROOM_TOLD = 64
"""How many pairs of a blocked request and a code are remembered. A plan is made in each round, and
one event for each pair is enough."""


class SourceView(Protocol):
    """What a decision looks at in the instance. `num_moves`: the moves under way, in both
    directions. `leaves_at_s`: when the instance will be ended, by the clock of `now_s`; None: no
    end is planned. `max_bytes_per_s`: the bandwidth limit of each link. `step_time_s`: as measured;
    None: not measured yet."""

    @property
    def instance_id(self) -> str: ...
    @property
    def block_size(self) -> int: ...
    @property
    def block_bytes(self) -> int: ...
    @property
    def max_moves(self) -> int: ...
    @property
    def num_moves(self) -> int: ...
    @property
    def leaves_at_s(self) -> float | None: ...
    @property
    def max_bytes_per_s(self) -> float | None: ...
    @property
    def step_time_s(self) -> float | None: ...

    def bytes_per_s(self, destination_id: str) -> float | None:
        """The measured rate of the link; None if nothing was copied yet."""

    def leaving_for(self) -> Collection[str]:
        """The destinations of all moves under way from this instance, including moves by hand."""

    def reserved_s(self, migration_id: str) -> float | None:
        """Since when the destination has had blocks reserved for this move; None if it has none
        yet. The machine asks while the move is under way, and once more at its end."""


# -- events ------------------------------------------------------------------------------


@value
class ReliefGiven:
    """An order of relief; the controller sends a new one in each round. `taken_s`: when the
    destination's snapshot was taken."""

    round_id: str
    order: ReliefOrder
    taken_s: float


@value
class ReliefWithdrawn:
    """No more moves of the relief are to begin; moves under way go on."""


@value
class RoomGiven:
    order: HeadOrder | RoomOrder


@value
class Looked:
    """The answer to `Look`: the requests between two steps. `candidates`: all requests that the
    snapshot counts, completed by `known`. The machine itself knows which of them failed lately."""

    snapshot: InstanceSnapshot
    candidates: Sequence[Candidate]


@value
class MoveBegan:
    migration_id: str


@value
class MoveRefused:
    """The answer to `BeginMove`: the move may not begin on this instance now."""

    migration_id: str
    code: str


@value
class MoveEnded:
    """A move that began is over. `code`: why the request has not moved."""

    migration_id: str
    moved: bool
    code: str = ""


@value
class PeerLost:
    """Some other instances died or were removed, so moves to them are over."""

    is_lost: Callable[[InstanceRef], bool]


@value
class DrainEnded:
    """The instance is not drained any more; the requests that have not left stay."""


@value
class Fenced:
    """A new incarnation begins: the orders and moves of the previous one do not count any more."""


Event = (
    ReliefGiven
    | ReliefWithdrawn
    | RoomGiven
    | Looked
    | MoveBegan
    | MoveRefused
    | MoveEnded
    | PeerLost
    | DrainEnded
    | Fenced
)


# -- instructions ------------------------------------------------------------------------


@value
class Look:
    """Asks for the instance's snapshot and its requests. The answer is `Looked`, before the next
    step."""


@value
class BeginMove:
    """Begins a move. The answer comes at once: `MoveBegan` or `MoveRefused`. `figures`: the figures
    by which the request was chosen."""

    migration_id: str
    candidate: Candidate
    destination: InstanceRef
    reason: str
    figures: Mapping[str, Number]


@value
class CancelMove:
    """Cancels a move. If the move's COMMIT was already sent, the request leaves anyway."""

    migration_id: str
    code: str


@value
class TellFruitless:
    """Tells the controller that no request can go to this destination, and that none is on its way
    to it."""

    round_id: str
    destination: InstanceRef


@value
class TellNotMoved:
    """Tells the log, and the request's history, why the request was not moved."""

    round_id: str
    refused: NotMoved
    order: ReliefOrder


@value
class TellRoomNotMade:
    """Tells the log, and the blocked request's history, that no room was made for the request.
    `num_moves`: how many moves the plan had; 0 if there was no plan. A plan is given up because its
    move to `destination_id` failed."""

    order: RoomOrder
    code: str
    num_movable: int = 0
    num_moves: int = 0
    destination_id: str = ""


Instruction = Look | BeginMove | CancelMove | TellFruitless | TellNotMoved | TellRoomNotMade


# -- the machine -------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Relief:
    round_id: str
    order: ReliefOrder
    expires_s: float
    is_due: bool = False
    """Whether the next look is for this order too."""
    nothing_came: bool = True
    """Whether the order has begun no move so far and was not reported as fruitless."""


@dataclass(slots=True, eq=False)
class _Plan:
    order: RoomOrder
    num_moves: int
    failed: bool = False


@dataclass(slots=True, eq=False)
class _Wish:
    """A move that is to begin. `plan`: the plan to which the move belongs, if several moves make
    room together."""

    candidate: Candidate
    destination: InstanceRef
    reason: str
    figures: Mapping[str, Number]
    plan: _Plan | None = None


@dataclass(slots=True, eq=False)
class _Sent:
    """A move that began. It is remembered until it is over and its destination's snapshot counts
    the request."""

    candidate: Candidate
    destination: InstanceRef
    reason: str
    plan: _Plan | None
    ended_s: float | None = None
    """When the move ended; None while it is under way."""
    reserved_s: float | None = None
    """Once the move has ended: since when the destination had reserved blocks for it."""
    is_counted: bool = False
    """Whether the latest order's snapshot counts the request. A move under way may still fail after
    that."""


@dataclass(slots=True, eq=False)
class _Look:
    """What is still to be done with the result of one look, in this order: `wishes`, `orders`,
    relief."""

    snapshot: InstanceSnapshot
    candidates: list[Candidate]
    orders: deque[HeadOrder | RoomOrder]
    relieves: bool
    wishes: deque[_Wish] = field(default_factory=deque)
    asked: str = ""
    """The id of the move that was to begin, while it is not known yet whether it may."""


@value
class RelievingView:
    """What the machine shows of itself. `destination`: the destination of the present relief.
    `under_way`: requests with a move that is not over. `not_counted`: moved requests that the last
    snapshot of their destination did not count."""

    destination: InstanceRef | None
    under_way: tuple[str, ...]
    not_counted: tuple[str, ...]


_RELIEF = frozenset(MoveReason)


class RelievingSource:
    """`epoch` makes migration ids unique, as destinations remember moves for longer than a process
    takes to start again. `rules`: the simulator compares several."""

    def __init__(
        self,
        source: SourceView,
        epoch: str,
        rules: Callable[[ReliefView], ReliefRules] = ReliefRules,
    ) -> None:
        self._source = source
        self._epoch = epoch
        self._rules = rules
        self._numbers = itertools.count(1)
        self._relief: _Relief | None = None
        self._room_orders: dict[tuple[type, str], HeadOrder | RoomOrder] = {}
        """Orders that were not looked at yet: of each kind and blocked request, the latest one.
        Empty while resting."""
        self._looking = False
        """Whether `Look` was instructed and is not answered yet."""
        self._look: _Look | None = None
        """The look whose moves the machine is beginning, else None."""
        self._sent: dict[str, _Sent] = {}
        """The moves that are remembered, by migration id. A request has at most one move under
        way."""
        self._failed: Avoided[str] = Avoided()
        """By request id, the requests whose latest move failed a short time ago, and why."""
        self._told_s: deque[float] = deque(maxlen=MAX_TOLD_PER_S)
        self._not_moved_told: OrderedDict[tuple[str, str], None] = OrderedDict()
        """(request id, code) of the latest reports, at most `NUM_NOT_MOVED_TOLD`."""
        self._room_told: deque[tuple[str, str]] = deque(maxlen=NUM_ROOM_TOLD)

    def handle(self, event: Event, now_s: float) -> list[Instruction]:
        """Takes one event in; returns what to do now, in order. Mutates. A `BeginMove` is always
        the last instruction: the event that answers it returns what follows."""
        out: list[Instruction] = []
        match event:
            case ReliefGiven():
                self._take_relief(event, now_s, out)
            case ReliefWithdrawn():
                self._relief = None
                # The next order comes an interval later, and its snapshot counts the moves that are
                # over.
                self._sent = {i: sent for i, sent in self._sent.items() if sent.ended_s is None}
            case RoomGiven(order=order):
                self._room_orders[type(order), order.request_id] = order
                self._ask_to_look(out)
            case Looked():
                self._take_look(event, now_s, out)
            case MoveBegan(migration_id=migration_id):
                self._began(migration_id, now_s, out)
            case MoveRefused():
                self._refused(event, now_s, out)
            case MoveEnded():
                self._ended(event, now_s, out)
            case PeerLost(is_lost=is_lost):
                self._lost(is_lost)
            case DrainEnded():
                drains = (MoveReason.DRAIN, MoveReason.EVACUATE)
                self._cancel(DRAIN_CANCELLED, out, lambda sent: sent.reason in drains)
            case Fenced():
                # Moves whose outcome is in doubt will not end at this instance any more.
                self._relief, self._look = None, None
                self._room_orders.clear()
                self._sent.clear()
        return out

    def view(self) -> RelievingView:
        return RelievingView(
            None if self._relief is None else self._relief.order.destination,
            tuple(s.candidate.request_id for s in self._sent.values() if s.ended_s is None),
            tuple(s.candidate.request_id for s in self._sent.values() if not s.is_counted),
        )

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken."""
        under_way = self.view().under_way
        assert len(set(under_way)) == len(under_way), "a request leaves twice at a time"
        assert self._looking or not self._room_orders, "an order is there, and nobody looks"
        is_due = self._relief is not None and self._relief.is_due
        assert self._looking or not is_due, "a relief is due, and nobody looks"
        assert all(sent.ended_s is None or not sent.is_counted for sent in self._sent.values())
        if self._look is not None:
            assert self._look.asked in self._sent, "beginning, but no move is asked about"
            assert not any(w.plan.failed for w in self._look.wishes if w.plan is not None)
        assert len(self._not_moved_told) <= NUM_NOT_MOVED_TOLD

    # -- orders --------------------------------------------------------------------------

    def _take_relief(self, given: ReliefGiven, now_s: float, out: list[Instruction]) -> None:
        order = given.order
        expires_s = now_s + ORDER_INTERVALS * order.config.interval_s
        self._relief = _Relief(given.round_id, order, expires_s)
        if self._sent:
            self._forget_counted(order.destination, given.taken_s, now_s)
        self._look_for_relief(now_s, out)

    def _look_for_relief(self, now_s: float, out: list[Instruction]) -> None:
        if self._relief is not None and self._may_relieve(self._relief, now_s):
            self._relief.is_due = True
            self._ask_to_look(out)

    def _ask_to_look(self, out: list[Instruction]) -> None:
        if not self._looking:
            self._looking = True
            out.append(Look())

    def _lost(self, is_lost: Callable[[InstanceRef], bool]) -> None:
        if self._relief is not None and is_lost(self._relief.order.destination):
            self._relief = None
        for key, order in list(self._room_orders.items()):
            if isinstance(order, HeadOrder):
                if is_lost(order.destination):
                    del self._room_orders[key]
                continue
            left = tuple(each for each in order.openings if not is_lost(each.destination))
            if len(left) < len(order.openings):
                self._room_orders[key] = replace(order, openings=left)

    # -- a look --------------------------------------------------------------------------

    def _take_look(self, looked: Looked, now_s: float, out: list[Instruction]) -> None:
        self._looking = False
        self._forget_old(now_s)
        candidates = list(looked.candidates)
        if self._failed.at(now_s):
            candidates = [self._as_known(each, now_s) for each in candidates]
        relief = self._relief
        relieves = relief is not None and relief.is_due
        if relief is not None:
            relief.is_due = False
        orders, self._room_orders = deque(self._room_orders.values()), {}
        self._look = _Look(looked.snapshot, candidates, orders, relieves)
        self._go_on(now_s, out)

    def _as_known(self, candidate: Candidate, now_s: float) -> Candidate:
        failed = self._failed.why(candidate.request_id, now_s)
        if not failed or candidate.outgoing or candidate.refusal:
            return candidate
        return replace(candidate, refusal=failed)

    def _go_on(self, now_s: float, out: list[Instruction]) -> None:
        """Goes on until a move is to begin, or until nothing is left to do about this look."""
        while (look := self._look) is not None and not look.asked:
            if look.wishes:
                self._begin(look, look.wishes.popleft(), out)
            elif look.orders:
                match look.orders.popleft():
                    case HeadOrder() as order:
                        self._move_head(look, order)
                    case RoomOrder() as order:
                        self._make_room(look, order, out)
            elif look.relieves:
                self._relieve(look, now_s, out)
            else:
                self._look = None

    def _begin(self, look: _Look, wish: _Wish, out: list[Instruction]) -> None:
        number = next(self._numbers)
        migration_id = f"m-{self._source.instance_id}-{self._epoch}-{number}"
        look.asked = migration_id
        self._sent[migration_id] = _Sent(wish.candidate, wish.destination, wish.reason, wish.plan)
        out.append(
            BeginMove(migration_id, wish.candidate, wish.destination, wish.reason, wish.figures)
        )

    def _began(self, migration_id: str, now_s: float, out: list[Instruction]) -> None:
        look, sent = self._look, self._sent.get(migration_id)
        if look is None or look.asked != migration_id or sent is None:
            return  # the instance was fenced meanwhile
        if self._relief is not None and sent.reason in _RELIEF:
            self._relief.nothing_came = False
        self._answered(look, sent.candidate, replace(sent.candidate, outgoing=True))
        self._go_on(now_s, out)

    def _refused(self, refused: MoveRefused, now_s: float, out: list[Instruction]) -> None:
        look, sent = self._look, self._sent.pop(refused.migration_id, None)
        if look is None or look.asked != refused.migration_id or sent is None:
            return
        self._answered(look, sent.candidate, replace(sent.candidate, refusal=refused.code))
        if sent.plan is not None:
            self._give_up(sent.plan, refused.code, sent.destination.instance_id, out)
        self._go_on(now_s, out)

    def _answered(self, look: _Look, before: Candidate, now: Candidate) -> None:
        look.asked = ""
        look.candidates = [now if each is before else each for each in look.candidates]

    # -- room ----------------------------------------------------------------------------

    @property
    def _num_may_begin(self) -> int:
        return self._source.max_moves - self._source.num_moves

    def _move_head(self, look: _Look, order: HeadOrder) -> None:
        if self._num_may_begin <= 0:
            return
        to = order.destination
        wanted = MoveHead(self._source.instance_id, order.request_id, to.instance_id)
        head = head_to_leave(wanted, look.candidates, order.config)
        if head is not None:
            self._wish_for_queued(look, head, to, HelpReason.BLOCKED_HEAD)

    def _make_room(self, look: _Look, order: RoomOrder, out: list[Instruction]) -> None:
        openings = {each.destination.instance_id: each for each in order.openings}
        spare_blocks = {i: opening.spare_blocks for i, opening in openings.items()}
        here, rank = self._source.instance_id, order.rank
        planned = room_plan_for(
            MakeRoom(here, order.request_id, rank, order.lacking_blocks, spare_blocks),
            look.candidates,
            self._source.block_size,
            self._num_may_begin,
            self._source.max_moves,
            order.config,
        )
        for each in planned.let_go:
            destination = openings[each.destination_id].destination
            self._wish_for_queued(look, each.candidate, destination, HelpReason.BEHIND_HEAD)
        if planned.refusal is not None:
            self._tell_no_room(TellRoomNotMade(order, planned.refusal, planned.num_movable), out)
        reason = HelpReason.ROOM if order.request_id else HelpReason.BEFORE_EVICTION
        plan = _Plan(order, len(planned.plan))
        for each in planned.plan:
            figures: dict[str, Number] = {
                "lacking_blocks": planned.lacking_blocks,
                "num_moves_of_plan": plan.num_moves,
                "request_blocks": each.candidate.num_blocks,
                "freed_blocks": each.candidate.num_freed_blocks,
            }
            to = openings[each.destination_id].destination
            look.wishes.append(_Wish(each.candidate, to, reason, figures, plan))

    def _wish_for_queued(
        self, look: _Look, candidate: Candidate, destination: InstanceRef, reason: HelpReason
    ) -> None:
        needed = {"request_blocks": candidate.demand_blocks(self._source.block_size)}
        look.wishes.append(_Wish(candidate, destination, reason, needed))

    def _give_up(self, plan: _Plan, code: str, destination_id: str, out: list[Instruction]) -> None:
        """Gives up a plan, as half a plan makes no room: its moves under way are cancelled, and no
        other of its moves begins."""
        plan.failed = True
        if self._look is not None:
            self._look.wishes = deque(w for w in self._look.wishes if w.plan is not plan)
        self._cancel(PLAN_FAILED, out, lambda sent: sent.plan is plan)
        told = TellRoomNotMade(plan.order, code, 0, plan.num_moves, destination_id)
        self._tell_no_room(told, out)

    def _tell_no_room(self, told: TellRoomNotMade, out: list[Instruction]) -> None:
        """Reports that no room was made, once for each blocked request and code."""
        key = told.order.request_id, told.code
        if told.order.request_id and key not in self._room_told:
            self._room_told.append(key)
            out.append(told)

    # -- relief --------------------------------------------------------------------------

    def _may_relieve(self, relief: _Relief, now_s: float) -> bool:
        if now_s >= relief.expires_s or self._num_may_begin <= 0:
            return False
        return not self._link_is_taken(relief.order.destination)

    def _link_is_taken(self, to: InstanceRef) -> bool:
        """Whether the next move must wait for the link. An instance that will be ended sends one
        request after the other over a link with a bandwidth limit. Several copies side by side
        would all be cut off at the end. Each would also measure only its share of the link, so that
        fewer requests would seem to arrive in time."""
        if self._source.leaves_at_s is None or self._source.max_bytes_per_s is None:
            return False
        return to.instance_id in self._source.leaving_for()

    def _relieve(self, look: _Look, now_s: float, out: list[Instruction]) -> None:
        relief = self._relief
        if relief is None or not self._may_relieve(relief, now_s):
            look.relieves = False
            return
        rules = GainRules if relief.order.by_gain else self._rules
        decision = next_move(self._view(relief.order, look, now_s), rules)
        if decision.refused:
            self._tell_not_moved(relief, decision.refused, now_s, out)
        if decision.chosen is None:
            look.relieves = False
            self._tell_fruitless(relief, decision, look.snapshot, out)
            return
        figures = {**decision.numbers, **considered(relief.order)}
        wish = _Wish(decision.chosen, relief.order.destination, decision.reason, figures)
        self._begin(look, wish, out)

    def _view(self, order: ReliefOrder, look: _Look, now_s: float) -> ReliefView:
        source, to = self._source, order.destination
        leaves_at_s, limit = source.leaves_at_s, source.max_bytes_per_s
        bytes_per_s = source.bytes_per_s(to.instance_id)
        if leaves_at_s is not None and limit is not None:
            bytes_per_s = min(limit, bytes_per_s or limit)
        sent = [
            each.candidate
            for each in self._sent.values()
            if each.destination.key == to.key and not each.is_counted
        ]
        return ReliefView(
            look.snapshot,
            look.candidates,
            order.snapshot,
            sent,
            order.levels,
            order.config,
            source.block_bytes,
            bytes_per_s,
            source.step_time_s,
            None if leaves_at_s is None else leaves_at_s - now_s,
        )

    def _tell_fruitless(
        self,
        relief: _Relief,
        decision: Decision,
        snapshot: InstanceSnapshot,
        out: list[Instruction],
    ) -> None:
        """Reports, once for each order, that no request can go to its destination and none is on
        its way to it. If no request was refused, the moves under way to other destinations may be
        enough relief, so the machine waits until they have ended. An instance where an evicted
        request waits is a source at any freeness."""
        if not relief.nothing_came:
            return
        leaving_for = self._source.leaving_for()
        is_source = decision.reason or snapshot.num_evicted_queued
        fruitless = decision.refused or (is_source and not leaving_for)
        to = relief.order.destination
        if fruitless and to.instance_id not in leaving_for:
            relief.nothing_came = False
            out.append(TellFruitless(relief.round_id, to))

    def _tell_not_moved(
        self,
        relief: _Relief,
        refused: Sequence[NotMoved],
        now_s: float,
        out: list[Instruction],
    ) -> None:
        """Reports once for each request and code, and not too often. `_UNTOLD` reasons are not
        reported."""
        told, told_s = self._not_moved_told, self._told_s
        for each in refused:
            if len(told_s) == MAX_TOLD_PER_S and told_s[0] > now_s - 1.0:
                return
            key = each.request_id, each.code
            if each.code in _UNTOLD or key in told:
                continue
            told_s.append(now_s)
            told[key] = None
            if len(told) > NUM_NOT_MOVED_TOLD:
                told.popitem(last=False)
            out.append(TellNotMoved(relief.round_id, each, relief.order))

    # -- moves ---------------------------------------------------------------------------

    def _ended(self, ended: MoveEnded, now_s: float, out: list[Instruction]) -> None:
        sent = self._sent.get(ended.migration_id)
        if sent is None:
            return  # the instance was fenced meanwhile
        if ended.moved:
            sent.ended_s = now_s
            sent.reserved_s = self._source.reserved_s(ended.migration_id)
            if sent.is_counted:
                del self._sent[ended.migration_id]
            if sent.reason in _RELIEF:
                self._look_for_relief(now_s, out)
            return
        del self._sent[ended.migration_id]
        if ended.code not in _TRY_AT_ONCE:
            request_id = sent.candidate.request_id
            self._failed.avoid(request_id, now_s + FAILED_AGAIN_S, ended.code)
        plan = sent.plan
        if plan is not None and not plan.failed and ends_plan(ended.code):
            self._give_up(plan, ended.code, sent.destination.instance_id, out)

    def _cancel(self, code: str, out: list[Instruction], which: Callable[[_Sent], bool]) -> None:
        for migration_id, sent in self._sent.items():
            if sent.ended_s is None and which(sent):
                out.append(CancelMove(migration_id, code))

    def _counted_s(self, migration_id: str, sent: _Sent) -> float | None:
        """When the destination's snapshots began to count the request of this move. A running
        request counts once its blocks are reserved at the destination, a queued request once it has
        moved."""
        if sent.candidate.queued:
            return sent.ended_s
        if sent.ended_s is not None:
            return sent.reserved_s
        return self._source.reserved_s(migration_id)

    def _forget_counted(self, destination: InstanceRef, taken_s: float, now_s: float) -> None:
        """Forgets the requests that the destination's snapshot of `taken_s` counts, and old moves
        to other destinations."""
        self._forget_old(now_s)
        for migration_id, sent in list(self._sent.items()):
            if sent.destination.key == destination.key:
                counted_s = self._counted_s(migration_id, sent)
                sent.is_counted = counted_s is not None and counted_s <= taken_s
                if sent.is_counted and sent.ended_s is not None:
                    del self._sent[migration_id]

    def _forget_old(self, now_s: float) -> None:
        old_s = now_s - SENT_KNOWN_S
        if self._sent:
            self._sent = {
                migration_id: sent
                for migration_id, sent in self._sent.items()
                if sent.ended_s is None or sent.ended_s > old_s
            }


def known(
    seen: Iterable[Candidate],
    moves: MoveTable[Any, Any],
    past_moves: Callable[[str], PastMoves],
) -> list[Candidate]:
    """The engine's candidates with what the instance knows of them: which ones are leaving, why
    others cannot move now, and their past moves. Most have none of these and are returned
    unchanged.
    """
    candidates = list(seen)
    refusals = moves.refusals({each.request_id: each.facts for each in candidates})
    leaving = moves.leaving_ids()
    for number, each in enumerate(candidates):
        refusal = refusals.get(each.request_id)
        # The snapshot still counts a request that has ended since; it is treated as leaving.
        gone = refusal is MoveRefusal.UNKNOWN
        outgoing = gone or each.facts.leaving or each.request_id in leaving
        past = () if gone else past_moves(each.request_id)
        if refusal is not None or past:
            candidates[number] = each.as_known(refusal, outgoing, past)
    return candidates


def considered(order: ReliefOrder) -> dict[str, Number]:
    """The freeness of both instances at the beginning of the round, for explanations."""
    return {f"freeness_of_{instance_id}": steps for instance_id, steps in order.candidates}
