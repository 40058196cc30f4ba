"""Whatever an engine model is asked for, its counts are right and every request ends."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from controller.core.load.snapshot import blocks_for
from tests.unit.model.watched_engine import BLOCK_SIZE, TIGHT, Seen, WatchedEngine


class AnyUse(RuleBasedStateMachine):
    @initialize(
        mode=st.sampled_from(["chunked", "prefill-first"]),
        prefix_caching=st.booleans(),
        watermark_blocks=st.integers(0, 3),
        long_prefill_token_threshold=st.sampled_from([0, 6]),
    )
    def start(self, **config) -> None:
        self.engine = WatchedEngine(**config)
        self.num_added = 0

    @rule(
        num_prompt_tokens=st.integers(1, 39),
        max_output_tokens=st.integers(1, 30),
        rank=st.integers(0, 2),
        late_s=st.integers(0, 3),
        group=st.sampled_from([None, "a", "b"]),
    )
    def add(self, **asked) -> None:
        self.num_added += 1
        self.engine.add(self.num_added, **asked)

    @rule(data=st.data())
    def abort(self, data) -> None:
        self.engine.abort(data.draw(st.sampled_from([*self.engine.seen, "unknown"])))

    @rule(num_steps=st.integers(1, 12))
    def step(self, num_steps: int) -> None:
        for _ in range(num_steps):
            step = self.engine.step()
            if self.engine.model.config.mode == "prefill-first" and step.num_prefill_tokens:
                assert set(step.emitted) == set(step.num_prefill_tokens)
            self.engine_state()

    @invariant()
    def engine_state(self) -> None:
        found, config = self.engine.snapshot(), self.engine.model.config
        running = [seen for seen in self.engine.seen.values() if seen.running]
        queued = [seen for seen in self.engine.seen.values() if not seen.running]
        assert (found.instance_id, found.incarnation) == ("i-3", 2)
        assert found.max_num_running == TIGHT.max_num_running
        ranks = [seen.request.rank for seen in running]
        assert found.num_running_by_rank == {rank: ranks.count(rank) for rank in ranks}
        assert found.queued_demand_blocks == sum(seen.demand_blocks for seen in queued)
        held = [blocks_for(seen.num_computed, BLOCK_SIZE) for seen in running]
        if config.prefix_caching:
            assert max(held, default=0) <= found.num_used_blocks <= sum(held)
        else:
            assert found.num_used_blocks == sum(held)
        assert found.fill_blocks == sum(
            seen.demand_blocks - blocks
            for seen, blocks in zip(running, held, strict=True)
            if seen.in_prefill
        )
        head = found.queue_head
        if head is not None:
            seen = self.engine.seen[head.request_id]
            request = seen.request
            assert (head.rank, head.arrival_time_s) == (request.rank, request.arrival_time_s)
            assert (head.demand_blocks, head.evicted) == (seen.demand_blocks, seen.evicted)
            assert head.rank == max(other.request.rank for other in queued)
            if config.mode == "chunked":
                assert head.request_id == min(queued, key=_order).request.request_id

    def teardown(self) -> None:
        """Everything that was not aborted gets all its tokens, and then nothing is held."""
        num_steps_at_most = 200 * (1 + len(self.engine.seen))
        while self.engine.model.has_work():
            self.step(1)
            num_steps_at_most -= 1
            assert num_steps_at_most, "it goes round in circles"
        assert not self.engine.seen
        assert self.engine.snapshot().num_free_blocks == TIGHT.num_total_blocks
        assert self.engine.model.step().duration_s == 0


def _order(seen: Seen) -> tuple[int, float, str]:
    return -seen.request.rank, seen.request.arrival_time_s, seen.request.request_id


AnyUse.TestCase.settings = settings(stateful_step_count=30)
TestAnyUse = AnyUse.TestCase
