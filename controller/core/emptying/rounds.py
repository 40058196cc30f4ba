"""The machine of the controller's rounds: which instance must relieve itself towards which other
one, and where room is made for a blocked request.

A round looks at one status of each instance and never at requests; the sources choose the requests
(`relieving`).

    help      with late binding: queue heads go elsewhere, and room is made
              (`room_plan`)
    relief    sources are paired with destinations, and ordered to relieve themselves; a source that
              had an order and is not paired any more is told so
    gain      with late binding: of the other instances, those whose streams wait long for their
              tokens are paired with those where tokens come soon (`gain`)

Once in each round, `openness` says which instances take no moves. A pair is left out for a while
when it failed, or when its source said that no request can go to the destination. While
rescheduling is not enabled, only draining instances are relieved, as an operator ordered that.

Between rounds only the sources with an order are remembered, and fruitless pairs for a second. So a
controller that starts again simply begins with its first round; the orders of its predecessor end
by themselves.
"""

import heapq
import itertools
import math
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from operator import attrgetter
from typing import Protocol, Self

from controller.core.emptying.gain import differ, gaps
from controller.core.emptying.openness import Avoided, Cooling, fruitless_until_s
from controller.core.emptying.room_plan import MakeRoom, MoveHead
from controller.core.load.freeness import freeness, freest_first
from controller.core.load.snapshot import InstanceRef, InstanceSnapshot, Level
from controller.core.migration.refusals import MoveRefusal
from controller.core.settings import ReschedulingConfig
from controller.core.value import value

# -- pairing ---------------------------------------------------------------------------------------
#
# Pairing decides which instance sends requests to which other one, by one number per instance.
#
# Sources are below one threshold, destinations above another. The lowest source is paired with the
# highest destination, the next with the next. A draining instance is below all others. An instance
# that will be ended at a known moment (`must_go`) and that got no partner this way takes the freest
# instance that is open at all. Each instance is in one pair at most. If a pair is left out, its
# source takes the freest destination that remains, and a later source may take the destination of
# the pair that was left out. Pairing takes n log n, where n counts the instances and the pairs left
# out.


@value
class InstanceLoad:
    """An instance as pairing sees it. `may_send`: the instance is alive and has requests.
    `may_receive`: it is schedulable and not cooling after a failure; the caller need not check here
    what follows from the other fields. `must_go`: the instance will be ended at a known moment,
    whatever requests it has then.
    """

    instance_id: str
    freeness: float
    draining: bool = False
    num_evicted_queued: int = 0
    may_send: bool = True
    may_receive: bool = True
    must_go: bool = False

    @classmethod
    def of(
        cls,
        snapshot: InstanceSnapshot,
        levels: Sequence[Level],
        *,
        may_send: bool,
        may_receive: bool,
        must_go: bool = False,
    ) -> Self:
        return cls(
            snapshot.instance_id,
            freeness(snapshot, levels),
            snapshot.draining,
            snapshot.num_evicted_queued,
            may_send and snapshot.num_running + snapshot.num_queued > 0,
            may_receive,
            must_go,
        )

    @property
    def freest_first(self) -> tuple[float, str]:
        return freest_first(self.freeness, self.instance_id)

    @property
    def lowest_first(self) -> tuple[float, str]:
        return -math.inf if self.draining else self.freeness, self.instance_id

    @property
    def is_open(self) -> bool:
        """Whether requests may be moved to this instance at all."""
        return self.may_receive and not self.draining and not self.num_evicted_queued


@value
class Pair:
    """A source and its destination. Freeness is in decode steps, when they are paired; a draining
    source has -inf. `by_gain`: they are paired by their token gaps, not by their freeness."""

    source_id: str
    destination_id: str
    source_freeness: float
    destination_freeness: float
    by_gain: bool = False


LoadPairs = list[tuple[InstanceLoad, InstanceLoad]]
LeftOut = Container[tuple[str, str]]
"""The type of pairs that must not be chosen: (source id, destination id)."""


@value
class Unpaired:
    """The pairs in `avoided`, and all pairs that are `unlike`."""

    avoided: Collection[tuple[str, str]]
    unlike: Callable[[str, str], object]

    def __contains__(self, pair: object) -> bool:
        assert isinstance(pair, tuple)
        return pair in self.avoided or bool(self.unlike(*pair))


def is_source(load: InstanceLoad, config: ReschedulingConfig) -> bool:
    if not load.may_send:
        return False
    return load.draining or load.num_evicted_queued > 0 or load.freeness < config.source_below_steps


def is_destination(load: InstanceLoad, config: ReschedulingConfig) -> bool:
    return load.freeness > config.destination_above_steps and load.is_open


def pair(
    loads: Sequence[InstanceLoad], config: ReschedulingConfig, left_out: LeftOut = frozenset()
) -> tuple[Pair, ...]:
    """The pairs of this round, the lowest source first."""
    pairs = _matched(
        (load for load in loads if is_source(load, config)),
        (load for load in loads if is_destination(load, config)),
        left_out,
    )
    taken = {each.instance_id for both in pairs for each in both}
    alone = [load for load in loads if load.instance_id not in taken]
    pairs += _matched(
        (load for load in alone if load.must_go and load.may_send),
        (load for load in alone if load.is_open),
        left_out,
    )
    return tuple(
        Pair(source.instance_id, to.instance_id, source.freeness, to.freeness)
        for source, to in pairs
    )


def _matched(
    sources: Iterable[InstanceLoad], destinations: Iterable[InstanceLoad], left_out: LeftOut
) -> LoadPairs:
    """Pairs sources with destinations: the lowest source takes the freest destination that is not
    left out for it, then the next source takes one of the remaining destinations. If no pair is
    left out, the i-th source gets the i-th destination."""
    lowest_first = sorted(sources, key=attrgetter("lowest_first"))
    if not lowest_first:
        return []
    free = sorted(destinations, key=attrgetter("freest_first"))
    pairs = []
    for source in lowest_first:
        place = _first_for(source, free, left_out)
        if place is not None:
            pairs.append((source, free.pop(place)))
    return pairs


def _first_for(source: InstanceLoad, free: Sequence[InstanceLoad], left_out: LeftOut) -> int | None:
    """The index in `free` of the first destination that is not left out for `source`."""
    for place, destination in enumerate(free):
        if (source.instance_id, destination.instance_id) not in left_out:
            return place
    return None


# -- what a change of thresholds would do ----------------------------------------------------------
#
# An operator sees before the change which instances a round would relieve, and which instances
# would take their requests.


class Role(StrEnum):
    SOURCE = "source"
    DESTINATION = "destination"
    NEITHER = "neither"


def roles(loads: Sequence[InstanceLoad], config: ReschedulingConfig) -> Mapping[str, Role]:
    """The role of each instance, by id."""
    return {load.instance_id: _role(load, config) for load in loads}


def _role(load: InstanceLoad, config: ReschedulingConfig) -> Role:
    if is_source(load, config):
        return Role.SOURCE
    return Role.DESTINATION if is_destination(load, config) else Role.NEITHER


def may_differ(
    before: tuple[ReschedulingConfig, Sequence[Level]],
    after: tuple[ReschedulingConfig, Sequence[Level]],
) -> bool:
    """Whether there is a load at which the two configurations give an instance different roles."""
    return _deciding(*before) != _deciding(*after)


def _deciding(config: ReschedulingConfig, levels: Sequence[Level]) -> tuple[object, ...]:
    return (
        config.enabled,
        config.source_below_steps,
        config.destination_above_steps,
        *((level.rank, level.target_load_tokens) for level in levels),
    )


# -- orders ----------------------------------------------------------------------------------------
#
# The orders that the controller gives an instance in a round. Messages carry these values
# unchanged.


@value
class ReliefOrder:
    """Where a source may send requests, and by which rules it chooses them. `snapshot_age_s`: how
    long ago the controller got the destination's snapshot. Both values of freeness are in decode
    steps, at the moment of pairing."""

    destination: InstanceRef
    snapshot: InstanceSnapshot
    snapshot_age_s: float
    source_freeness: float
    destination_freeness: float
    candidates: tuple[tuple[str, float], ...]
    """(instance id, freeness) of the freest destinations, the best first; for the explanation of a
    move."""
    levels: tuple[Level, ...]
    config: ReschedulingConfig
    by_gain: bool = False
    """Whether requests leave because their tokens come sooner there. Otherwise the memory of the
    source is short."""


@value
class HeadOrder:
    """The queue head `request_id` is to move to the queue of the destination, where it fits."""

    round_id: str
    request_id: str
    destination: InstanceRef
    config: ReschedulingConfig


@value
class Opening:
    """An instance to which requests may leave, and how many blocks they may take on it."""

    destination: InstanceRef
    spare_blocks: int


@value
class RoomOrder:
    """Moves of requests of at most `rank` are to free `lacking_blocks`. If they cannot free that
    many, no move is to begin. `request_id`: the request that gets the room; empty if the room is
    for the growth of all running requests. `frontend`: the address of the request's frontend if the
    request waits at the controller, else empty."""

    round_id: str
    request_id: str
    frontend: str
    rank: int
    lacking_blocks: int
    openings: tuple[Opening, ...]
    config: ReschedulingConfig


# -- the machine -----------------------------------------------------------------------------------

MAX_CANDIDATES = 8
"""How many instances an order names for explanations."""

Pairing = Callable[[Sequence[InstanceLoad], ReschedulingConfig, LeftOut], Sequence[Pair]]


class ClusterView(Protocol):
    """What a round looks at in the cluster."""

    def statuses(self, now_s: float) -> Sequence[InstanceSnapshot]:
        """The latest statuses of the instances that serve and report. An instance that hangs is
        left out, as no move at it would go on; instances that cannot be in any pair may be left
        out."""

    def status_age_s(self, instance_id: str, now_s: float) -> float: ...

    def closed_to_moves(self, now_s: float) -> Collection[str]:
        """The instances to which no move may go from any source (`openness`)."""

    def unlike(self, source_id: str, destination_id: str) -> MoveRefusal | None:
        """Why no request at all can move between these instances (`openness`)."""

    def help_blocked(self, may_move: Callable[[str, str], bool]) -> Sequence[MoveHead | MakeRoom]:
        """What the scheduler wants done for blocked requests. `may_move`: whether a move from one
        instance to another may begin now."""

    def has_moves_left(self, instance_id: str) -> bool:
        """Whether one more move of the instance may begin, by its last status."""

    def ref(self, instance_id: str) -> InstanceRef | None:
        """The present incarnation of the instance."""

    def frontend_of(self, order: MakeRoom) -> str:
        """The address of the request's frontend if the request waits at the controller, else
        empty."""


@value
class RoundRules:
    """The rules of a round. `evacuated`: instances that will be ended at a known moment, whatever
    requests they have then. `late_binding`: whether the policy is `llumnix+`."""

    config: ReschedulingConfig
    levels: tuple[Level, ...]
    evacuated: Collection[str] = ()
    late_binding: bool = False

    @property
    def by_gain(self) -> bool:
        """Whether requests also move to where their tokens come sooner."""
        return self.late_binding and self.config.enabled and self.config.gain_ahead_s > 0

    def load(self, status: InstanceSnapshot) -> InstanceLoad:
        """The instance as a round sees it, supposing that no reason closes it."""
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
    """A source reports that none of its requests can go to that destination, and that none is on
    its way to it. Both instances are given as (instance id, incarnation)."""

    source: tuple[str, int]
    destination: tuple[str, int]


@value
class InstanceGone:
    """The instance died, or was removed."""

    instance_id: str


@value
class RulesChanged:
    """The rules changed: the next round uses these."""

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
    """The machine of the rounds. Whoever learns of a failed move reports it to `cooling`. `epoch`
    makes round ids unique. `pairing`: the rule by which instances are paired; the simulator
    compares several rules. `names_candidates`: whether orders name the freest instances."""

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
        self._ordered: dict[str, Pair] = {}
        """The pairs of the latest round, by source id. Each instance is in one pair at most."""
        self._fruitless: Avoided[tuple[str, str]] = Avoided()
        """The fruitless pairs, by (source id, destination id)."""
        self._gains_nothing: Avoided[str] = Avoided()
        """The sources of which no request would gain enough by a move, by instance id."""
        self._loads: dict[str, tuple[InstanceSnapshot, InstanceLoad]] = {}
        """For each instance, the latest status that a round looked at, and the load that the
        present rules compute from it."""

    def handle(self, event: Event, now_s: float) -> list[Instruction]:
        """Takes one event in; returns what to do now, in order. Mutates."""
        match event:
            case RoundDue():
                return self._round(now_s)
            case PairFruitless(source=source, destination=destination):
                if self._is_present(source) and self._is_present(destination):
                    until_s = fruitless_until_s(now_s, self.rules.config.interval_s)
                    ordered = self._ordered.get(source[0])
                    if ordered is not None and ordered.by_gain:
                        self._gains_nothing.avoid(source[0], until_s)
                    else:
                        self._fruitless.avoid((source[0], destination[0]), until_s)
            case InstanceGone(instance_id=instance_id):
                self._ordered.pop(instance_id, None)
                self._loads.pop(instance_id, None)
            case RulesChanged(rules=rules):
                if rules.config != self.rules.config:
                    # under other rules a fruitless pair may be worth an order
                    self._fruitless.clear()
                    self._gains_nothing.clear()
                self.rules = rules
                self._loads.clear()
        return []

    def load_of(self, status: InstanceSnapshot) -> InstanceLoad:
        """`RoundRules.load`, computed once for each status."""
        known = self._loads.get(status.instance_id)
        if known is None or known[0] is not status:
            known = self._loads[status.instance_id] = status, self.rules.load(status)
        return known[1]

    def roles(
        self, rules: RoundRules, now_s: float
    ) -> tuple[Sequence[InstanceLoad], Mapping[str, Role]]:
        """The loads and the roles of the instances by other rules, from the statuses that a round
        would look at now."""
        closed = self._cluster.closed_to_moves(now_s)
        loads = [_seen(rules.load(status), closed) for status in self._cluster.statuses(now_s)]
        return loads, roles(loads, rules.config)

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken."""
        destinations = {each.destination_id for each in self._ordered.values()}
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
        loads: Sequence[InstanceLoad] = ()
        pairs = list[Pair]()
        if statuses := self._cluster.statuses(now_s):
            closed = self._cluster.closed_to_moves(now_s)
            loads = [self.load_of(status) for status in statuses]
            if closed:
                loads = [_seen(load, closed) for load in loads]
            avoided = {*self._fruitless.at(now_s), *self._cooling.pairs(now_s)}
            left_out = Unpaired(avoided, self._cluster.unlike)
            pairs += self._pairing(loads, self.rules.config, left_out)
            if self.rules.by_gain and len(loads) > 1:
                pairs += self._pairs_by_gain(loads, pairs, left_out, now_s)
        if not pairs and not self._ordered:
            return out  # the usual case
        if pairs:
            candidates = self._freest(loads)
            for each in pairs:
                order = self._relief(each, candidates, now_s)
                out.append(OrderRelief(each.source_id, round_id, order))
        before = self._ordered
        self._ordered = {each.source_id: each for each in pairs}
        withdrawn = sorted(before.keys() - self._ordered.keys())
        out += [WithdrawRelief(source_id, round_id) for source_id in withdrawn]
        return out

    def _freest(self, loads: Iterable[InstanceLoad]) -> tuple[tuple[str, float], ...]:
        if not self._names_candidates:
            return ()
        open_ = (load for load in loads if load.is_open)
        freest = heapq.nsmallest(MAX_CANDIDATES, open_, key=attrgetter("freest_first"))
        return tuple((load.instance_id, load.freeness) for load in freest)

    def _pairs_by_gain(
        self,
        loads: Sequence[InstanceLoad],
        pairs: Sequence[Pair],
        left_out: LeftOut,
        now_s: float,
    ) -> list[Pair]:
        """Pairs of the instances that are in no pair because of their memory. None of them is a
        source by its freeness, nor may it become one."""
        config = self.rules.config
        taken = {i for each in pairs for i in (each.source_id, each.destination_id)}
        by_id = {each.instance_id: each for each in loads if each.instance_id not in taken}
        nothing = self._gains_nothing.at(now_s)
        statuses = (self._loads[instance_id][0] for instance_id in by_id)
        longest_first = gaps(statuses, config.gain_ahead_s)
        free = [
            each
            for each in reversed(longest_first)
            if not each.is_busy and is_destination(by_id[each.instance_id], config)
        ]
        found = list[Pair]()
        for source in longest_first:
            if not free or not differ(source.gap_s, free[0].gap_s):
                break
            source_id, load = source.instance_id, by_id[source.instance_id]
            if not source.is_busy or not load.may_send or source_id in nothing:
                continue
            if is_source(load, config):
                continue
            for place, there in enumerate(free):
                if not differ(source.gap_s, there.gap_s):
                    break
                if (source_id, there.instance_id) not in left_out:
                    to = by_id[free.pop(place).instance_id]
                    steps = load.freeness, to.freeness
                    found.append(Pair(source_id, to.instance_id, *steps, by_gain=True))
                    break
        return found

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
            pair.by_gain,
        )

    def _help_blocked(self, round_id: str, now_s: float, out: list[Instruction]) -> None:
        def may_move(source_id: str, destination_id: str) -> bool:
            if not self._cluster.has_moves_left(destination_id):
                return False
            cools = self._cooling.remaining_s(destination_id, now_s, source_id)
            return not (cools or self._cluster.unlike(source_id, destination_id))

        for wanted in self._cluster.help_blocked(may_move):
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
