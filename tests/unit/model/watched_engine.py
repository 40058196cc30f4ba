"""An engine model, and what one learns of its requests from what its steps say."""

from dataclasses import dataclass, replace
from typing import Any

from controller.core.load.snapshot import InstanceSnapshot, blocks_for
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


class WatchedEngine:
    def __init__(self, **config: Any) -> None:
        self.model = EngineModel(replace(TIGHT, **config), PROFILE)
        self.seen: dict[str, Seen] = {}
        self.num_evictions = 0

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
            None if group is None else lambda index: (group, index),
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
        assert (found.queue_head is None) == (not queued)
        candidates = self.model.moves.candidates(lambda request_id: None)
        assert {c.request_id: (c.queued, c.evicted) for c in candidates} == {
            request_id: (not seen.running, seen.evicted) for request_id, seen in self.seen.items()
        }
        return found
