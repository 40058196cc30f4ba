"""Room for blocked requests: on the controller's order an instance moves its queue head, or others
away for it.

The instance looks at its requests between two steps, once for all orders that came meanwhile. A
plan of several moves asks all its destinations for their blocks before it copies much; when one of
them refuses, or a move fails otherwise, the others are given up too: half a plan makes no room.
"""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from controller.core.holding.blocked import HelpReason
from controller.core.holding.room_plan import Leaving, plan_leaving, plan_room
from controller.core.migration.record import MoveRecord
from controller.core.migration.sentences import why
from controller.core.migration.source_terms import SourceState
from controller.core.record.event_log import EventKind, LoggedEvent, Number
from controller.core.rescheduling.candidate import Candidate
from controller.core.rescheduling.config import ReschedulingConfig
from controller.core.rescheduling.refusals import ReliefRefusal
from controller.core.rescheduling.relief import MINUTE_S
from controller.ports.engine import Engine
from controller.runtime.instance.moves.chosen_moves import PLAN_FAILED, ChosenMoves
from controller.runtime.instance.moves.host import MoveHost
from controller.runtime.instance.moves.instance_moves import InstanceMoves
from controller.runtime.messages.room import HeadMoveOrdered, RoomOrdered

NO_PLAN = "no_plan"
PLAN_TOO_LARGE = "plan_too_large"
# A plan is asked for in each round; of each blocked request and code one event is enough.
NUM_TOLD = 64
_ENDED = frozenset({"finished", "client_left", "evicted"})


@dataclass(slots=True)
class _Plan:
    order: RoomOrdered
    migration_ids: list[str] = field(default_factory=list)
    failed: bool = False


class RoomMoves:
    """Used on the event loop's thread."""

    def __init__(
        self,
        host: MoveHost,
        instance_moves: InstanceMoves,
        chosen: ChosenMoves,
        block_size: int,
    ) -> None:
        self._host = host
        self._moves = instance_moves
        self._chosen = chosen
        self._block_size = block_size
        self._orders: dict[tuple[type, str], HeadMoveOrdered | RoomOrdered] = {}
        """Not looked at yet, the last one of each kind and blocked request."""
        self._looking = False
        self._told: deque[tuple[str, str]] = deque(maxlen=NUM_TOLD)

    def ordered(self, order: HeadMoveOrdered | RoomOrdered) -> None:
        self._orders[type(order), order.request_id] = order
        if not self._looking:
            self._looking = True
            self._host.between_steps(_look, self._decide)

    def _decide(self, seen: Sequence[Candidate]) -> None:
        self._looking = False
        orders, self._orders = list(self._orders.values()), {}
        for order in orders:
            candidates = [_tired(c, order.config) for c in self._chosen.known(seen)]
            if isinstance(order, HeadMoveOrdered):
                self._move_head(order, candidates)
            else:
                self._make_room(order, candidates)

    @property
    def _num_may_begin(self) -> int:
        return self._moves.max_moves - self._moves.num_moves

    def _move_head(self, order: HeadMoveOrdered, candidates: Sequence[Candidate]) -> None:
        if self._num_may_begin <= 0:
            return
        for head in candidates:
            if head.request_id == order.request_id and head.queued and _may_leave(head):
                needed = {"request_blocks": head.demand_blocks(self._block_size)}
                self._chosen.begin(
                    head, order.destination, HelpReason.BLOCKED_HEAD, needed, lambda _record: None
                )

    def _make_room(self, order: RoomOrdered, candidates: Sequence[Candidate]) -> None:
        on_their_way = sum(c.num_freed_blocks for c in candidates if c.outgoing and not c.queued)
        lacking_blocks = order.lacking_blocks - on_their_way
        if lacking_blocks <= 0 or self._num_may_begin <= 0:
            return
        spare = {each.destination.instance_id: each.spare_blocks for each in order.openings}
        self._let_go(order, candidates, spare)
        plan = plan_room(candidates, lacking_blocks, spare, self._block_size, order.rank)
        if not plan:
            self._tell(order, NO_PLAN, candidates)
        elif len(plan) > self._moves.max_moves:
            self._tell(order, PLAN_TOO_LARGE, candidates)
        elif len(plan) <= self._num_may_begin:
            self._begin(order, plan, lacking_blocks)

    def _let_go(
        self, order: RoomOrdered, candidates: Sequence[Candidate], spare: dict[str, int]
    ) -> None:
        """Those behind a blocked head; `spare` is then without what they take."""
        destinations = {each.destination.instance_id: each.destination for each in order.openings}
        for each in plan_leaving(candidates, order.request_id, spare, self._block_size):
            if self._num_may_begin > 0:
                needed = each.candidate.demand_blocks(self._block_size)
                spare[each.destination_id] -= needed
                self._chosen.begin(
                    each.candidate,
                    destinations[each.destination_id],
                    HelpReason.BEHIND_HEAD,
                    {"request_blocks": needed},
                    lambda _record: None,
                )

    def _begin(self, order: RoomOrdered, leaving: Sequence[Leaving], lacking_blocks: int) -> None:
        destinations = {each.destination.instance_id: each.destination for each in order.openings}
        reason = HelpReason.ROOM if order.request_id else HelpReason.BEFORE_EVICTION
        plan = _Plan(order)
        for each in leaving:
            figures: dict[str, Number] = {
                "lacking_blocks": lacking_blocks,
                "num_moves_of_plan": len(leaving),
                "request_blocks": each.candidate.num_blocks,
                "freed_blocks": each.candidate.num_freed_blocks,
            }
            migration_id = self._chosen.begin(
                each.candidate,
                destinations[each.destination_id],
                reason,
                figures,
                partial(self._on_closed, plan),
            )
            plan.migration_ids.append(migration_id)

    def _on_closed(self, plan: _Plan, record: MoveRecord) -> None:
        """A request that has ended meanwhile has made its room all the same."""
        if record.outcome == SourceState.MIGRATED or record.code in _ENDED or plan.failed:
            return
        plan.failed = True
        others = (id_ for id_ in plan.migration_ids if id_ != record.migration_id)
        self._chosen.cancel(others, PLAN_FAILED)
        self._tell(plan.order, record.code, (), len(plan.migration_ids), record.destination_id)

    # -- words ---------------------------------------------------------------------------

    def _tell(
        self,
        order: RoomOrdered,
        code: str,
        candidates: Sequence[Candidate],
        num_moves: int = 0,
        destination_id: str = "",
    ) -> None:
        """Logs, once per blocked request and code, why no room was made for it."""
        live = self._host.requests.get(order.request_id)
        frontend = order.frontend or (live.frontend if live is not None else "")
        if not frontend or (order.request_id, code) in self._told:
            return
        self._told.append((order.request_id, code))
        me = self._host.me
        failed = f"of {num_moves} moves one to {destination_id} failed: " if num_moves else ""
        event = LoggedEvent(
            EventKind.ROOM_NOT_MADE,
            time.time(),
            order.round_id,
            f"on {me.instance_id}: {failed}{why(code)} ({code})",
            instance_id=me.instance_id,
            incarnation=me.incarnation,
            request_id=order.request_id,
            numbers={
                "lacking_blocks": order.lacking_blocks,
                "num_movable": sum(_may_leave(c) and not c.queued for c in candidates),
                "spare_blocks_elsewhere": sum(each.spare_blocks for each in order.openings),
            },
            labels={"code": code, "why": why(code)},
        )
        self._host.tell(event, frontend)


def _look(engine: Engine) -> Sequence[Candidate]:
    return engine.moves.candidates()


def _may_leave(candidate: Candidate) -> bool:
    return candidate.refusal is None and not candidate.outgoing


def _tired(candidate: Candidate, config: ReschedulingConfig) -> Candidate:
    """With the refusal of one that has moved as often as it may."""
    num_moves = sum(ago_s < MINUTE_S for _, ago_s in candidate.moves)
    if candidate.refusal or not config.guard or num_moves < config.max_moves_per_minute:
        return candidate
    return replace(candidate, refusal=ReliefRefusal.MOVES_OFTEN)
