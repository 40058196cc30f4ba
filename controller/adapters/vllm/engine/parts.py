"""The parts of an `EngineCore` that moves work on.

Touch points of vLLM: v1/engine/core.py `scheduler`, `structured_output_manager`,
`model_executor`; v1/executor/uniproc_executor.py `driver_worker`; v1/core/kv_cache_manager.py
`block_pool`, `coordinator`, `get_block_ids`; v1/core/kv_cache_coordinator.py
`single_type_managers`; v1/core/sched/scheduler.py `running`, `kv_holding_waiting`;
v1/core/sched/request_queue.py `_heap`; v1/request.py `is_prefill_chunk`.
"""

from dataclasses import dataclass
from typing import Any

from controller.core.load.snapshot import blocks_for
from controller.core.migration.refusals import MoveRefusal


@dataclass(frozen=True, slots=True)
class EngineParts:
    core: Any
    scheduler: Any
    kv: Any
    """The scheduler's KVCacheManager."""
    pool: Any
    runner: Any
    """The model runner; None if no request can move."""
    block_size: int
    refusal: MoveRefusal | None
    """Why no request can move from or to this engine."""

    def block_ids(self, request_id: str) -> tuple[int, ...]:
        return tuple(self.kv.get_block_ids(request_id)[0])

    def fill_blocks(self) -> int:
        """The blocks that running prefills still take: vLLM admitted them for their whole prompts,
        and gives them blocks chunk by chunk."""
        running = (*self.scheduler.running, *in_any_order(self.scheduler.kv_holding_waiting))
        return sum(
            max(0, blocks_for(r.num_tokens, self.block_size) - len(self.block_ids(r.request_id)))
            for r in running
            if r.is_prefill_chunk
        )


def parts_of(core: Any) -> EngineParts:
    scheduler = core.scheduler
    refusal = _refusal(core)
    return EngineParts(
        core=core,
        scheduler=scheduler,
        kv=scheduler.kv_cache_manager,
        pool=scheduler.kv_cache_manager.block_pool,
        runner=core.model_executor.driver_worker.worker.model_runner if refusal is None else None,
        block_size=core.vllm_config.cache_config.block_size,
        refusal=refusal,
    )


def _refusal(core: Any) -> MoveRefusal | None:
    from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    config = core.vllm_config
    managers = core.scheduler.kv_cache_manager.coordinator.single_type_managers
    if config.use_v2_model_runner:
        return MoveRefusal.MODEL_RUNNER
    if config.speculative_config is not None:
        return MoveRefusal.SPECULATIVE
    if config.parallel_config.world_size > 1:
        return MoveRefusal.PARALLEL
    if not isinstance(core.model_executor, UniProcExecutor):
        return MoveRefusal.PARALLEL
    if [type(manager) for manager in managers] != [FullAttentionManager]:
        return MoveRefusal.KV_GROUPS
    return None


def in_any_order(request_queue: Any) -> Any:
    """The queue's requests, unsorted: iterating a PriorityRequestQueue pops a copy of its heap,
    which takes n log n."""
    return getattr(request_queue, "_heap", request_queue)
