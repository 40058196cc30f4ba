"""Describes a vLLM engine's requests, so that some of them can be chosen to move.

They are read between two steps, and only on a source of relief. A request's block costs some 20 ns,
as its references are counted.

Touch points of vLLM: v1/core/sched/scheduler.py `running`, `waiting`, `kv_holding_waiting`,
`max_model_len`; v1/request.py `num_tokens`, `num_output_tokens`, `max_tokens`, `priority`,
`arrival_time`, `num_preemptions`; v1/core/kv_cache_utils.py `ref_cnt` of a block;
v1/core/kv_cache_manager.py `get_blocks`.
"""

from collections.abc import Sequence
from typing import Any

from controller.adapters.vllm.engine.parts import EngineParts, in_any_order
from controller.adapters.vllm.moves.vllm_source import SourceMoves
from controller.core.emptying.relief import Candidate
from controller.core.migration.refusals import MOVABLE


def candidates(parts: EngineParts, source: SourceMoves) -> Sequence[Candidate]:
    scheduler = parts.scheduler
    running = [*scheduler.running, *in_any_order(scheduler.kv_holding_waiting)]
    running += source.suspended(queued=False)
    queued = [*in_any_order(scheduler.waiting), *source.suspended(queued=True)]
    return [
        *(_candidate(parts, source, request, queued=False) for request in running),
        *(_candidate(parts, source, request, queued=True) for request in queued),
    ]


def _candidate(parts: EngineParts, source: SourceMoves, request: Any, *, queued: bool) -> Candidate:
    request_id = request.request_id
    num_blocks = num_freed_blocks = 0
    if not queued:
        refs = [block.ref_cnt for block in parts.kv.get_blocks(request_id).blocks[0]]
        num_blocks = len(refs)
        # Pinned blocks, which come first, have one more reference, for the pin.
        num_pinned = source.num_pinned(request_id)
        num_freed_blocks = refs[:num_pinned].count(2) + refs[num_pinned:].count(1)
    num_tokens = request.num_tokens
    return Candidate(
        request_id=request_id,
        rank=-request.priority,
        num_tokens=num_tokens,
        num_blocks=num_blocks,
        num_freed_blocks=num_freed_blocks,
        queued=queued,
        evicted=queued and request.num_preemptions > 0,
        arrival_time_s=request.arrival_time,
        num_tokens_left=min(
            request.max_tokens - request.num_output_tokens,
            parts.scheduler.max_model_len - num_tokens,
        ),
        facts=source.facts(request_id) or MOVABLE,
    )
