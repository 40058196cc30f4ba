"""What moves read and change in vLLM's scheduler: the parts of an `EngineCore`, the groups of its
KV cache, and places in the batch that are reserved for requests that will enter it.

Layers whose caches have the same form are a group, and each group has a table of blocks of its own
for each request. All groups take their blocks from one pool, and a block id means the same bytes
for all of them. What a request needs of a group depends on its kind:

    full attention   a block for each `block_size` tokens, from the first token on. A full block
                     does not change any more.
    sliding window   the blocks of the last `window` tokens; in place of the earlier blocks the
                     table has the null block
    state            one block (Mamba, Gated DeltaNet). Each step writes it anew.

So of the last two kinds a request has a few blocks only, whose number does not grow with its
length: its `tail`. The tail is copied once, when the request has stopped.

vLLM admits a request while fewer than `max_num_active_reqs` run. That limit is lowered by one for
each reserved place, so that the place is free when its request enters. A place is reserved for an
arriving request, or for a suspended request that may resume.

A request enters as if it had been in the batch but was not scheduled in the last step. vLLM has
such requests anyway, because a step whose token budget is used up leaves some requests out. The
request goes first in the next step, even if that step also computes a long prefill. It computes one
token there, and does not count as evicted. A request with an adapter enters differently: vLLM
checks only on admission how many adapters a step may have. So this request goes through vLLM's
queue of waiting requests that hold blocks, ahead of the other requests in that queue.

Touch points of vLLM: v1/engine/core.py `scheduler`, `structured_output_manager`,
`model_executor`; config/parallel.py `data_parallel_size`, `decode_context_parallel_size`,
`prefill_context_parallel_size`, `pipeline_parallel_size`, `world_size`; config/cache.py
`get_resolved_kv_cache_layout`, `use_replayssm`; v1/kv_cache_layout.py `is_block_compact`,
`is_block_outermost`; v1/core/kv_cache_manager.py `block_pool`, `coordinator`;
v1/core/kv_cache_coordinator.py `single_type_managers`; v1/core/single_type_kv_cache_manager.py
`FullAttentionManager`, `SlidingWindowManager`, `MambaManager`, `block_size`, `req_to_blocks`,
`get_num_skipped_tokens`, `sliding_window`, `extra_retained_tokens`,
`max_admission_blocks_per_request`; v1/core/sched/scheduler.py
`running`, `kv_holding_waiting`, `max_num_active_reqs`, `num_waiting_for_streaming_input`,
`schedule`; v1/core/sched/request_queue.py `_heap`; v1/request.py `is_prefill_chunk`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from controller.core.load.snapshot import blocks_for
from controller.core.migration.refusals import MoveRefusal


@dataclass(frozen=True, slots=True)
class TailGroup:
    """A group of which a request keeps the last blocks only."""

    manager: Any
    num_copied: int
    """How many blocks of a request are copied: as many as it has at most."""
    num_held: int
    """How many blocks are reserved for an arriving request: a sliding window may need one more for
    the next token."""

    def live(self, num_computed_tokens: int) -> range:
        """Which blocks of its table a request still needs after so many tokens."""
        size = self.manager.block_size
        first = self.manager.get_num_skipped_tokens(num_computed_tokens) // size
        return range(max(0, first), blocks_for(num_computed_tokens, size))

    def demand(self, num_tokens: int) -> int:
        """How many blocks vLLM wants to have free before it admits a request. While the prompt is
        computed, a window has the blocks of the chunks under way beside its own."""
        most: int | None = self.manager.max_admission_blocks_per_request
        if most is None:
            return len(self.live(num_tokens))
        return min(most, blocks_for(num_tokens, self.manager.block_size))

    def table(self, request_id: str) -> Any:
        return self.manager.req_to_blocks.get(request_id, ())


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
    managers: tuple[Any, ...]
    """Of all groups."""
    full: Any
    """The manager of the group with full attention; None if there is no such group."""
    tails: tuple[TailGroup, ...]
    has_states: bool
    """Whether there are groups of states."""

    def blocks(self, request_id: str) -> list[Any]:
        """The request's blocks of full attention."""
        return [] if self.full is None else self.full.req_to_blocks.get(request_id, [])

    def tail_ids(self, request_id: str, num_computed_tokens: int) -> tuple[int, ...]:
        """The request's tail: of each group as many ids as are copied. If the request has fewer
        blocks, its last one is named again."""
        ids: list[int] = []
        for group in self.tails:
            table = group.table(request_id)
            of_group = [table[i].block_id for i in group.live(num_computed_tokens)]
            ids += of_group + of_group[-1:] * (group.num_copied - len(of_group))
        return tuple(ids)

    def demand(self, num_tokens: int) -> int:
        """How many blocks of all groups vLLM wants to have free before it admits a request with so
        many tokens."""
        num_full = 0 if self.full is None else blocks_for(num_tokens, self.block_size)
        return num_full + sum(group.demand(num_tokens) for group in self.tails)

    def fill_blocks(self) -> int:
        """The number of blocks that running prefills still need. vLLM admitted these requests for
        their whole prompts, and gives them blocks chunk by chunk."""
        running = (*self.scheduler.running, *in_any_order(self.scheduler.kv_holding_waiting))
        return sum(self._still_needs(r) for r in running if r.is_prefill_chunk)

    def _still_needs(self, request: Any) -> int:
        """By group: one may have more blocks than it needs for its whole prompt, and another one
        fewer."""
        request_id, num_tokens = request.request_id, request.num_tokens
        needed = 0
        if self.full is not None:
            num_held = len(self.blocks(request_id))
            needed += max(0, blocks_for(num_tokens, self.block_size) - num_held)
        for group in self.tails:
            num_held = sum(not block.is_null for block in group.table(request_id))
            needed += max(0, group.demand(num_tokens) - num_held)
        return needed


def parts_of(core: Any) -> EngineParts:
    from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager, MambaManager

    scheduler = core.scheduler
    managers = tuple(scheduler.kv_cache_manager.coordinator.single_type_managers)
    refusal = _refusal(core, managers)
    full = [each for each in managers if type(each) is FullAttentionManager]
    moving = managers
    if refusal is not None:  # the groups may be of any kind: for the sums the first one stands
        moving, full = (), list(managers[:1])
    return EngineParts(
        core=core,
        scheduler=scheduler,
        kv=scheduler.kv_cache_manager,
        pool=scheduler.kv_cache_manager.block_pool,
        block_size=next(iter(full or managers), core.vllm_config.cache_config).block_size,
        refusal=refusal,
        managers=managers,
        full=full[0] if full else None,
        tails=tuple(_tail_group(each) for each in moving if each not in full),
        has_states=any(isinstance(each, MambaManager) for each in managers),
    )


def _tail_group(manager: Any) -> TailGroup:
    from vllm.v1.core.single_type_kv_cache_manager import MambaManager

    if isinstance(manager, MambaManager):
        return TailGroup(manager, 1, 1)
    window = manager.sliding_window + manager.extra_retained_tokens
    num_blocks = (window - 2) // manager.block_size + 2
    return TailGroup(manager, num_blocks, num_blocks + 1)


def _refusal(core: Any, managers: Sequence[Any]) -> MoveRefusal | None:
    from vllm.v1.core import single_type_kv_cache_manager as kinds

    config = core.vllm_config
    known = (kinds.FullAttentionManager, kinds.SlidingWindowManager, kinds.MambaManager)
    num_full = sum(type(each) is kinds.FullAttentionManager for each in managers)
    has_states = any(isinstance(each, kinds.MambaManager) for each in managers)
    drafts = config.speculative_config
    # Drafts that a worker keeps, or a draft model with a cache of its own, would have to travel.
    if drafts is not None and (
        drafts.method != "ngram" or config.scheduler_config.async_scheduling or has_states
    ):  # with drafts a state has several blocks, and only the worker knows which one counts
        return MoveRefusal.SPECULATIVE
    # The lanes of pages have no number in the whole model, as layers have.
    is_pipeline = config.parallel_config.pipeline_parallel_size > 1
    if len(managers) > 1 and is_pipeline:
        return MoveRefusal.PARALLEL
    if not _divides_by_heads_and_layers(config.parallel_config, core.model_executor):
        return MoveRefusal.PARALLEL
    if not managers or num_full > 1 or not {type(each) for each in managers} <= {*known}:
        return MoveRefusal.KV_GROUPS
    # A state that is a checkpoint and the inputs since then: how many, only the worker knows.
    if has_states and config.cache_config.use_replayssm:
        return MoveRefusal.KV_GROUPS
    if any(getattr(each, "sliding_window", 2) < 2 for each in managers):
        return MoveRefusal.KV_GROUPS  # after a whole block nothing of such a window is left
    if len(managers) > 1:
        # Pages are copied whole. In the one layout left out (LHBNC) a page is not in one piece.
        layout = config.cache_config.get_resolved_kv_cache_layout()
        if not (layout.is_block_compact or layout.is_block_outermost):
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
        self._has_entered = False

    def any_free(self) -> bool:
        scheduler = self._scheduler
        num_taken = len(scheduler.running) + len(scheduler.kv_holding_waiting)
        num_taken += scheduler.num_waiting_for_streaming_input
        return bool(num_taken < scheduler.max_num_active_reqs)

    def keep(self) -> None:
        self._scheduler.max_num_active_reqs -= 1

    def give_back(self) -> None:
        self._scheduler.max_num_active_reqs += 1

    def take_entered(self) -> bool:
        """Whether a request has entered since the last call."""
        has_entered, self._has_entered = self._has_entered, False
        return has_entered

    def enter(self, request: Any) -> None:
        """Lets the request into the place in the batch that was kept for it. If the request has an
        adapter, its row must have been removed from the worker's batch before."""
        self.give_back()
        self._has_entered = True
        if request.lora_request is None:
            request.status = self._running
            self._scheduler.running.insert(0, request)
        else:
            request.status = self._evicted
            self._scheduler.kv_holding_waiting.add_request(request)
