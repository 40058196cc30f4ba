"""Whatever an engine model is asked for, its counts are right and every request ends."""

from dataclasses import dataclass, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from controller.core.load.snapshot import blocks_for
from controller.model.engine_model import EngineModel, StepResult
from controller.model.engine_state import ModelRequest
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


@dataclass
class Seen:
    """A request, as one learns of it from what the steps say."""

    request: ModelRequest
    num_left: int
    num_tokens: int
    num_computed: int = 0
    running: bool = False
    in_prefill: bool = False
    evicted: bool = False

    @property
    def demand_blocks(self) -> int:
        return blocks_for(self.num_tokens, BLOCK_SIZE)


class AnyUse(RuleBasedStateMachine):
    @initialize(
        mode=st.sampled_from(["chunked", "prefill-first"]),
        prefix_caching=st.booleans(),
        watermark_blocks=st.integers(0, 3),
        threshold=st.sampled_from([0, 6]),
    )
    def start(self, mode, prefix_caching, watermark_blocks, threshold) -> None:
        self.model = EngineModel(
            replace(
                TIGHT,
                mode=mode,
                prefix_caching=prefix_caching,
                watermark_blocks=watermark_blocks,
                long_prefill_token_threshold=threshold,
            ),
            PROFILE,
        )
        self.seen: dict[str, Seen] = {}
        self.num_added = self.num_evictions = 0

    @rule(
        num_prompt_tokens=st.integers(1, 39),
        max_output_tokens=st.integers(1, 30),
        rank=st.integers(0, 2),
        late_s=st.integers(0, 3),
        group=st.sampled_from([None, "a", "b"]),
    )
    def add(self, num_prompt_tokens, max_output_tokens, rank, late_s, group) -> None:
        self.num_added += 1
        request = ModelRequest(
            f"r{self.num_added}",
            num_prompt_tokens,
            max_output_tokens,
            rank,
            self.num_added - late_s,
            None if group is None else lambda index: (group, index),
        )
        self.model.add(request)
        num_left = min(max_output_tokens, TIGHT.max_model_len - num_prompt_tokens)
        self.seen[request.request_id] = Seen(request, num_left, num_prompt_tokens)

    @rule(data=st.data())
    def abort(self, data) -> None:
        request_id = data.draw(st.sampled_from([*self.seen, "unknown"]))
        self.model.abort([request_id])
        self.seen.pop(request_id, None)

    @rule(num_steps=st.integers(1, 12))
    def step(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.take(self.model.step())
            self.engine_state()

    def take(self, step: StepResult) -> None:
        assert not (step.admitted and step.evicted)
        assert set(step.num_cached_tokens) == set(step.admitted)
        assert set(step.finished) <= set(step.emitted)
        assert (step.duration_s > 0) == bool(step.emitted or step.num_prefill_tokens)
        for request_id in step.evicted:
            seen = self.seen[request_id]
            assert seen.running
            seen.running = seen.in_prefill = False
            seen.evicted = True
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
        if self.model.config.mode == "prefill-first":
            assert not step.num_prefill_tokens or set(step.emitted) == set(step.num_prefill_tokens)

    @invariant()
    def engine_state(self) -> None:
        """The model agrees with itself, and its snapshot with what its steps said."""
        self.model.check()
        found = self.model.snapshot("i-3", 2)
        running = [seen for seen in self.seen.values() if seen.running]
        queued = [seen for seen in self.seen.values() if not seen.running]
        assert (found.instance_id, found.incarnation) == ("i-3", 2)
        assert found.max_num_running == TIGHT.max_num_running
        assert (found.num_running, found.num_queued) == (len(running), len(queued))
        ranks = [seen.request.rank for seen in running]
        assert found.num_running_by_rank == {rank: ranks.count(rank) for rank in ranks}
        assert found.num_evictions == self.num_evictions
        assert found.num_evicted_queued == sum(seen.evicted for seen in queued)
        assert found.queued_demand_blocks == sum(seen.demand_blocks for seen in queued)
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
        head = found.queue_head
        assert (head is not None) == bool(queued)
        if head is not None:
            seen = self.seen[head.request_id]
            assert (head.rank, head.arrival_time_s) == (
                seen.request.rank,
                seen.request.arrival_time_s,
            )
            assert (head.demand_blocks, head.evicted) == (seen.demand_blocks, seen.evicted)
            assert head.rank == max(other.request.rank for other in queued)
            if self.model.config.mode == "chunked":
                assert head.request_id == min(queued, key=_order).request.request_id

    def teardown(self) -> None:
        """Everything that was not aborted gets all its tokens, and then nothing is held."""
        num_steps_at_most = 200 * (1 + len(self.seen))
        while self.model.has_work():
            self.step(1)
            num_steps_at_most -= 1
            assert num_steps_at_most, "it goes round in circles"
        assert not self.seen
        assert self.model.snapshot("i-0", 1).num_free_blocks == TIGHT.num_total_blocks
        assert self.model.step().duration_s == 0


def _order(seen: Seen) -> tuple[int, float, str]:
    return -seen.request.rank, seen.request.arrival_time_s, seen.request.request_id


AnyUse.TestCase.settings = settings(stateful_step_count=30)
TestAnyUse = AnyUse.TestCase
