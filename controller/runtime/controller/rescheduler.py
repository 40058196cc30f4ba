"""The rounds of rescheduling: which instance must relieve itself towards which other.

A round looks at one status per instance and never at a request; sources choose those
(`core.emptying.relieving`). Before the pairs it helps blocked requests (`blocked_help`). Only the
sources with an order are remembered, and for a second the fruitless pairs; so a controller that
starts again goes on with its first round, and orders of the one before end by themselves.
"""

import asyncio
import heapq
import itertools
import logging
from collections.abc import Callable, Collection, Mapping, Sequence

from controller.core.dispatch.instance_record import InstanceRecord
from controller.core.emptying.orders import ReliefOrder
from controller.core.load.snapshot import Level
from controller.core.rescheduling.config import ReschedulingConfig
from controller.core.rescheduling.cooling import Cooling
from controller.core.rescheduling.fruitless import FruitlessPairs
from controller.core.rescheduling.pairing import InstanceLoad, Pair, pair
from controller.core.rescheduling.roles import Role, roles
from controller.core.scheduler import GlobalScheduler
from controller.runtime.controller.blocked_help import BlockedHelp
from controller.runtime.controller.roster import Roster
from controller.runtime.messages.operations import ReliefFruitless, ReliefOrdered

log = logging.getLogger(__name__)

MAX_CANDIDATES = 8
"""Instances that an order names for an explanation."""


class Rescheduler:
    """`send` gets an instance's id. While rescheduling is not enabled only draining instances are
    relieved, as operators want that."""

    def __init__(
        self,
        roster: Roster,
        scheduler: GlobalScheduler,
        cooling: Cooling,
        levels: Sequence[Level],
        send: Callable[[str, ReliefOrdered], None],
        now_s: Callable[[], float],
        epoch: str,
        config: ReschedulingConfig,
        blocked_help: BlockedHelp,
    ) -> None:
        self._blocked_help = blocked_help
        self._roster = roster
        self._scheduler = scheduler
        self._cooling = cooling
        self.levels = tuple(levels)
        self._send = send
        self._now_s = now_s
        self._epoch = epoch
        self._config = config
        self._changed = asyncio.Event()
        """The next round is due: by the clock, or as the configuration changed."""
        self._numbers = itertools.count(1)
        self._ordered: set[str] = set()
        """Sources that have an order."""
        self.evacuated: Collection[str] = ()
        """Instances that are to be ended at a moment, whatever they have then."""
        self._fruitless = FruitlessPairs()

    @property
    def config(self) -> ReschedulingConfig:
        return self._config

    @config.setter
    def config(self, config: ReschedulingConfig) -> None:
        """Holds from the next round on, which begins now."""
        self._config = config
        self._fruitless.forget()
        self._changed.set()

    async def run(self) -> None:
        while True:
            self._changed.clear()
            try:
                self.round()
            except Exception:  # the next one may do better, and dispatch must not end with it
                log.exception("a round of rescheduling failed")
            # A timer costs a third of `asyncio.wait_for`, ten times a second.
            timer = asyncio.get_running_loop().call_later(
                self._config.interval_s, self._changed.set
            )
            await self._changed.wait()
            timer.cancel()

    def round(self) -> tuple[Pair, ...]:
        now_s, round_id = self._now_s(), f"round-{self._epoch}-{next(self._numbers)}"
        if self._config.enabled:
            self._blocked_help.round(round_id, self._config, now_s)
        loads = self._loads(now_s, self._config, self.levels)
        left_out = {*self._fruitless.at(now_s), *self._cooling.pairs(now_s)}
        pairs = pair(loads, self._config, left_out)
        if pairs:
            freest = heapq.nsmallest(  # ties as in pairing
                MAX_CANDIDATES,
                ((-load.freeness, load.instance_id) for load in loads if load.is_open),
            )
            candidates = tuple((instance_id, -steps) for steps, instance_id in freest)
            for each in pairs:
                relief = self._relief(each, candidates, now_s)
                self._send(each.source_id, ReliefOrdered(round_id, relief))
        sources = {each.source_id for each in pairs}
        for instance_id in sorted(self._ordered - sources):
            self._send(instance_id, ReliefOrdered(round_id))
        self._ordered = sources
        return pairs

    def fruitless(self, told: ReliefFruitless) -> None:
        """Leaves the pair out for a while, unless one of both incarnations is gone."""
        members = self._roster.members
        for instance_id, incarnation in (
            (told.source_id, told.source_incarnation),
            (told.destination_id, told.destination_incarnation),
        ):
            if instance_id not in members or members[instance_id].incarnation != incarnation:
                return
        self._fruitless.note(told.source_id, told.destination_id, self._now_s(), self._config)

    def instance_died(self, instance_id: str) -> None:
        self._ordered.discard(instance_id)

    def roles(
        self, config: ReschedulingConfig, levels: Sequence[Level]
    ) -> tuple[Sequence[InstanceLoad], Mapping[str, Role]]:
        """How the instances would be seen, and what each would be, by another configuration, with
        the statuses that a round would look at now."""
        loads = self._loads(self._now_s(), config, levels)
        return loads, roles(loads, config)

    def _loads(
        self, now_s: float, config: ReschedulingConfig, levels: Sequence[Level]
    ) -> list[InstanceLoad]:
        placement = self._scheduler.placement
        kept = placement.reserved if placement is not None else ()
        return [
            InstanceLoad.of(
                record.snapshot,
                levels,
                may_send=config.enabled or record.snapshot.draining,
                may_receive=record.instance_id not in kept
                and not self._cooling.remaining_s(record.instance_id, now_s),
                must_go=record.instance_id in self.evacuated,
            )
            for record in self._scheduler.instances.values()
            if record.snapshot is not None and self._acts(record, now_s)
        ]

    def _acts(self, record: InstanceRecord, now_s: float) -> bool:
        """Whether the instance serves and reports; one that stalls would neither send nor receive
        requests."""
        member = self._roster.members.get(record.instance_id)
        if member is None or not member.serving or member.incarnation != record.incarnation:
            return False
        return record.reports(now_s)

    def _relief(
        self, pair: Pair, candidates: tuple[tuple[str, float], ...], now_s: float
    ) -> ReliefOrder:
        destination = self._roster.members[pair.destination_id]
        record = self._scheduler.instances[pair.destination_id]
        assert record.snapshot is not None
        return ReliefOrder(
            destination.ref,
            record.snapshot,
            now_s - record.last_report_s,
            pair.source_freeness,
            pair.destination_freeness,
            candidates,
            self.levels,
            self._config,
        )
