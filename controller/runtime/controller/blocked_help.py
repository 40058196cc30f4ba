"""What a round orders for blocked requests, with late binding: queue heads that go elsewhere, and
room made by moves. The instances choose who leaves (`core.emptying.relieving`)."""

from collections.abc import Callable

from controller.core.emptying.orders import HeadOrder, Opening, RoomOrder
from controller.core.holding.blocked import MakeRoom, MoveHead
from controller.core.rescheduling.config import ReschedulingConfig
from controller.core.rescheduling.cooling import Cooling
from controller.core.scheduler import GlobalScheduler
from controller.runtime.controller.roster import Roster
from controller.runtime.messages.room import HeadMoveOrdered, RoomOrdered


class BlockedHelp:
    """`has_moves_left`: whether one more move of that instance may begin, as far as is known.
    `send` gets an instance's id."""

    def __init__(
        self,
        roster: Roster,
        scheduler: GlobalScheduler,
        cooling: Cooling,
        has_moves_left: Callable[[str], bool],
        send: Callable[[str, HeadMoveOrdered | RoomOrdered], None],
    ) -> None:
        self._roster = roster
        self._scheduler = scheduler
        self._cooling = cooling
        self._has_moves_left = has_moves_left
        self._send = send

    def round(self, round_id: str, config: ReschedulingConfig, now_s: float) -> None:
        def may_move(source_id: str, destination_id: str) -> bool:
            return self._has_moves_left(destination_id) and not self._cooling.remaining_s(
                destination_id, now_s, source_id
            )

        for order in self._scheduler.help_blocked(now_s, may_move):
            self._send(order.source_id, self._message(order, round_id, config))

    def _message(
        self, order: MoveHead | MakeRoom, round_id: str, config: ReschedulingConfig
    ) -> HeadMoveOrdered | RoomOrdered:
        members = self._roster.members
        if isinstance(order, MoveHead):
            destination = members[order.destination_id].ref
            return HeadMoveOrdered(HeadOrder(round_id, order.request_id, destination, config))
        openings = tuple(
            Opening(members[instance_id].ref, blocks)
            for instance_id, blocks in order.spare_blocks.items()
        )
        return RoomOrdered(
            RoomOrder(
                round_id,
                order.request_id,
                self._frontend_of(order),
                order.rank,
                order.lacking_blocks,
                openings,
                config,
            )
        )

    def _frontend_of(self, order: MakeRoom) -> str:
        """The address of the held request's frontend."""
        placement = self._scheduler.placement
        key = placement.reserved.get(order.source_id) if placement is not None else None
        if key is None or key[1] != order.request_id:
            return ""
        return self._roster.members[key[0]].address
