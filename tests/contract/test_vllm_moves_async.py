"""The cut under vLLM's asynchronous scheduling (its default on a GPU), on its scheduler alone:
the steps are scheduled ahead here, and the tokens come from us."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from controller.adapters.vllm.engine.batch_slots import BatchSlots
from controller.adapters.vllm.engine.parts import EngineParts
from controller.adapters.vllm.moves.request_state import decode
from controller.adapters.vllm.moves.source import SourceMoves

BLOCK_SIZE = 16


class AsyncEngine:
    """Two steps under way, as in `EngineCore.step_with_batch_queue`."""

    def __init__(self, model_path: Path) -> None:
        self.scheduler = async_scheduler(model_path)
        kv = self.scheduler.kv_cache_manager
        self.parts = EngineParts(
            core=None,
            scheduler=self.scheduler,
            kv=kv,
            pool=kv.block_pool,
            runner=SimpleNamespace(requests={}),
            block_size=BLOCK_SIZE,
            refusal=None,
        )
        self.slots = self.scheduler.max_num_active_reqs
        self.moves = SourceMoves(self.parts, BatchSlots(self.scheduler), lambda: None)
        self.under_way: list[Any] = []
        self.tokens: dict[str, list[int]] = {}

    def add(self, request_id: str, num_prompt_tokens: int, max_tokens: int) -> Any:
        from vllm import SamplingParams
        from vllm.v1.request import Request

        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        request = Request(request_id, list(range(1, num_prompt_tokens + 1)), params, None)
        self.scheduler.add_request(request)
        self.tokens[request_id] = []
        return request

    def launch(self) -> list[str]:
        scheduled = self.scheduler.schedule()
        self.under_way.append(scheduled)
        return list(scheduled.num_scheduled_tokens)

    def land(self) -> list[str]:
        """The oldest step under way ends; who got tokens."""
        from vllm.v1.outputs import ModelRunnerOutput

        scheduled = self.under_way.pop(0)
        ids = list(scheduled.num_scheduled_tokens)
        bodies = self.scheduler.update_from_output(
            scheduled,
            ModelRunnerOutput(
                req_ids=ids,
                req_id_to_index={request_id: i for i, request_id in enumerate(ids)},
                sampled_token_ids=[[1000 + len(self.tokens[i])] for i in ids],
            ),
        )
        self.moves.forget_finished()
        outs = [out for body in bodies.values() for out in body.outputs]
        for out in outs:
            self.tokens[out.request_id] += out.new_token_ids
        return [out.request_id for out in outs]


def async_scheduler(model_path: Path) -> Any:
    import torch
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    config = EngineArgs(
        model=str(model_path),
        dtype="float32",
        enforce_eager=True,
        scheduling_policy="priority",
        block_size=BLOCK_SIZE,
        max_model_len=10 * BLOCK_SIZE,
        enable_prefix_caching=False,
    ).create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
    config.cache_config.num_gpu_blocks = 21
    attention = FullAttentionSpec(
        block_size=BLOCK_SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    return AsyncScheduler(
        config,
        KVCacheConfig(21, [], [KVCacheGroupSpec(["layer"], attention)]),
        StructuredOutputManager(config),
        block_size=BLOCK_SIZE,
    )


@pytest.fixture
def engine(model_path: Path) -> AsyncEngine:
    return AsyncEngine(model_path)


def test_a_step_under_way_comes_in_before_the_cut(engine: AsyncEngine) -> None:
    request = engine.add("r", 30, 20)
    engine.launch()
    engine.launch()
    engine.land()
    engine.launch()
    assert request.num_in_flight_tokens == 2
    assert engine.moves.suspend("r") is None
    assert engine.launch() == [], "it is in no step that begins now"
    assert engine.moves.suspend("r") is None
    assert engine.land() == ["r"]
    assert engine.moves.suspend("r") is None
    assert engine.land() == ["r"]
    suspended = engine.moves.suspend("r")
    assert suspended is not None
    assert decode(suspended.state).output_token_ids == engine.tokens["r"] == [1000, 1001, 1002]
    assert request.num_computed_tokens == suspended.num_tokens - 1 == 32
    assert len(suspended.block_ids) == 2
    engine.land()
    engine.moves.resume("r")
    assert engine.launch() == ["r"]
    engine.land()
    assert engine.tokens["r"] == [1000, 1001, 1002, 1003]


def test_blocks_of_steps_under_way_are_not_pinned(engine: AsyncEngine) -> None:
    engine.add("r", 31, 20)
    engine.launch()
    engine.launch()
    engine.land()
    pinned = engine.moves.pin("r", 0)
    assert pinned is not None
    assert len(pinned.block_ids) == 1, "the second block is being filled"
    engine.land()
    engine.launch()
    pinned = engine.moves.pin("r", 1)
    assert pinned is not None
    assert len(pinned.block_ids) == 1
    engine.land()
    engine.moves.unpin("r")


@pytest.mark.parametrize("end", ["finished", "aborted", "taken back"])
def test_a_leaving_request_may_end_otherwise(engine: AsyncEngine, end: str) -> None:
    from vllm.v1.request import RequestStatus

    engine.add("r", 30, 2)
    engine.launch()
    engine.launch()
    engine.land()
    assert engine.moves.suspend("r") is None
    assert engine.scheduler.max_num_active_reqs == engine.slots - 1
    if end == "finished":
        engine.land()
        assert engine.tokens["r"] == [1000, 1001]
        assert engine.scheduler.max_num_active_reqs == engine.slots
        with pytest.raises(KeyError):
            engine.moves.suspend("r")
    elif end == "aborted":
        engine.moves.forget(["r"])
        engine.scheduler.finish_requests("r", RequestStatus.FINISHED_ABORTED)
        engine.land()
    else:
        engine.moves.resume("r")
        engine.land()
    assert "r" not in engine.scheduler.requests
    assert engine.scheduler.max_num_active_reqs == engine.slots
    assert engine.parts.pool.get_num_free_blocks() == engine.parts.pool.num_gpu_blocks - 1
