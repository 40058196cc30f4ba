"""Rounds of rescheduling in virtual time: `core.rescheduling` decides, `moves` carries out.

What the controller (`runtime.controller.rescheduler`) and the instances (`runtime.instance.moves.
relief_moves`) share in the live cluster is one object here.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from controller.core.holding.blocked import MakeRoom, MoveHead
from controller.core.holding.room_moves import PLAN_FAILED, departures, ends_plan, head_to_leave
from controller.core.load.snapshot import InstanceSnapshot, Level
from controller.core.migration.refusals import MoveRefusal
from controller.core.rescheduling.candidate import Candidate
from controller.core.rescheduling.config import ReschedulingConfig
from controller.core.rescheduling.fruitless import FruitlessPairs
from controller.core.rescheduling.pairing import Pair, pair
from controller.core.rescheduling.relief import Decision, ReliefView, next_move
from controller.model.moves import Remembered
from controller.sim.event_queue import EventQueue
from controller.sim.instance import SimInstance
from controller.sim.loads import Loads
from controller.sim.moves import Links, SimMove
from controller.sim.relief_baselines import BALANCED, balanced_pairs, relief_rules
from controller.sim.request_run import RequestRun

ORDER_INTERVALS = 2
FAILED_AGAIN_S = 1.0


@dataclass(slots=True)
class _Order:
    destination: InstanceSnapshot
    taken_s: float
    expires_s: float


class SimRescheduler:
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
        self.num_moved = 0
        self.num_failed: Counter[str] = Counter()
        """Moves that came to nothing, by why."""
        self._instances = instances
        self._events = events
        self._links = links
        self._max_moves = max_moves
        self._block_bytes = block_bytes
        self._limit_factor = limit_factor
        self._balances = pairing == BALANCED
        self._rules = relief_rules(pairing, victim)
        self._fruitless = FruitlessPairs()
        self._loads = Loads(instances, levels, config)
        self._orders: dict[str, _Order] = {}
        """By source."""
        self._moves: dict[str, SimMove] = {}
        """Under way, by request id."""
        self._sent: dict[str, list[SimMove]] = {}
        """By source: moves that the destination's snapshot may not count yet."""
        self._num_moves: Counter[str] = Counter()
        """Under way, by instance, both directions together."""
        self._room_orders: dict[str, dict[tuple[type, str], MoveHead | MakeRoom]] = {}
        """By source: not carried out yet, the last one of each kind and blocked request."""
        self._failed_s: dict[str, tuple[str, float]] = {}

    def round(self, closed: Collection[str] = ()) -> None:
        """Requests do not move to `closed` instances."""
        now_s, config = self._events.now_s, self.config
        orders = {}
        for each in self._pairs(now_s, closed):
            expires_s = now_s + ORDER_INTERVALS * config.interval_s
            destination = self._instances[each.destination_id].status()
            orders[each.source_id] = _Order(destination, now_s, expires_s)
        for source_id in self._orders.keys() - orders.keys():
            self._sent.pop(source_id, None)
        self._orders = orders
        for source_id in orders:
            self._ask(self._instances[source_id])

    def _pairs(self, now_s: float, closed: Collection[str]) -> Iterable[Pair]:
        left_out = set(self._fruitless.at(now_s))
        if self._balances:
            return balanced_pairs(self._loads.all(closed), left_out)
        loads = self._loads.in_pairs(now_s, closed)
        return pair(loads, self.config, left_out) if loads else ()

    def slow_link(self, instance_id: str, factor: float) -> None:
        self._links.slowdown[instance_id] = factor

    def instance_changed(self, instance: SimInstance) -> None:
        """Something else happened there than to decode."""
        self._loads.changed(instance)

    def instance_died(self, instance: SimInstance) -> None:
        for move in list(self._moves.values()):
            if instance in (move.source, move.destination):
                move.cut("the other end died")
        self.instance_gone(instance)

    def instance_gone(self, instance: SimInstance) -> None:
        """Nothing moves there, or from there, any more."""
        instance_id = instance.instance_id
        self._loads.gone(instance)
        self._room_orders.pop(instance_id, None)
        self._orders = {
            source_id: order
            for source_id, order in self._orders.items()
            if instance_id not in (source_id, order.destination.instance_id)
        }

    def is_moving(self, instance_id: str) -> bool:
        """Whether a move from there or to there is under way."""
        return self._num_moves[instance_id] > 0

    # -- blocked requests ------------------------------------------------------------------

    def help_blocked(self, orders: Iterable[MoveHead | MakeRoom]) -> None:
        for order in orders:
            source = self._instances[order.source_id]
            waiting = self._room_orders.setdefault(order.source_id, {})
            is_first = not waiting
            waiting[type(order), order.request_id] = order
            if is_first:
                source.between_steps(partial(self._carry_out, source))

    def _carry_out(self, source: SimInstance) -> None:
        """A step may take longer than several rounds, of which all ask for the same."""
        for order in self._room_orders.pop(source.instance_id).values():
            if isinstance(order, MoveHead):
                self._move_head(source, order)
            else:
                self._make_room(source, order)

    def _move_head(self, source: SimInstance, order: MoveHead) -> None:
        if self._num_may_begin(source) <= 0 or not self._is_open(order.destination_id):
            return
        head = head_to_leave(order, self._candidates(source), self.config)
        if head is not None:
            self._begin(source, self._instances[order.destination_id], head)

    def _make_room(self, source: SimInstance, order: MakeRoom) -> None:
        num_may_begin = self._num_may_begin(source)
        spare = {i: blocks for i, blocks in order.spare_blocks.items() if self._is_open(i)}
        if num_may_begin <= 0 or not spare:
            return
        found = departures(
            replace(order, spare_blocks=spare),
            self._candidates(source),
            source.engine.config.block_size,
            num_may_begin,
            self._max_moves,
            self.config,
        )
        for each in found.let_go:
            self._begin(source, self._instances[each.destination_id], each.candidate)
        plan: list[SimMove] = []
        for each in found.plan:
            destination = self._instances[each.destination_id]
            plan.append(self._begin(source, destination, each.candidate, plan))

    def _num_may_begin(self, source: SimInstance) -> int:
        return self._max_moves - self._num_moves[source.instance_id]

    def _is_open(self, destination_id: str) -> bool:
        destination = self._instances.get(destination_id)
        return (
            destination is not None
            and destination.alive
            and self._num_moves[destination_id] < self._max_moves
        )

    # -- relief ----------------------------------------------------------------------------

    def _ask(self, source: SimInstance) -> None:
        source.between_steps(lambda: self._relieve(source))

    def _relieve(self, source: SimInstance) -> None:
        source_id, now_s = source.instance_id, self._events.now_s
        order = self._orders.get(source_id)
        if order is None or now_s >= order.expires_s:
            return
        destination_id = order.destination.instance_id
        destination = self._instances[destination_id]
        sent = self._sent[source_id] = self._uncounted(self._sent.get(source_id, []), order)
        if self._num_moves[source_id] >= self._max_moves:
            return
        snapshot, candidates = source.status(), self._candidates(source)
        began = False
        while self._num_moves[source_id] < self._max_moves:
            decision = next_move(
                ReliefView(
                    snapshot,
                    candidates,
                    order.destination,
                    [m.candidate for m in sent if m.destination is destination],
                    self.levels,
                    self.config,
                    self._block_bytes,
                    self._links.bandwidth(source_id),
                    source.step_time_s,
                ),
                self._rules,
            )
            chosen = decision.chosen
            if chosen is None:
                if not began:
                    self._note_fruitless(source_id, destination_id, snapshot, decision)
                return
            refusal = None
            if self._num_moves[destination_id] >= self._max_moves:
                refusal = MoveRefusal.TOO_MANY_MOVES
            else:
                sent.append(self._begin(source, destination, chosen))
                began = True
            now = replace(chosen, outgoing=refusal is None, refusal=refusal)
            candidates = [now if each is chosen else each for each in candidates]

    def _candidates(self, source: SimInstance) -> list[Candidate]:
        return source.engine.moves.candidates(partial(self._remembered, source))

    def _remembered(self, source: SimInstance, request_id: str) -> Remembered:
        run = source.runs.get(request_id)
        if run is None:
            return Remembered(outgoing=True)
        num_left, now_s = self._num_tokens_left(source, run), self._events.now_s
        if request_id in self._moves:
            return Remembered(num_left, outgoing=True)
        refusal = None
        if failed := self._failed_s.get(request_id):
            if failed[1] <= now_s - FAILED_AGAIN_S:
                del self._failed_s[request_id]
            else:
                refusal = failed[0]
        moves = tuple([(left, now_s - left_s) for left, left_s in run.moves]) if run.moves else ()
        return Remembered(num_left, refusal, False, moves)

    def _num_tokens_left(self, source: SimInstance, run: RequestRun) -> int | None:
        """How many tokens the request may still emit, as far as a real instance would know."""
        if self._limit_factor is None:
            return None
        request = run.request
        num_outputs = source.engine.num_tokens(request.request_id) - request.num_prompt_tokens
        return int(self._limit_factor * request.max_output_tokens) - num_outputs

    def _uncounted(self, sent: list[SimMove], order: _Order) -> list[SimMove]:
        """Without the moves that failed, and those that the destination's snapshot counts."""
        return [
            m
            for m in sent
            if not (m.is_over and m.failure)
            and not (m.reserved_s is not None and m.reserved_s <= order.taken_s)
        ]

    def _note_fruitless(
        self, source_id: str, destination_id: str, snapshot: InstanceSnapshot, decision: Decision
    ) -> None:
        """As `relief_moves`: nothing can go there, and nothing is on its way there."""
        on_their_way = {
            m.destination.instance_id
            for m in self._moves.values()
            if m.source.instance_id == source_id
        }
        is_source = decision.reason or snapshot.num_evicted_queued
        if (decision.refused or (is_source and not on_their_way)) and (
            destination_id not in on_their_way
        ):
            self._fruitless.note(source_id, destination_id, self._events.now_s, self.config)

    # -- moves -----------------------------------------------------------------------------

    def _begin(
        self,
        source: SimInstance,
        destination: SimInstance,
        chosen: Candidate,
        plan: Sequence[SimMove] = (),
    ) -> SimMove:
        move = SimMove(
            source.runs[chosen.request_id],
            chosen,
            source,
            destination,
            self._links,
            self._events,
            self._block_bytes,
            self._over,
            plan,
        )
        self._moves[chosen.request_id] = move
        self._num_moves[source.instance_id] += 1
        self._num_moves[destination.instance_id] += 1
        move.begin()
        return move

    def _over(self, move: SimMove, moved: bool) -> None:
        request_id, source = move.run.request.request_id, move.source
        del self._moves[request_id]
        self._num_moves[source.instance_id] -= 1
        self._num_moves[move.destination.instance_id] -= 1
        if not moved:
            self.num_failed[move.failure] += 1
            if move.failure != PLAN_FAILED:  # that is not the request's fault
                self._failed_s[request_id] = move.failure, self._events.now_s
            if ends_plan(move.failure):
                for other in move.plan:
                    other.cancel(PLAN_FAILED)
            return
        self.num_moved += 1
        if source.instance_id in self._orders:
            self._ask(source)
