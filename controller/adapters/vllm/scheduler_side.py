"""What moves read and change in vLLM's scheduler: the parts of an `EngineCore`, and places in the
batch that are reserved for requests that will enter it.

vLLM admits a request while fewer than `max_num_active_reqs` run. That limit is lowered by one for
each reserved place, so that the place is free when its request enters. A place is reserved for an
arriving request, or for a suspended request that may resume.

A request enters as if it had been in the batch but was not scheduled in the last step. vLLM has
such requests anyway, because a step whose token budget is used up leaves some requests out. The
request goes first in the next step, even if that step also computes a long prefill. It computes one
token there, and does not count as evicted. A request with an adapter enters differently: vLLM
checks only on admission how many adapters a step may have. So this request goes through vLLM's
queue of waiting requests that hold blocks, ahead of the other requests in that queue.

Touch points of vLLM: v1/engine/core.py `scheduler`, `structured_output_manager`, `model_executor`;
config/parallel.py `data_parallel_size`, `decode_context_parallel_size`,
`prefill_context_parallel_size`, `world_size`; v1/core/kv_cache_manager.py `block_pool`,
`coordinator`, `get_block_ids`; v1/core/kv_cache_coordinator.py `single_type_managers`;
v1/core/sched/scheduler.py `running`, `kv_holding_waiting`, `max_num_active_reqs`,
`num_waiting_for_streaming_input`, `schedule`; v1/core/sched/request_queue.py `_heap`; v1/request.py
`is_prefill_chunk`."""

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
    block_size: int
    refusal: MoveRefusal | None
    """Why no request can move from or to this engine; None if requests can."""

    def block_ids(self, request_id: str) -> tuple[int, ...]:
        return tuple(self.kv.get_block_ids(request_id)[0])

    def fill_blocks(self) -> int:
        """The number of blocks that running prefills still need. vLLM admitted these requests for
        their whole prompts, and gives them blocks chunk by chunk."""
        running = (*self.scheduler.running, *in_any_order(self.scheduler.kv_holding_waiting))
        return sum(
            max(0, blocks_for(r.num_tokens, self.block_size) - len(self.block_ids(r.request_id)))
            for r in running
            if r.is_prefill_chunk
        )


def parts_of(core: Any) -> EngineParts:
    scheduler = core.scheduler
    return EngineParts(
        core=core,
        scheduler=scheduler,
        kv=scheduler.kv_cache_manager,
        pool=scheduler.kv_cache_manager.block_pool,
        block_size=core.vllm_config.cache_config.block_size,
        refusal=_refusal(core),
    )


def _refusal(core: Any) -> MoveRefusal | None:
    from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager

    config = core.vllm_config
    managers = core.scheduler.kv_cache_manager.coordinator.single_type_managers
    if config.speculative_config is not None:
        return MoveRefusal.SPECULATIVE
    if not _divides_by_heads_and_layers(config.parallel_config, core.model_executor):
        return MoveRefusal.PARALLEL
    if [type(manager) for manager in managers] != [FullAttentionManager]:
        return MoveRefusal.KV_GROUPS
    return None


def _divides_by_heads_and_layers(parallel: Any, executor: Any) -> bool:
    """Whether each rank has its KV heads of its layers, in a process that `collective_rpc` reaches.
    Context parallelism divides blocks by tokens."""
    from vllm.v1.executor.multiproc_executor import MultiprocExecutor
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    sizes = (
        parallel.data_parallel_size,
        parallel.decode_context_parallel_size,
        parallel.prefill_context_parallel_size,
    )
    kind = MultiprocExecutor if parallel.world_size > 1 else UniProcExecutor
    return max(sizes) == 1 and isinstance(executor, kind)


def in_any_order(request_queue: Any) -> Any:
    """The queue's requests, unsorted. Iterating a PriorityRequestQueue itself pops from a copy of
    its heap, which takes n log n."""
    return getattr(request_queue, "_heap", request_queue)


class BatchSlots:
    def __init__(self, scheduler: Any) -> None:
        from vllm.v1.request import RequestStatus

        self._scheduler = scheduler
        self._running, self._evicted = RequestStatus.RUNNING, RequestStatus.PREEMPTED

    def any_free(self) -> bool:
        scheduler = self._scheduler
        num_taken = len(scheduler.running) + len(scheduler.kv_holding_waiting)
        num_taken += scheduler.num_waiting_for_streaming_input
        return bool(num_taken < scheduler.max_num_active_reqs)

    def keep(self) -> None:
        self._scheduler.max_num_active_reqs -= 1

    def give_back(self) -> None:
        self._scheduler.max_num_active_reqs += 1

    def enter(self, request: Any) -> None:
        """Lets the request into the place in the batch that was kept for it. If the request has an
        adapter, its row must have been removed from the worker's batch before."""
        self.give_back()
        if request.lora_request is None:
            request.status = self._running
            self._scheduler.running.insert(0, request)
        else:
            request.status = self._evicted
            self._scheduler.kv_holding_waiting.add_request(request)
