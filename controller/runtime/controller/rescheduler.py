"""The rounds of rescheduling in a live cluster: runs the machine that decides
(`core.emptying.rounds`) once in each interval and when the configuration has changed, and sends its
orders."""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from controller.core.emptying.openness import Cooling, Openness
from controller.core.emptying.room_plan import MakeRoom
from controller.core.emptying.rounds import (
    Event,
    HeadOrder,
    InstanceGone,
    InstanceLoad,
    Instruction,
    OrderRelief,
    OrderRoom,
    PairFruitless,
    ReliefRounds,
    Role,
    RoundDue,
    RoundRules,
    RulesChanged,
    WithdrawRelief,
)
from controller.core.load.snapshot import InstanceRef, InstanceSnapshot, Level
from controller.core.scheduler import GlobalScheduler
from controller.core.settings import ReschedulingConfig
from controller.runtime.controller.roster import Roster
from controller.runtime.messages.move_messages import (
    HeadMoveOrdered,
    ReliefFruitless,
    ReliefOrdered,
    RoomOrdered,
)

log = logging.getLogger(__name__)

Order = ReliefOrdered | HeadMoveOrdered | RoomOrdered


class Rescheduler:
    """Runs the machine, and is the `ClusterView` that its rounds read: the members and their last
    statuses. `has_moves_left`: whether one more move of an instance may begin, by its last status.
    `send` gets an instance's id."""

    def __init__(
        self,
        roster: Roster,
        scheduler: GlobalScheduler,
        openness: Openness,
        cooling: Cooling,
        has_moves_left: Callable[[str], bool],
        levels: Sequence[Level],
        send: Callable[[str, Order], None],
        now_s: Callable[[], float],
        epoch: str,
        config: ReschedulingConfig,
    ) -> None:
        self._roster = roster
        self._scheduler = scheduler
        self._openness = openness
        self.closed_to_moves = openness.closed_to_moves
        self.unlike = openness.unlike
        self.help_blocked = scheduler.help_blocked
        self.has_moves_left = has_moves_left
        rules = RoundRules(config, tuple(levels), late_binding=scheduler.placement is not None)
        self.machine = ReliefRounds(self, cooling, rules, epoch)
        self._send = send
        self._now_s = now_s
        self._changed = asyncio.Event()
        """Set when the next round is due: by the clock, or because the configuration changed."""

    @property
    def config(self) -> ReschedulingConfig:
        return self.machine.rules.config

    @property
    def levels(self) -> tuple[Level, ...]:
        return self.machine.rules.levels

    def configure(self, config: ReschedulingConfig, levels: Sequence[Level]) -> None:
        """Uses these rules, and the scheduler's present policy, from the next round on. That round
        begins now."""
        before = self.machine.rules
        rules = replace(
            before,
            config=config,
            levels=tuple(levels),
            late_binding=self._scheduler.placement is not None,
        )
        if rules != before:
            self._handle(RulesChanged(rules))
            self._changed.set()

    @property
    def evacuated(self) -> Collection[str]:
        """The instances that will be ended at a known moment, whatever requests they have then."""
        return self.machine.rules.evacuated

    @evacuated.setter
    def evacuated(self, evacuated: Collection[str]) -> None:
        if evacuated != self.evacuated:
            self._handle(RulesChanged(replace(self.machine.rules, evacuated=evacuated)))

    async def run(self) -> None:
        while True:
            self._changed.clear()
            try:
                self.round()
            except Exception:  # the next round may succeed, and dispatch must go on in any case
                log.exception("a round of rescheduling failed")
            # A timer costs a third of what `asyncio.wait_for` costs, and it is used ten times a
            # second.
            timer = asyncio.get_running_loop().call_later(self.config.interval_s, self._changed.set)
            await self._changed.wait()
            timer.cancel()

    def round(self) -> None:
        self._handle(RoundDue())

    def fruitless(self, told: ReliefFruitless) -> None:
        source = told.source_id, told.source_incarnation
        destination = told.destination_id, told.destination_incarnation
        self._handle(PairFruitless(source, destination))

    def instance_gone(self, instance_id: str) -> None:
        self._handle(InstanceGone(instance_id))

    def roles(
        self, config: ReschedulingConfig, levels: Sequence[Level]
    ) -> tuple[Sequence[InstanceLoad], Mapping[str, Role]]:
        """The loads and the roles of the instances by another configuration, from the statuses that
        a round would look at now."""
        rules = replace(self.machine.rules, config=config, levels=tuple(levels))
        return self.machine.roles(rules, self._now_s())

    # -- what a round looks at -------------------------------------------------------------

    def statuses(self, _now_s: float) -> Sequence[InstanceSnapshot]:
        return list(self._openness.sources())

    def status_age_s(self, instance_id: str, now_s: float) -> float:
        return now_s - self._scheduler.instances[instance_id].last_report_s

    def ref(self, instance_id: str) -> InstanceRef | None:
        member = self._roster.members.get(instance_id)
        return None if member is None else member.ref

    def frontend_of(self, order: MakeRoom) -> str:
        key = self._scheduler.reserved.get(order.source_id)
        if key is None or key[1] != order.request_id:
            return ""
        return self._roster.members[key[0]].address

    # -- what it orders --------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        for instruction in self.machine.handle(event, self._now_s()):
            self._carry_out(instruction)

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case OrderRelief(source_id=source_id, round_id=round_id, order=order):
                self._send(source_id, ReliefOrdered(round_id, order))
            case WithdrawRelief(source_id=source_id, round_id=round_id):
                self._send(source_id, ReliefOrdered(round_id))
            case OrderRoom(source_id=source_id, order=order):
                if isinstance(order, HeadOrder):
                    self._send(source_id, HeadMoveOrdered(order))
                else:
                    self._send(source_id, RoomOrdered(order))
