"""Emptying in virtual time: the machines of `core.emptying` decide, `sim_moves` carries out.

A round looks at all instances each 0.1 s. `Moments` and `Loads` spare it most of that: between two
changes of an instance its batch only decodes, so what holds of it by its free blocks comes at a
moment that is known in advance.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from controller.core.admission.room_orders import MakeRoom, MoveHead
from controller.core.emptying import rounds
from controller.core.emptying.openness import Cooling, Openness
from controller.core.emptying.relief import PastMoves
from controller.core.emptying.relieving import (
    BeginMove,
    CancelMove,
    DrainEnded,
    Event,
    Instruction,
    Look,
    Looked,
    MoveBegan,
    MoveEnded,
    MoveRefused,
    PeerLost,
    ReliefGiven,
    ReliefWithdrawn,
    RelievingSource,
    RoomGiven,
    TellFruitless,
    known,
)
from controller.core.emptying.rounds import (
    InstanceGone,
    InstanceLoad,
    LeftOut,
    OrderRelief,
    OrderRoom,
    Pair,
    PairFruitless,
    ReliefRounds,
    RoundDue,
    RoundRules,
    WithdrawRelief,
    is_destination,
    is_source,
    pair,
)
from controller.core.instance_ref import InstanceRef
from controller.core.load.snapshot import InstanceSnapshot
from controller.core.migration.refusals import MoveRefusal
from controller.core.scheduler import GlobalScheduler
from controller.core.settings import ReschedulingConfig
from controller.sim.baselines import BALANCED, balanced_pairs, relief_rules
from controller.sim.event_queue import EventQueue
from controller.sim.instance import INCARNATION, SimInstance
from controller.sim.setup import SimPolicy
from controller.sim.sim_moves import Links, SimMove


class SimEmptying:
    """The controller's part, and the `ClusterView` that its rounds look at. `block_bytes`: of one
    KV block. A client's limit of outputs is `limit_factor` times what the request emits in the end;
    None: nobody has a limit. `pairing` and `victim`: of `SimPolicy`."""

    def __init__(
        self,
        instances: Mapping[str, SimInstance],
        scheduler: GlobalScheduler,
        events: EventQueue,
        links: Links,
        policy: SimPolicy,
        block_bytes: int,
        limit_factor: float | None,
    ) -> None:
        self.links = links
        self.events = events
        self.max_moves = policy.rescheduling.max_moves
        self.block_bytes = block_bytes
        self.limit_factor = limit_factor
        self.rules = relief_rules(policy.pairing, policy.victim)
        self.num_moved = 0
        self.num_failed: Counter[str] = Counter()
        """Moves that came to nothing, by why."""
        self._instances = instances
        self._scheduler = scheduler
        self._balances = policy.pairing == BALANCED
        self._helps = False
        cooling = Cooling()  # those that it is told of die, and never come back
        self.closed_to_moves = Openness(scheduler, cooling).closed_to_moves
        self.rounds = ReliefRounds(
            self,
            cooling,
            RoundRules(policy.rescheduling, policy.levels),
            "",
            self._balanced_pairs if self._balances else pair,
            names_candidates=False,
        )
        self._loads = Loads(self.rounds.load_of, policy.rescheduling)
        self._sources: dict[str, SimSource] = {}
        """By instance, of those that were ever in a move or had an order."""

    def source(self, instance_id: str) -> "SimSource":
        found = self._sources.get(instance_id)
        if found is None:
            found = self._sources[instance_id] = SimSource(self, self._instances[instance_id])
        return found

    def round(self, *, helps: bool) -> None:
        """`helps`: some requests may be blocked, and all instances have reported."""
        self._helps = helps
        self.handle(RoundDue())

    def handle(self, event: rounds.Event) -> None:
        now_s = self.events.now_s
        for instruction in self.rounds.handle(event, now_s):
            match instruction:
                case OrderRelief(source_id=source_id, order=order):
                    self.source(source_id).handle(ReliefGiven("", order, now_s))
                case WithdrawRelief(source_id=source_id):
                    self.source(source_id).handle(ReliefWithdrawn())
                case OrderRoom(source_id=source_id, order=room):
                    self.source(source_id).handle(RoomGiven(room))

    # -- what a round looks at -------------------------------------------------------------

    def statuses(self, now_s: float) -> Sequence[InstanceSnapshot]:
        if self._balances:
            return [each.status() for each in self._instances.values() if each.alive]
        return self._loads.in_pairs(now_s)

    def status_age_s(self, _instance_id: str, _now_s: float) -> float:
        return 0.0

    def help_blocked(self, may_move: Callable[[str, str], bool]) -> Sequence[MoveHead | MakeRoom]:
        return self._scheduler.help_blocked(may_move) if self._helps else ()

    def has_moves_left(self, instance_id: str) -> bool:
        return self.source(instance_id).num_moves < self.max_moves

    def ref(self, instance_id: str) -> InstanceRef | None:
        return ref(instance_id) if instance_id in self._instances else None

    def frontend_of(self, _order: MakeRoom) -> str:
        return ""

    def _balanced_pairs(
        self, loads: Sequence[InstanceLoad], _config: ReschedulingConfig, left_out: LeftOut
    ) -> Sequence[Pair]:
        statuses = (self._instances[load.instance_id].status() for load in loads)
        return balanced_pairs(list(zip(loads, statuses, strict=True)), left_out)

    # -- what happens ----------------------------------------------------------------------

    def slow_link(self, instance_id: str, factor: float) -> None:
        self.links.slowdown[instance_id] = factor

    def instance_changed(self, instance: SimInstance) -> None:
        """Something else happened there than to decode."""
        self._loads.changed(instance)

    def instance_died(self, instance: SimInstance) -> None:
        for source in list(self._sources.values()):
            for move in list(source.moves.values()):
                if instance in (move.source, move.destination):
                    move.cut()
        self.instance_gone(instance)

    def instance_gone(self, instance: SimInstance) -> None:
        """Nothing moves there, or from there, any more."""
        instance_id = instance.instance_id
        self._loads.gone(instance)
        self._sources.pop(instance_id, None)
        self.handle(InstanceGone(instance_id))
        for source in self._sources.values():
            source.handle(PeerLost(lambda ref: ref.instance_id == instance_id))

    def drain_ended(self, instance: SimInstance) -> None:
        if instance.instance_id in self._sources:
            self.source(instance.instance_id).handle(DrainEnded())

    def is_moving(self, instance_id: str) -> bool:
        """Whether a move from there or to there is under way."""
        return instance_id in self._sources and self.source(instance_id).num_moves > 0

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken."""
        self.rounds.check()
        for source in self._sources.values():
            source.machine.check()


class SimSource:
    """One instance as a source: runs its machine, and is the `SourceView` that it looks at."""

    leaves_at_s = max_bytes_per_s = None

    def __init__(self, emptying: SimEmptying, instance: SimInstance) -> None:
        self.instance = instance
        self.instance_id = instance.instance_id
        self.block_size = instance.engine.config.block_size
        self.block_bytes = emptying.block_bytes
        self.max_moves = emptying.max_moves
        self.num_moves = 0
        """Under way, both directions together."""
        self.moves: dict[str, SimMove] = {}
        """From here, under way, by migration id."""
        self.machine = RelievingSource(self, "", emptying.rules)
        self._emptying = emptying

    # -- what the machine looks at ---------------------------------------------------------

    @property
    def step_time_s(self) -> float | None:
        return self.instance.step_time_s

    def bytes_per_s(self, _destination_id: str) -> float | None:
        return self._emptying.links.bandwidth(self.instance_id)

    def leaving_for(self) -> Collection[str]:
        return {move.destination.instance_id for move in self.moves.values()}

    def reserved_s(self, migration_id: str) -> float | None:
        return self.moves[migration_id].reserved_s

    # -- what it instructs -----------------------------------------------------------------

    def handle(self, event: Event) -> None:
        for instruction in self.machine.handle(event, self._emptying.events.now_s):
            self._carry_out(instruction)

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Look():
                self.instance.between_steps(self._look)
            case BeginMove():
                self._begin(instruction)
            case CancelMove(migration_id=migration_id, code=code):
                self.moves[migration_id].cancel(code)
            case TellFruitless(destination=to):
                here = ref(self.instance_id)
                self._emptying.handle(PairFruitless(here.key, to.key))

    def _look(self) -> None:
        seen = self.instance.engine.moves.candidates(self._num_tokens_left)
        candidates = known(seen, self.instance.moves, self._past_moves)
        self.handle(Looked(self.instance.status(), candidates))

    def _past_moves(self, request_id: str) -> PastMoves:
        moves, now_s = self.instance.runs[request_id].moves, self._emptying.events.now_s
        return tuple([(left, now_s - left_s) for left, left_s in moves]) if moves else ()

    def _num_tokens_left(self, request_id: str) -> int | None:
        """How many tokens the request may still emit, as far as a real instance would know."""
        limit_factor, run = self._emptying.limit_factor, self.instance.runs.get(request_id)
        if limit_factor is None or run is None:
            return None
        request = run.request
        num_tokens = self.instance.engine.num_tokens(request_id)
        num_outputs = num_tokens - request.num_prompt_tokens
        return int(limit_factor * request.max_output_tokens) - num_outputs

    def _begin(self, begin: BeginMove) -> None:
        migration_id, candidate, emptying = begin.migration_id, begin.candidate, self._emptying
        there = emptying.source(begin.destination.instance_id)
        # What the instances' tables of moves refuse. Live a full destination says so by a message.
        for end in (self, there):
            if end.num_moves >= end.max_moves:
                self.handle(MoveRefused(migration_id, MoveRefusal.TOO_MANY_MOVES))
                return
        move = self.moves[migration_id] = SimMove(
            self.instance.runs[candidate.request_id],
            candidate,
            self.instance,
            there.instance,
            emptying.links,
            emptying.events,
            self.block_bytes,
            partial(self._over, migration_id),
        )
        for end in (self, there):
            end.num_moves += 1
        move.begin()
        self.handle(MoveBegan(migration_id))

    def _over(self, migration_id: str, move: SimMove, moved: bool) -> None:
        emptying, there = self._emptying, move.destination.instance_id
        for end in (self, emptying.source(there)):
            end.num_moves -= 1
        emptying.num_moved += moved
        if not moved:
            emptying.num_failed[move.failure] += 1
        ended = MoveEnded(migration_id, moved, move.failure)
        instructions = self.machine.handle(ended, emptying.events.now_s)
        del self.moves[migration_id]
        for instruction in instructions:
            self._carry_out(instruction)


def ref(instance_id: str) -> InstanceRef:
    return InstanceRef(instance_id, INCARNATION, "")


# -- short cuts ------------------------------------------------------------------------------------

Holds = Callable[[InstanceSnapshot], bool]


class Moments:
    """From when on something may hold of an instance that comes to hold as its free blocks run out.

    A round asks of all instances whether they need help or are sources, and that took half of a
    run. So an instance is looked at once per change, and in a round only from its moment on.
    `holds` of a status also holds of one that differs only in having fewer free blocks."""

    def __init__(self, holds: Holds) -> None:
        self._holds = holds
        self._changed: dict[SimInstance, None] = {}
        """Since they were looked at last."""
        self._from_s: dict[SimInstance, float] = {}

    def changed(self, instance: SimInstance) -> None:
        self._changed[instance] = None

    def gone(self, instance: SimInstance) -> None:
        self._changed.pop(instance, None)
        self._from_s.pop(instance, None)

    def come(self, now_s: float) -> list[SimInstance]:
        """The instances whose moment has come, up to one of their steps early: of all others it
        does not hold now."""
        for instance in self._changed:
            from_s = instance.first_s(self._holds)
            if from_s < math.inf:
                self._from_s[instance] = from_s
            else:
                self._from_s.pop(instance, None)
        self._changed.clear()
        return [instance for instance, from_s in self._from_s.items() if from_s <= now_s]


class Loads:
    """The statuses that a round of rescheduling looks at, of as few instances as will do.

    While its batch only decodes, an instance's freeness falls: one that cannot be a destination
    stays so, and one that is no source becomes one at a known moment. In most rounds there is
    nobody of one of the two kinds. `changed` has to be called whenever something else happens on an
    instance than to decode, `gone` when it serves no more."""

    def __init__(
        self, load_of: Callable[[InstanceSnapshot], InstanceLoad], config: ReschedulingConfig
    ) -> None:
        self._load_of = load_of
        self._config = config
        self._sources = Moments(lambda status: is_source(load_of(status), config))
        self._changed: dict[SimInstance, None] = {}
        """Of these it is not known whether they may be destinations."""
        self._destinations: dict[SimInstance, None] = {}
        """Those that may be, before they change next."""

    def changed(self, instance: SimInstance) -> None:
        self._sources.changed(instance)
        self._changed[instance] = None

    def gone(self, instance: SimInstance) -> None:
        self._sources.gone(instance)
        self._changed.pop(instance, None)
        self._destinations.pop(instance, None)

    def in_pairs(self, now_s: float) -> list[InstanceSnapshot]:
        """Of all instances that can be in a pair now, if no more is against them."""
        config = self._config
        self._look_for_destinations()
        if not self._destinations:
            return []
        sources = self._sources.come(now_s)
        if not sources:
            return []
        found = list[InstanceSnapshot]()
        # The fewer ones first: with little load there are no sources.
        kinds = ((sources, is_source), (list(self._destinations), is_destination))
        for instances, is_one in sorted(kinds, key=lambda kind: len(kind[0])):
            statuses = [each.status() for each in instances]
            of_kind = [each for each in statuses if is_one(self._load_of(each), config)]
            if not of_kind:
                return []
            found += of_kind
        return found

    def _look_for_destinations(self) -> None:
        for instance in self._changed:
            if is_destination(self._load_of(instance.freest_status()), self._config):
                self._destinations[instance] = None
            else:
                self._destinations.pop(instance, None)
        self._changed.clear()
