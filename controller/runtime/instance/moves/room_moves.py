"""Room for blocked requests: on the controller's order an instance moves its queue head, or others
away for it.

The instance looks at its requests between two steps, once for all orders that came meanwhile. A
plan of several moves asks all its destinations for their blocks before it copies much; when one of
them refuses, or a move fails otherwise, the others are given up too: half a plan makes no room.
"""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from controller.core.holding.blocked import MakeRoom, MoveHead
from controller.core.holding.room_moves import PLAN_FAILED, departures, ends_plan, head_to_leave
from controller.core.holding.room_plan import Leaving
from controller.core.instance_ref import InstanceRef
from controller.core.migration.record import MoveRecord
from controller.core.migration.refusals import MoveRefusal
from controller.core.migration.sentences import why
from controller.core.migration.source_terms import SourceState
from controller.core.record.event_log import EventKind, LoggedEvent, Number
from controller.core.rescheduling.candidate import Candidate
from controller.core.rescheduling.move_reasons import HelpReason
from controller.ports.engine import Engine
from controller.runtime.instance.moves.chosen_moves import ChosenMoves
from controller.runtime.instance.moves.host import MoveHost
from controller.runtime.instance.moves.instance_moves import InstanceMoves
from controller.runtime.messages.room import HeadMoveOrdered, RoomOrdered

# A plan is asked for in each round; of each blocked request and code one event is enough.
NUM_TOLD = 64


@dataclass(slots=True)
class _Plan:
    order: RoomOrdered
    num_moves: int
    migration_ids: list[str] = field(default_factory=list)
    """Of the moves that began."""
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
            candidates = self._chosen.known(seen)
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
        destination = order.destination
        core = MoveHead(self._host.me.instance_id, order.request_id, destination.instance_id)
        head = head_to_leave(core, candidates, order.config)
        if head is not None:
            self._begin_queued(head, destination, HelpReason.BLOCKED_HEAD)

    def _make_room(self, order: RoomOrdered, candidates: Sequence[Candidate]) -> None:
        destinations = {each.destination.instance_id: each.destination for each in order.openings}
        spare = {each.destination.instance_id: each.spare_blocks for each in order.openings}
        me = self._host.me.instance_id
        found = departures(
            MakeRoom(me, order.request_id, order.rank, order.lacking_blocks, spare),
            candidates,
            self._block_size,
            self._num_may_begin,
            self._moves.max_moves,
            order.config,
        )
        for each in found.let_go:
            destination = destinations[each.destination_id]
            self._begin_queued(each.candidate, destination, HelpReason.BEHIND_HEAD)
        if found.plan:
            self._begin(order, found.plan, found.lacking_blocks)
        elif found.refusal is not None:
            self._tell(order, found.refusal, found.num_movable)

    def _begin_queued(
        self, candidate: Candidate, destination: InstanceRef, reason: HelpReason
    ) -> None:
        needed = {"request_blocks": candidate.demand_blocks(self._block_size)}
        self._chosen.begin(candidate, destination, reason, needed, lambda _record: None)

    def _begin(self, order: RoomOrdered, leaving: Sequence[Leaving], lacking_blocks: int) -> None:
        destinations = {each.destination.instance_id: each.destination for each in order.openings}
        reason = HelpReason.ROOM if order.request_id else HelpReason.BEFORE_EVICTION
        plan = _Plan(order, len(leaving))
        for each in leaving:
            figures: dict[str, Number] = {
                "lacking_blocks": lacking_blocks,
                "num_moves_of_plan": len(leaving),
                "request_blocks": each.candidate.num_blocks,
                "freed_blocks": each.candidate.num_freed_blocks,
            }
            begun = self._chosen.begin(
                each.candidate,
                destinations[each.destination_id],
                reason,
                figures,
                partial(self._on_closed, plan),
            )
            if isinstance(begun, MoveRefusal):
                self._give_up(plan, begun, each.destination_id)
                return
            plan.migration_ids.append(begun.migration_id)

    def _on_closed(self, plan: _Plan, record: MoveRecord) -> None:
        if record.outcome != SourceState.MIGRATED and not plan.failed and ends_plan(record.code):
            self._give_up(plan, record.code, record.destination_id, record.migration_id)

    def _give_up(
        self, plan: _Plan, code: str, destination_id: str, failed_id: str | None = None
    ) -> None:
        plan.failed = True
        others = [id_ for id_ in plan.migration_ids if id_ != failed_id]
        self._chosen.cancel(others, PLAN_FAILED)
        self._tell(plan.order, code, 0, plan.num_moves, destination_id)

    # -- words ---------------------------------------------------------------------------

    def _tell(
        self,
        order: RoomOrdered,
        code: str,
        num_movable: int,
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
                "num_movable": num_movable,
                "spare_blocks_elsewhere": sum(each.spare_blocks for each in order.openings),
            },
            labels={"code": code, "why": why(code)},
        )
        self._host.tell(event, frontend)


def _look(engine: Engine) -> Sequence[Candidate]:
    return engine.moves.candidates()
