"""Several engine models in virtual time, rescheduled by the pure policy: rounds of pairing, moves
that take as long as their copy, and what each request went through."""

import heapq
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial

from controller.core.emptying.openness import Avoided, fruitless_until_s
from controller.core.emptying.relief import Candidate, Decision, ReliefView, next_move
from controller.core.emptying.rounds import InstanceLoad, pair
from controller.core.load.freeness import dispatch_freeness, freeness
from controller.core.load.snapshot import DEFAULT_LEVELS, InstanceSnapshot, Level, blocks_for
from controller.core.migration.refusals import MoveRefusal, refusal_of
from controller.core.settings import ReschedulingConfig
from controller.model.engine_model import EngineModel
from controller.model.engine_state import ModelRequest
from controller.model.profile import ModelConfig, load_profile

A10 = load_profile("a10-llama-7b")
MAX_MOVES = 4
HANDSHAKE_S = 0.005
"""Of a move that copies nothing."""


@dataclass(frozen=True)
class Moved:
    time_s: float
    request_id: str
    source_id: str
    destination_id: str
    reason: str


@dataclass
class Node:
    instance_id: str
    engine: EngineModel
    draining: bool = False
    stepping: bool = False
    step_time_s: float | None = None
    num_moves: int = 0


@dataclass
class ModelCluster:
    """`on_finished` may add the next request. Nothing is random here."""

    num_instances: int
    config: ReschedulingConfig = field(default_factory=ReschedulingConfig)
    levels: tuple[Level, ...] = DEFAULT_LEVELS
    num_blocks: int = A10.num_total_blocks
    on_finished: Callable[["ModelCluster", str, str], None] | None = None

    def __post_init__(self) -> None:
        self.now_s = 0.0
        self.nodes: dict[str, Node] = {}
        self.at: dict[str, str] = {}
        self.requests: dict[str, ModelRequest] = {}
        self.num_emitted: defaultdict[str, int] = defaultdict(int)
        self.first_token_s: dict[str, float] = {}
        self.finished: set[str] = set()
        self.moved: list[Moved] = []
        self.refusals: defaultdict[str, int] = defaultdict(int)
        self.orders: list[tuple[float, str, str]] = []
        """(time, source, destination) of each."""
        self._fruitless: Avoided[tuple[str, str]] = Avoided()
        self._under_way: Counter[tuple[str, str]] = Counter()
        """Moves, by source and destination."""
        self._moving: set[str] = set()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._turns = itertools.count()
        for _ in range(self.num_instances):
            self.launch()
        self._later(self.config.interval_s, self._round)

    # -- what a test does -----------------------------------------------------------------

    def launch(self) -> str:
        model = replace(ModelConfig.of(A10, prefix_caching=False), num_total_blocks=self.num_blocks)
        node = Node(f"i-{len(self.nodes)}", EngineModel(model, A10))
        self.nodes[node.instance_id] = node
        return node.instance_id

    def add(self, request: ModelRequest, instance_id: str | None = None) -> None:
        """Without an id it is dispatched to the freest."""
        request = replace(request, arrival_time_s=self.now_s)
        node = self.nodes[instance_id or self._freest(request.rank)]
        self.requests[request.request_id] = request
        self.at[request.request_id] = node.instance_id
        node.engine.add(request)
        self._wake(node)

    def at_time(self, time_s: float, action: Callable[[], None]) -> None:
        self._later(time_s - self.now_s, action)

    def run_until(self, time_s: float) -> None:
        while self._events and self._events[0][0] <= time_s:
            self.now_s, _, action = heapq.heappop(self._events)
            action()
        self.now_s = time_s
        for node in self.nodes.values():
            node.engine.check()

    def snapshot(self, instance_id: str) -> InstanceSnapshot:
        node = self.nodes[instance_id]
        return replace(node.engine.snapshot(instance_id, 1), draining=node.draining)

    def freeness(self, instance_id: str) -> float:
        return freeness(self.snapshot(instance_id), self.levels)

    @property
    def num_evictions(self) -> int:
        return sum(node.engine.num_evictions for node in self.nodes.values())

    def moves_of(self, request_id: str) -> list[Moved]:
        return [each for each in self.moved if each.request_id == request_id]

    def max_moves_in_a_minute(self) -> int:
        """Of one request."""
        most = 0
        for request_id in {each.request_id for each in self.moved}:
            times_s = [each.time_s for each in self.moves_of(request_id)]
            most = max(most, *(sum(t <= o < t + 60 for o in times_s) for t in times_s))
        return most

    def returns(self) -> list[tuple[Moved, Moved]]:
        """Moves of a request from somewhere, and the later one back there."""
        found = []
        for request_id in {each.request_id for each in self.moved}:
            moves = self.moves_of(request_id)
            for index, away in enumerate(moves):
                back = [m for m in moves[index + 1 :] if m.destination_id == away.source_id]
                found += [(away, m) for m in back[:1]]
        return found

    # -- steps ----------------------------------------------------------------------------

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_s + delay_s, next(self._turns), action))

    def _wake(self, node: Node) -> None:
        if node.stepping or not node.engine.has_work():
            return
        node.stepping = True
        step = node.engine.step()
        node.step_time_s = step.duration_s

        def done() -> None:
            node.stepping = False
            for request_id in step.emitted:
                self.num_emitted[request_id] += 1
                self.first_token_s.setdefault(request_id, self.now_s)
            for request_id in step.finished:
                self.finished.add(request_id)
                del self.at[request_id]
                if self.on_finished is not None:
                    self.on_finished(self, request_id, node.instance_id)
            self._wake(node)

        self._later(step.duration_s, done)

    def _freest(self, rank: int) -> str:
        level = next(level for level in self.levels if level.rank == rank)
        return max(
            (node for node in self.nodes.values() if not node.draining),
            key=lambda n: dispatch_freeness(self.snapshot(n.instance_id), level, self.levels),
        ).instance_id

    # -- rounds ---------------------------------------------------------------------------

    def _round(self) -> None:
        snapshots = {each: self.snapshot(each) for each in self.nodes}
        loads = [
            InstanceLoad.of(snapshot, self.levels, may_send=True, may_receive=True)
            for snapshot in snapshots.values()
        ]
        if self.config.enabled:
            left_out = set(self._fruitless.at(self.now_s))
            for each in pair(loads, self.config, left_out):
                self.orders.append((self.now_s, each.source_id, each.destination_id))
                self._relieve(each.source_id, snapshots[each.destination_id])
        self._later(self.config.interval_s, self._round)

    def _relieve(self, source_id: str, destination: InstanceSnapshot) -> None:
        node, sent = self.nodes[source_id], list[Candidate]()
        snapshot = self.snapshot(source_id)
        while node.num_moves < MAX_MOVES:
            decision = next_move(
                ReliefView(
                    snapshot,
                    [self._known(c) for c in node.engine.moves.candidates(self._num_left)],
                    destination,
                    sent,
                    self.levels,
                    self.config,
                    A10.kv_bytes_per_token * A10.block_size,
                    A10.copy_bytes_per_s,
                    node.step_time_s,
                )
            )
            for refused in decision.refused:
                self.refusals[refused.code] += 1
            chosen = decision.chosen
            if chosen is None and not sent:
                self._note_fruitless(node, destination, decision)
            if chosen is None or not self._begin(node, chosen, destination, decision.reason):
                return
            sent.append(chosen)

    def _note_fruitless(
        self, node: Node, destination: InstanceSnapshot, decision: Decision
    ) -> None:
        """As in `core.emptying.relieving`."""
        pair_ids = node.instance_id, destination.instance_id
        is_source = decision.reason or self.snapshot(node.instance_id).num_evicted_queued
        fruitless = decision.refused or (is_source and not node.num_moves)
        if fruitless and not self._under_way[pair_ids]:
            until_s = fruitless_until_s(self.now_s, self.config.interval_s)
            self._fruitless.avoid(pair_ids, until_s)

    def _known(self, candidate: Candidate) -> Candidate:
        moves = self.moves_of(candidate.request_id)
        return replace(
            candidate,
            refusal=refusal_of(candidate.facts),
            outgoing=candidate.request_id in self._moving,
            moves=tuple((each.source_id, self.now_s - each.time_s) for each in moves),
        )

    def _num_left(self, request_id: str) -> int:
        """As a client's limit: twice what the request really emits."""
        request = self.requests[request_id]
        return 2 * request.max_output_tokens - self.num_emitted[request_id]

    # -- moves ----------------------------------------------------------------------------

    def _begin(
        self, node: Node, chosen: Candidate, destination: InstanceSnapshot, reason: str
    ) -> bool:
        to, request_id = self.nodes[destination.instance_id], chosen.request_id
        request = self.requests[request_id]
        num_outputs = chosen.num_tokens - request.num_prompt_tokens
        num_blocks = 0 if chosen.queued else blocks_for(chosen.num_tokens, A10.block_size)
        found = to.engine.moves.reserve(request, num_outputs, num_blocks)
        if isinstance(found, MoveRefusal):
            return False
        self._moving.add(request_id)
        self._under_way[node.instance_id, to.instance_id] += 1
        node.num_moves += 1
        copy_time_s = num_blocks * A10.block_size * A10.kv_bytes_per_token / A10.copy_bytes_per_s
        moved = Moved(self.now_s, request_id, node.instance_id, to.instance_id, reason)
        self._later(HANDSHAKE_S + copy_time_s, lambda: self._finish(node, to, moved, num_blocks))
        return True

    def _finish(self, node: Node, to: Node, moved: Moved, num_blocks: int) -> None:
        """At the end of the copy the request changes over, unless it ended or lost its blocks."""
        self._moving.discard(moved.request_id)
        self._under_way[node.instance_id, to.instance_id] -= 1
        node.num_moves -= 1
        if not self._change_over(node, to, moved.request_id, num_blocks):
            to.engine.moves.cancel(moved.request_id)
            return
        self.at[moved.request_id] = to.instance_id
        self.moved.append(replace(moved, time_s=self.now_s))
        self._wake(node)
        self._wake(to)

    def _change_over(self, node: Node, to: Node, request_id: str, num_blocks: int) -> bool:
        if refusal_of(node.engine.moves.facts(request_id)) is not None:
            return False
        if node.engine.moves.is_queued(request_id) != (num_blocks == 0):
            return False
        state = node.engine.moves.suspend(request_id)
        if state is None:
            return False
        needed = blocks_for(state.num_tokens, A10.block_size)
        if num_blocks and not to.engine.moves.extend(request_id, needed):
            node.engine.moves.resume(request_id)
            return False
        to.engine.moves.commit(request_id, state)
        node.engine.moves.release(request_id)
        return True


def arrivals(
    cluster: ModelCluster, timed: Iterable[tuple[float, ModelRequest, str | None]]
) -> None:
    """Adds each at its time."""
    for time_s, request, instance_id in timed:
        cluster.at_time(time_s, partial(cluster.add, request, instance_id))
