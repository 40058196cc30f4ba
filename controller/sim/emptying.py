"""Emptying in virtual time: the machines of `core.emptying` decide, `moves` carries out."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial

from controller.core.emptying.orders import HeadOrder, Opening, ReliefOrder, RoomOrder
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
)
from controller.core.holding.blocked import MakeRoom, MoveHead
from controller.core.instance_ref import InstanceRef
from controller.core.load.snapshot import Level
from controller.core.migration.refusals import MoveRefusal
from controller.core.rescheduling.config import ReschedulingConfig
from controller.core.rescheduling.fruitless import FruitlessPairs
from controller.core.rescheduling.pairing import Pair, pair
from controller.model.moves import Remembered
from controller.sim.event_queue import EventQueue
from controller.sim.instance import INCARNATION, SimInstance
from controller.sim.loads import Loads
from controller.sim.moves import Links, SimMove
from controller.sim.relief_baselines import BALANCED, balanced_pairs, relief_rules
from controller.sim.request_run import RequestRun


class SimEmptying:
    """`block_bytes`: of one KV block. A client's limit of outputs is `limit_factor` times what the
    request emits in the end; None: nobody has a limit. `pairing` and `victim`: of `SimPolicy`."""

    def __init__(
        self,
        instances: Mapping[str, SimInstance],
        events: EventQueue,
        links: Links,
        config: ReschedulingConfig,
        levels: Sequence[Level],
        max_moves: int,
        block_bytes: int,
        limit_factor: float | None,
        pairing: str,
        victim: str,
    ) -> None:
        self.config = config
        self.levels = levels
        self.links = links
        self.events = events
        self.max_moves = max_moves
        self.block_bytes = block_bytes
        self.limit_factor = limit_factor
        self.rules = relief_rules(pairing, victim)
        self.num_moved = 0
        self.num_failed: Counter[str] = Counter()
        """Moves that came to nothing, by why."""
        self._instances = instances
        self._balances = pairing == BALANCED
        self._fruitless = FruitlessPairs()
        self._loads = Loads(instances, levels, config)
        self._sources: dict[str, SimSource] = {}
        """By instance, of those that were ever in a move or had an order."""
        self._ordered: list[str] = []
        """Sources that have an order."""

    def source(self, instance_id: str) -> "SimSource":
        found = self._sources.get(instance_id)
        if found is None:
            found = self._sources[instance_id] = SimSource(self, self._instances[instance_id])
        return found

    def round(self, closed: Collection[str] = ()) -> None:
        """Requests do not move to `closed` instances."""
        now_s, before, self._ordered = self.events.now_s, self._ordered, []
        pairs = list(self._pairs(now_s, closed))
        for each in pairs:
            self._ordered.append(each.source_id)
            order = ReliefOrder(
                _ref(each.destination_id),
                self._instances[each.destination_id].status(),
                0.0,
                each.source_freeness,
                each.destination_freeness,
                (),
                tuple(self.levels),
                self.config,
            )
            self.source(each.source_id).handle(ReliefGiven("", order, now_s))
        for source_id in before:
            if source_id not in self._ordered:
                self.source(source_id).handle(ReliefWithdrawn())

    def _pairs(self, now_s: float, closed: Collection[str]) -> Iterable[Pair]:
        left_out = set(self._fruitless.at(now_s))
        if self._balances:
            return balanced_pairs(self._loads.all(closed), left_out)
        loads = self._loads.in_pairs(now_s, closed)
        return pair(loads, self.config, left_out) if loads else ()

    def fruitless(self, source_id: str, destination_id: str) -> None:
        self._fruitless.note(source_id, destination_id, self.events.now_s, self.config)

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
        if instance_id in self._ordered:
            self._ordered.remove(instance_id)
        for source in self._sources.values():
            source.handle(PeerLost(lambda ref: ref.instance_id == instance_id))

    def drain_ended(self, instance: SimInstance) -> None:
        if instance.instance_id in self._sources:
            self.source(instance.instance_id).handle(DrainEnded())

    def is_moving(self, instance_id: str) -> bool:
        """Whether a move from there or to there is under way."""
        return instance_id in self._sources and self.source(instance_id).num_moves > 0

    def help_blocked(self, orders: Iterable[MoveHead | MakeRoom]) -> None:
        for order in orders:
            self.source(order.source_id).handle(RoomGiven(self._room_order(order)))

    def _room_order(self, order: MoveHead | MakeRoom) -> HeadOrder | RoomOrder:
        if isinstance(order, MoveHead):
            return HeadOrder("", order.request_id, _ref(order.destination_id), self.config)
        openings = tuple(Opening(_ref(i), blocks) for i, blocks in order.spare_blocks.items())
        lacking_blocks = order.lacking_blocks
        return RoomOrder(
            "", order.request_id, "", order.rank, lacking_blocks, openings, self.config
        )


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
        self._leaving: set[str] = set()
        """The requests of `moves`."""
        self._moving: set[str] = set()
        """At the last look: the requests that may not move yet, as an earlier move is not final."""

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
                self._emptying.fruitless(self.instance_id, to.instance_id)

    def _look(self) -> None:
        self._moving = self.instance.moves.moving_ids()
        candidates = self.instance.engine.moves.candidates(self._remembered)
        self.handle(Looked(self.instance.status(), candidates))

    def _remembered(self, request_id: str) -> Remembered:
        run = self.instance.runs.get(request_id)
        if run is None:
            return Remembered(outgoing=True)
        num_left, now_s = self._num_tokens_left(run), self._emptying.events.now_s
        if request_id in self._leaving:
            return Remembered(num_left, outgoing=True)
        moves = tuple([(left, now_s - left_s) for left, left_s in run.moves]) if run.moves else ()
        refusal = MoveRefusal.MOVING if request_id in self._moving else None
        return Remembered(num_left, refusal, False, moves)

    def _num_tokens_left(self, run: RequestRun) -> int | None:
        """How many tokens the request may still emit, as far as a real instance would know."""
        limit_factor, request = self._emptying.limit_factor, run.request
        if limit_factor is None:
            return None
        num_tokens = self.instance.engine.num_tokens(request.request_id)
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
        self._leaving.add(candidate.request_id)
        for end in (self, there):
            end.num_moves += 1
        move.begin()
        self.handle(MoveBegan(migration_id))

    def _over(self, migration_id: str, move: SimMove, moved: bool) -> None:
        emptying, there = self._emptying, move.destination.instance_id
        for end in (self, emptying.source(there)):
            end.num_moves -= 1
        self._leaving.remove(move.candidate.request_id)
        emptying.num_moved += moved
        if not moved:
            emptying.num_failed[move.failure] += 1
        ended = MoveEnded(migration_id, moved, move.failure)
        instructions = self.machine.handle(ended, emptying.events.now_s)
        del self.moves[migration_id]
        for instruction in instructions:
            self._carry_out(instruction)


def _ref(instance_id: str) -> InstanceRef:
    return InstanceRef(instance_id, INCARNATION, "")
