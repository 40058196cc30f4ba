"""The rounds of the controller: which instance must relieve itself towards which other one, and
where room is made for a blocked request.

A round looks at one status per instance and never at a request; sources choose those (`relieving`).

    help      with late binding: queue heads go elsewhere, and room is made
              (`admission.room_orders`)
    relief    sources are paired with destinations (`rescheduling.pairing`), and ordered to relieve
              themselves; a source that had an order and is not paired any more is told so

Which instances take nothing is looked at once a round (`openness`). A pair is left out for a while
when it failed, or when its source said that nothing can go there. While rescheduling is not enabled
only draining instances are relieved, as operators want that.

Only the sources with an order are remembered, and for a second the fruitless pairs; so a controller
that starts again goes on with its first round, and orders of the one before end by themselves.
"""

import heapq
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Protocol

from controller.core.admission.room_orders import MakeRoom, MoveHead
from controller.core.emptying.orders import HeadOrder, Opening, ReliefOrder, RoomOrder
from controller.core.instance_ref import InstanceRef
from controller.core.load.snapshot import InstanceSnapshot, Level
from controller.core.rescheduling.avoided import Avoided, Cooling, fruitless_until_s
from controller.core.rescheduling.pairing import InstanceLoad, LeftOut, Pair, pair
from controller.core.rescheduling.roles import Role, roles
from controller.core.settings import ReschedulingConfig
from controller.core.value import value

MAX_CANDIDATES = 8
"""Instances that an order names for an explanation."""

Pairing = Callable[[Sequence[InstanceLoad], ReschedulingConfig, LeftOut], Sequence[Pair]]


class ClusterView(Protocol):
    """The cluster, as far as a round looks at it."""

    def statuses(self, now_s: float, closed: Collection[str]) -> Iterable[InstanceSnapshot]:
        """The last ones of the instances that serve and report; one that hangs would neither send
        nor receive. Those that can be in no pair may be left out; requests do not move to `closed`
        ones."""

    def status_age_s(self, instance_id: str, now_s: float) -> float: ...

    def closed_to_moves(self, now_s: float) -> Collection[str]:
        """The instances to which no move goes, wherever from (`openness`)."""

    def help_blocked(
        self, now_s: float, may_move: Callable[[str, str], bool]
    ) -> Sequence[MoveHead | MakeRoom]:
        """What the scheduler wants for blocked requests. `may_move`: from one instance to another
        now."""

    def has_moves_left(self, instance_id: str) -> bool:
        """Whether one more move of the instance may begin, as far as is known."""

    def ref(self, instance_id: str) -> InstanceRef | None:
        """The present incarnation."""

    def frontend_of(self, order: MakeRoom) -> str:
        """The address of that of the request, if the controller holds it; else empty."""


@value
class RoundRules:
    """What a round goes by. `evacuated`: instances that are to be ended at a moment, whatever they
    have then."""

    config: ReschedulingConfig
    levels: tuple[Level, ...]
    evacuated: Collection[str] = ()

    def load(self, status: InstanceSnapshot) -> InstanceLoad:
        """The instance as a round sees it, unless it is closed."""
        return InstanceLoad.of(
            status,
            self.levels,
            may_send=self.config.enabled or status.draining,
            may_receive=True,
            must_go=status.instance_id in self.evacuated,
        )


# -- events ------------------------------------------------------------------------------


@value
class RoundDue:
    pass


@value
class PairFruitless:
    """A source said that none of its requests can go to that destination, and none is on its way
    there. Both by (instance id, incarnation)."""

    source: tuple[str, int]
    destination: tuple[str, int]


@value
class InstanceGone:
    """The instance died, or was removed."""

    instance_id: str


@value
class RulesChanged:
    """They hold from the next round on."""

    rules: RoundRules


Event = RoundDue | PairFruitless | InstanceGone | RulesChanged


# -- instructions ------------------------------------------------------------------------


@value
class OrderRelief:
    source_id: str
    round_id: str
    order: ReliefOrder


@value
class WithdrawRelief:
    source_id: str
    round_id: str


@value
class OrderRoom:
    source_id: str
    order: HeadOrder | RoomOrder


Instruction = OrderRelief | WithdrawRelief | OrderRoom


# -- the machine -------------------------------------------------------------------------


class ReliefRounds:
    """`cooling` is told of failed moves by whoever hears of them. `epoch` makes round ids unique.
    `pairing`: of the simulator's comparisons. `names_candidates`: whether orders name the freest
    instances."""

    def __init__(
        self,
        cluster: ClusterView,
        cooling: Cooling,
        rules: RoundRules,
        epoch: str,
        pairing: Pairing = pair,
        *,
        names_candidates: bool = True,
    ) -> None:
        self.rules = rules
        self._cluster = cluster
        self._cooling = cooling
        self._epoch = epoch
        self._pairing = pairing
        self._names_candidates = names_candidates
        self._numbers = itertools.count(1)
        self._ordered: dict[str, str] = {}
        """By source that has an order: the destination. Each instance is in one pair at most."""
        self._fruitless: Avoided[tuple[str, str]] = Avoided()
        """By (source id, destination id)."""
        self._loads: dict[str, tuple[InstanceSnapshot, InstanceLoad]] = {}
        """By instance: the last status that was looked at, and its load by the present rules."""

    def handle(self, event: Event, now_s: float) -> list[Instruction]:
        """Takes one event in; returns what to do now, in order. Mutates."""
        match event:
            case RoundDue():
                return self._round(now_s)
            case PairFruitless(source=source, destination=destination):
                if self._is_present(source) and self._is_present(destination):
                    until_s = fruitless_until_s(now_s, self.rules.config.interval_s)
                    self._fruitless.avoid((source[0], destination[0]), until_s)
            case InstanceGone(instance_id=instance_id):
                self._ordered.pop(instance_id, None)
                self._loads.pop(instance_id, None)
            case RulesChanged(rules=rules):
                if rules.config != self.rules.config:
                    self._fruitless.clear()  # by other rules a pair may be worth an order
                self.rules = rules
                self._loads.clear()
        return []

    def load_of(self, status: InstanceSnapshot) -> InstanceLoad:
        """`RoundRules.load`, which is counted once for each status."""
        known = self._loads.get(status.instance_id)
        if known is None or known[0] is not status:
            known = self._loads[status.instance_id] = status, self.rules.load(status)
        return known[1]

    def roles(
        self, rules: RoundRules, now_s: float
    ) -> tuple[Sequence[InstanceLoad], Mapping[str, Role]]:
        """How the instances would be seen, and what each would be, by other rules, with the
        statuses that a round would look at now."""
        closed = self._cluster.closed_to_moves(now_s)
        statuses = self._cluster.statuses(now_s, closed)
        loads = [_seen(rules.load(status), closed) for status in statuses]
        return loads, roles(loads, rules.config)

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken."""
        destinations = set(self._ordered.values())
        assert len(destinations) == len(self._ordered), "two sources have one destination"
        assert not destinations & self._ordered.keys(), "a destination is a source"
        for instance_id, (status, load) in self._loads.items():
            assert status.instance_id == load.instance_id == instance_id
            assert load == self.rules.load(status), "a load is not by the present rules"

    # -- a round -------------------------------------------------------------------------

    def _round(self, now_s: float) -> list[Instruction]:
        round_id = f"round-{self._epoch}-{next(self._numbers)}"
        out: list[Instruction] = []
        if self.rules.config.enabled:
            self._help_blocked(round_id, now_s, out)
        closed = self._cluster.closed_to_moves(now_s)
        statuses = self._cluster.statuses(now_s, closed)
        loads = [_seen(self.load_of(status), closed) for status in statuses]
        pairs = self._pairs(loads, now_s) if loads else ()
        if not pairs and not self._ordered:
            return out  # as in most rounds
        if pairs:
            candidates = self._freest(loads)
            for each in pairs:
                order = self._relief(each, candidates, now_s)
                out.append(OrderRelief(each.source_id, round_id, order))
        before = self._ordered
        self._ordered = {each.source_id: each.destination_id for each in pairs}
        withdrawn = sorted(before.keys() - self._ordered.keys())
        out += [WithdrawRelief(source_id, round_id) for source_id in withdrawn]
        return out

    def _pairs(self, loads: Sequence[InstanceLoad], now_s: float) -> Sequence[Pair]:
        left_out = {*self._fruitless.at(now_s), *self._cooling.pairs(now_s)}
        return self._pairing(loads, self.rules.config, left_out)

    def _freest(self, loads: Iterable[InstanceLoad]) -> tuple[tuple[str, float], ...]:
        if not self._names_candidates:
            return ()
        open_ = (load for load in loads if load.is_open)
        freest = heapq.nsmallest(MAX_CANDIDATES, open_, key=attrgetter("freest_first"))
        return tuple((load.instance_id, load.freeness) for load in freest)

    def _relief(
        self, pair: Pair, candidates: tuple[tuple[str, float], ...], now_s: float
    ) -> ReliefOrder:
        destination_id = pair.destination_id
        return ReliefOrder(
            self._present(destination_id),
            self._loads[destination_id][0],
            self._cluster.status_age_s(destination_id, now_s),
            pair.source_freeness,
            pair.destination_freeness,
            candidates,
            self.rules.levels,
            self.rules.config,
        )

    def _help_blocked(self, round_id: str, now_s: float, out: list[Instruction]) -> None:
        def may_move(source_id: str, destination_id: str) -> bool:
            return self._cluster.has_moves_left(destination_id) and not self._cooling.remaining_s(
                destination_id, now_s, source_id
            )

        for wanted in self._cluster.help_blocked(now_s, may_move):
            out.append(OrderRoom(wanted.source_id, self.room_order(wanted, round_id)))

    def room_order(self, wanted: MoveHead | MakeRoom, round_id: str) -> HeadOrder | RoomOrder:
        request_id, config = wanted.request_id, self.rules.config
        if isinstance(wanted, MoveHead):
            destination = self._present(wanted.destination_id)
            return HeadOrder(round_id, request_id, destination, config)
        return RoomOrder(
            round_id,
            request_id,
            self._cluster.frontend_of(wanted),
            wanted.rank,
            wanted.lacking_blocks,
            tuple(Opening(self._present(i), blocks) for i, blocks in wanted.spare_blocks.items()),
            config,
        )

    def _present(self, instance_id: str) -> InstanceRef:
        ref = self._cluster.ref(instance_id)
        assert ref is not None, f"{instance_id} reports, but is not there"
        return ref

    def _is_present(self, incarnation: tuple[str, int]) -> bool:
        ref = self._cluster.ref(incarnation[0])
        return ref is not None and ref.key == incarnation


def _seen(load: InstanceLoad, closed: Collection[str]) -> InstanceLoad:
    if load.instance_id in closed and load.is_open:
        return replace(load, may_receive=False)
    return load
