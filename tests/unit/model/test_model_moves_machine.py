"""Whatever two engine models do, also with each other's requests, their counts are right and every
request gets its tokens once."""

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from controller.core.load.snapshot import InstanceSnapshot, QueueHead, blocks_for
from controller.core.migration.refusals import MoveRefusal
from controller.model.engine_model import EngineModel, StepResult
from controller.model.engine_state import ModelRequest, Segment, SegmentAt
from controller.model.model_moves import MovingState
from controller.model.profile import ModelConfig, load_profile

PROFILE = load_profile("a10-llama-7b")
BLOCK_SIZE = 4
TIGHT = ModelConfig(
    block_size=BLOCK_SIZE,
    num_total_blocks=12,
    watermark_blocks=1,
    max_num_running=5,
    max_num_batched_tokens=20,
    max_model_len=40,
    prefix_caching=False,
    mode="chunked",
)


def segments(group: str, num_blocks: int) -> SegmentAt:
    """Tokens of the group only, in segments of so many blocks."""

    def segment_at(index: int) -> Segment:
        first = index // num_blocks * num_blocks
        return (group, first), first, first + num_blocks

    return segment_at


@dataclass
class Seen:
    request: ModelRequest
    num_left: int
    num_tokens: int
    num_computed: int = 0
    running: bool = False
    in_prefill: bool = False
    evicted: bool = False
    has_spare: bool = False
    """It came by a move that reserved more blocks than it needed, and keeps them."""

    @property
    def demand_blocks(self) -> int:
        return blocks_for(self.num_tokens, BLOCK_SIZE)


class WatchedEngine:
    def __init__(self, segment_blocks: int, **config: Any) -> None:
        self.model = EngineModel(replace(TIGHT, **config), PROFILE)
        self.segment_blocks = segment_blocks
        self.seen: dict[str, Seen] = {}
        self.num_evictions = 0
        self.whole: set[Hashable] = set()
        """The segments in the prefix cache, by the changes that the model has told."""

    def add(
        self,
        number: int,
        num_prompt_tokens: int,
        max_output_tokens: int,
        rank: int,
        late_s: int,
        group: str | None,
    ) -> None:
        request = ModelRequest(
            f"r{number}",
            num_prompt_tokens,
            max_output_tokens,
            rank,
            number - late_s,
            None if group is None else segments(group, self.segment_blocks),
        )
        self.model.add(request)
        num_left = min(max_output_tokens, TIGHT.max_model_len - num_prompt_tokens)
        self.seen[request.request_id] = Seen(request, num_left, num_prompt_tokens)

    def abort(self, request_id: str) -> None:
        self.model.abort([request_id])
        self.seen.pop(request_id, None)

    def step(self) -> StepResult:
        step = self.model.step()
        assert not (step.admitted and step.evicted)
        assert set(step.num_cached_tokens) == set(step.admitted)
        assert set(step.finished) <= set(step.emitted)
        assert (step.duration_s > 0) == bool(step.emitted or step.num_prefill_tokens)
        for request_id in step.evicted:
            seen = self.seen[request_id]
            assert seen.running
            seen.running = seen.in_prefill = False
            seen.evicted = True
            seen.has_spare = False
            seen.num_computed = 0
            self.num_evictions += 1
        for request_id in step.admitted:
            seen = self.seen[request_id]
            assert not seen.running
            seen.running = seen.in_prefill = True
            seen.evicted = False
            seen.num_computed = step.num_cached_tokens[request_id]
            assert seen.num_computed % BLOCK_SIZE == 0
            assert seen.num_computed < seen.num_tokens, "something is left to compute"
        for request_id, num_tokens in step.num_prefill_tokens.items():
            seen = self.seen[request_id]
            assert seen.running
            assert seen.in_prefill
            seen.num_computed += num_tokens
            seen.in_prefill = seen.num_computed < seen.num_tokens
            assert seen.in_prefill == (request_id not in step.emitted)
        for request_id in step.emitted:
            seen = self.seen[request_id]
            assert seen.running
            seen.num_computed = seen.num_tokens
            seen.num_tokens += 1
            seen.num_left -= 1
            assert seen.num_left >= 0
            assert (seen.num_left == 0) == (request_id in step.finished)
        for request_id in step.finished:
            del self.seen[request_id]
        return step

    def snapshot(self) -> InstanceSnapshot:
        """Agrees with itself, and with what the steps said of requests."""
        self.model.check()
        found = self.model.snapshot("i-3", 2)
        queued = [seen for seen in self.seen.values() if not seen.running]
        assert found.num_queued == len(queued)
        assert found.num_evictions == self.num_evictions, "a move is no eviction"
        assert found.num_evicted_queued == sum(seen.evicted for seen in queued)
        assert found.num_running == sum(found.num_running_by_rank.values())
        assert found.num_running <= self.model.config.max_num_running
        assert found.queued_demand_blocks == sum(seen.demand_blocks for seen in queued)
        assert (found.queue_head is None) == (not queued)
        if found.queue_head is not None:
            self._check_head(found.queue_head, queued)
        candidates = self.model.moves.candidates(lambda request_id: None)
        assert {c.request_id: (c.queued, c.evicted) for c in candidates} == {
            request_id: (not seen.running, seen.evicted) for request_id, seen in self.seen.items()
        }
        return found

    def _check_head(self, head: QueueHead, queued: list[Seen]) -> None:
        seen = self.seen[head.request_id]
        request = seen.request
        assert (head.rank, head.arrival_time_s) == (request.rank, request.arrival_time_s)
        assert (head.demand_blocks, head.evicted) == (seen.demand_blocks, seen.evicted)
        assert head.rank == max(other.request.rank for other in queued)
        if self.model.config.mode == "chunked":
            assert head.request_id == min(queued, key=_order).request.request_id

    def check_cache(self) -> None:
        """A segment is whole if one run has all of it, found block by block."""
        for name, is_whole in self.model.take_cache_changes().items():
            (self.whole.add if is_whole else self.whole.discard)(name)
        runs = self.model._state.pool._runs
        size = self.segment_blocks
        assert self.whole == {
            name
            for name, twins in runs.items()
            if any(
                run.first_block % size == 0 and run.end_block - run.first_block == size
                for run in twins
            )
        }

    def check_blocks(self) -> None:
        """While nothing moves."""
        found = self.snapshot()
        running = [seen for seen in self.seen.values() if seen.running]
        if any(seen.has_spare for seen in running):
            return
        held = [blocks_for(seen.num_computed, BLOCK_SIZE) for seen in running]
        if self.model.config.prefix_caching:
            assert max(held, default=0) <= found.num_used_blocks <= sum(held)
        else:
            assert found.num_used_blocks == sum(held)
        assert found.fill_blocks == sum(
            seen.demand_blocks - blocks
            for seen, blocks in zip(running, held, strict=True)
            if seen.in_prefill
        )


def _order(seen: Seen) -> tuple[int, float, str]:
    return -seen.request.rank, seen.request.arrival_time_s, seen.request.request_id


@dataclass
class Move:
    """From the owner to the other one. `reserved`: how many blocks there, None before."""

    source: int
    num_pinned: int = 0
    reserved: int | None = None
    suspended: MovingState | None = None

    @property
    def destination(self) -> int:
        return 1 - self.source


@dataclass
class PrefixCopy:
    """`num_found`: how many blocks the source has lent."""

    source: int
    segment_at: SegmentAt
    num_cached: int
    num_found: int


class TwoEngines(RuleBasedStateMachine):
    @initialize(
        mode=st.sampled_from(["chunked", "prefill-first"]),
        prefix_caching=st.booleans(),
        watermark_blocks=st.integers(0, 2),
        long_prefill_token_threshold=st.sampled_from([0, 3]),
        prompts=st.lists(st.integers(1, 12), min_size=2, max_size=6),
        segment_blocks=st.integers(1, 4),
    )
    def start(self, prompts, **config) -> None:
        self.engines = [
            WatchedEngine(max_num_running=4, max_num_batched_tokens=8, **config) for _ in range(2)
        ]
        self.models = [each.model for each in self.engines]
        self.moves: dict[str, Move] = {}
        self.fetches: dict[str, PrefixCopy] = {}
        self.just_committed: list[set[str]] = [set(), set()]
        self.num_added = 0
        for number, num_prompt_tokens in enumerate(prompts):
            self.add(number % 2, num_prompt_tokens, 30, number % 3, 0, "ab"[number // 2 % 2])
        for at in (0, 1):
            self.step(at, 2)

    @property
    def seen(self) -> dict[str, Seen]:
        return self.engines[0].seen | self.engines[1].seen

    def owner(self, request_id: str) -> int:
        return int(request_id in self.engines[1].seen)

    # -- what clients and engines do --------------------------------------------------------

    @rule(
        at=st.integers(0, 1),
        num_prompt_tokens=st.integers(1, 20),
        max_output_tokens=st.integers(5, 30),
        rank=st.integers(0, 2),
        late_s=st.integers(0, 3),
        group=st.sampled_from([None, "a", "b"]),
    )
    def add(self, at, num_prompt_tokens, max_output_tokens, rank, late_s, group) -> None:
        self.num_added += 1
        asked = (num_prompt_tokens, max_output_tokens, rank, late_s, group)
        self.engines[at].add(self.num_added, *asked)

    @rule(at=st.integers(0, 1), num_steps=st.integers(1, 5))
    def step(self, at: int, num_steps: int) -> None:
        for _ in range(num_steps):
            self.one_step(at)
            self.engine_state()

    def one_step(self, at: int) -> None:
        had_work = self.models[at].has_work()
        step = self.engines[at].step()
        assert had_work == bool(step.emitted or step.num_prefill_tokens or step.evicted)
        self.just_committed[at] -= {*step.emitted, *step.evicted}
        # As in vLLM's scheduler nothing behind a request that evicts itself runs in that step.
        assert not self.just_committed[at] or step.evicted, "not served at once"
        for request_id in (*step.emitted, *step.evicted, *step.admitted):
            move = self.moves.get(request_id)
            assert move is None or move.suspended is None, "a suspended request was touched"

    @precondition(lambda self: self.seen)
    @rule(data=st.data())
    def abort(self, data) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.seen)))
        owner = self.owner(request_id)
        self.engines[owner].abort(request_id)
        self.just_committed[owner].discard(request_id)

    # -- what fetches of prefixes do ----------------------------------------------------------

    @rule(source=st.integers(0, 1), group=st.sampled_from("ab"), num_blocks=st.integers(1, 6))
    def begin_fetch(self, source, group, num_blocks) -> None:
        there, key = self.models[1 - source], f"fetch-{len(self.fetches)}"
        if not there.config.prefix_caching or key in self.fetches:
            return
        segment_at = segments(group, self.engines[0].segment_blocks)
        before = there.snapshot("", 0).num_free_blocks
        num_cached = there.fetches.reserve(key, segment_at, num_blocks)
        free = there.snapshot("", 0).num_free_blocks
        if num_cached is None:
            assert free == before
            return
        assert num_cached < num_blocks
        assert there.config.watermark_blocks <= free <= before - (num_blocks - num_cached)
        found = self.models[source].fetches.lend(key, segment_at, num_blocks)
        self.fetches[key] = PrefixCopy(source, segment_at, num_cached, found)

    @precondition(lambda self: self.fetches)
    @rule(data=st.data(), arrives=st.booleans())
    def end_fetch(self, data, arrives) -> None:
        self.end_copy(data.draw(st.sampled_from(sorted(self.fetches))), arrives)

    def end_copy(self, key: str, arrives: bool) -> None:
        copy = self.fetches.pop(key)
        here, there = self.models[copy.source], self.models[1 - copy.source]
        num_there = max(copy.num_cached, copy.num_found) if arrives else copy.num_cached
        there.fetches.commit(key, copy.segment_at, num_there)
        found = there.fetches.num_cached(copy.segment_at, num_there)
        # A request that computed more of a longer segment meanwhile hides the rest of it: the pool
        # does not find blocks that begin in the middle of a segment (`BlockPool.find`).
        least = num_there if self.engines[0].segment_blocks == 1 else copy.num_cached
        assert least <= found <= num_there
        here.fetches.give_back(key)

    # -- what moves do ----------------------------------------------------------------------

    @precondition(lambda self: self.seen.keys() - self.moves.keys())
    @rule(data=st.data())
    def begin(self, data) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.seen.keys() - self.moves.keys())))
        self.moves[request_id] = Move(self.owner(request_id))

    @precondition(lambda self: self.moves)
    @rule(data=st.data(), num_times=st.integers(1, 4))
    def carry_on(self, data, num_times) -> None:
        """What a move would do next."""
        request_id = data.draw(st.sampled_from(sorted(self.moves)))
        for _ in range(num_times):
            move = self.moves.get(request_id)
            if move is None or request_id not in self.seen:
                return
            if move.reserved is None:
                self.pin(request_id, move)
                self.reserve(request_id, move, 0)
            elif move.suspended is None:
                self.suspend(request_id, move)
            else:
                self.reserve(request_id, move, 0)
                self.commit(request_id, move)

    @precondition(lambda self: self.moves.keys() & self.seen.keys())
    @rule(
        data=st.data(),
        operation=st.sampled_from(["pin", "reserve", "suspend", "commit", "cancel"]),
        num_extra=st.integers(0, 2),
    )
    def out_of_order(self, data, operation, num_extra) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.moves.keys() & self.seen.keys())))
        move = self.moves[request_id]
        if operation == "reserve":
            self.reserve(request_id, move, num_extra)
        elif operation == "cancel":
            self.models[move.destination].moves.cancel(request_id)
            move.reserved = None
        else:
            getattr(self, operation)(request_id, move)

    @precondition(lambda self: self.moves)
    @rule(data=st.data())
    def give_up(self, data) -> None:
        self.end(data.draw(st.sampled_from(sorted(self.moves))))

    def pin(self, request_id: str, move: Move) -> None:
        num_full = self.models[move.source].moves.pin(request_id, move.num_pinned)
        if num_full is not None:
            assert self.seen[request_id].running
            assert num_full == (self.seen[request_id].num_tokens - 1) // BLOCK_SIZE
            move.num_pinned = num_full

    def reserve(self, request_id: str, move: Move, num_extra: int) -> None:
        """For what is known now, later for more; or for nothing, to wait there."""
        seen, there = self.seen[request_id], self.models[move.destination]
        num_blocks = blocks_for(seen.num_tokens - 1, BLOCK_SIZE) + num_extra if seen.running else 0
        free = there.snapshot("", 0).num_free_blocks
        if move.reserved is None:
            num_outputs = seen.num_tokens - seen.request.num_prompt_tokens
            got = there.moves.reserve(seen.request, num_outputs, num_blocks)
            assert got is not MoveRefusal.NOT_TAKEN
            if isinstance(got, MoveRefusal):
                assert there.snapshot("", 0).num_free_blocks == free
            else:
                move.reserved = num_blocks
        elif there.moves.extend(request_id, num_blocks):
            move.reserved = max(move.reserved, num_blocks)
        else:
            assert there.snapshot("", 0).num_free_blocks == free

    def suspend(self, request_id: str, move: Move) -> None:
        if move.suspended is not None:
            return
        seen = self.seen[request_id]
        move.suspended = self.models[move.source].moves.suspend(request_id)
        self.just_committed[move.source].discard(request_id)
        if move.suspended is not None:
            rank = seen.request.rank
            assert move.suspended == MovingState(
                seen.num_tokens, rank, not seen.running, seen.evicted
            )

    def commit(self, request_id: str, move: Move) -> None:
        moved = move.suspended
        if moved is None or move.reserved is None:
            return
        there = self.models[move.destination]
        wanted = 0 if moved.queued else blocks_for(moved.num_tokens - 1, BLOCK_SIZE)
        fits = moved.queued == (move.reserved == 0) and wanted <= move.reserved
        try:
            there.moves.commit(request_id, moved)
        except ValueError:
            assert not fits
            return
        assert fits
        self.models[move.source].moves.release(request_id)
        self.models[move.source].moves.unpin(request_id)
        del self.moves[request_id]
        here = self.engines[move.source].seen
        self.engines[move.destination].seen[request_id] = seen = here.pop(request_id)
        seen.has_spare = move.reserved > wanted
        if not moved.queued:
            self.just_committed[move.destination].add(request_id)

    def end(self, request_id: str) -> None:
        move = self.moves.pop(request_id)
        source = self.models[move.source].moves
        self.models[move.destination].moves.cancel(request_id)
        if request_id in self.seen and move.suspended is not None:
            source.resume(request_id)
            if self.seen[request_id].running:
                self.just_committed[move.source].add(request_id)
        source.unpin(request_id)

    # -- what must hold ---------------------------------------------------------------------

    @invariant()
    def engine_state(self) -> None:
        for at, engine in enumerate(self.engines):
            arriving = [m for m in self.moves.values() if m.destination == at and m.reserved]
            num_running = sum(seen.running for seen in engine.seen.values())
            assert engine.snapshot().num_running == num_running + len(arriving)
            engine.check_cache()
            if not self.moves and not self.fetches:
                engine.check_blocks()

    def teardown(self) -> None:
        """When moves are over all get their tokens, and every block and place is back."""
        for request_id in list(self.moves):
            self.end(request_id)
        for key in list(self.fetches):
            self.end_copy(key, arrives=True)
        num_steps_at_most = 300 * (1 + len(self.seen))
        while any(model.has_work() for model in self.models):
            for at in (0, 1):
                self.step(at, 1)
            num_steps_at_most -= 1
            assert num_steps_at_most, "it goes round in circles"
        assert not self.seen
        for model in self.models:
            found = model.snapshot("", 0)
            assert found.num_free_blocks == TIGHT.num_total_blocks
            assert (found.num_running, found.num_running_by_rank) == (0, {})


TwoEngines.TestCase.settings = settings(stateful_step_count=50)
TestTwoEngines = TwoEngines.TestCase
