"""The source's half of a move: it pins a request's blocks, suspends it, and releases or resumes it.

A pinned block counts one more reference, as if another request shared it: it keeps its content
when its request goes on (full blocks are only read from then on), is evicted or aborted.

A suspended request is in vLLM's books (`requests`) but in neither its batch nor its queue. So
vLLM does not schedule it, cannot evict it, is not kept awake by it, and still frees it on an
abort. Its place in the batch is kept.

With asynchronous scheduling (vLLM's default on a GPU) a step that includes the request may be
under way. The request leaves the batch at once, and the tokens computed for it come in with the
next steps: until then it is leaving, not suspended, and it may finish. UNTESTED beyond a scheduler
without a GPU: on CPU vLLM schedules synchronously.

Touch points of vLLM: v1/core/sched/scheduler.py `requests`, `running`, `waiting`,
`kv_holding_waiting`, `deferred_waiting`, `_enqueue_waiting_request`, `_holds_kv_blocks`,
`finish_requests`; v1/request.py `status`, `num_computed_tokens`, `num_in_flight_tokens`,
`is_prefill_chunk`, `output_token_ids`, `priority`, `arrival_time`, `num_preemptions`;
v1/core/block_pool.py `touch`, `free_blocks`; v1/core/kv_cache_manager.py `get_blocks`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from controller.adapters.vllm.engine.batch_slots import BatchSlots
from controller.adapters.vllm.engine.parts import EngineParts
from controller.adapters.vllm.moves import request_state, worker_state
from controller.core.load.snapshot import blocks_for
from controller.core.migration.refusals import MoveFacts, MoveRefusal
from controller.ports.engine import PinnedBlocks, SuspendedRequest


@dataclass(frozen=True, slots=True)
class _Suspended:
    request: Any
    queued: bool
    """Whether the request waited, and so had no place in the batch."""


class SourceMoves:
    def __init__(
        self, parts: EngineParts, slots: BatchSlots, order_after_steps: Callable[[], None]
    ) -> None:
        from vllm.v1.request import RequestStatus

        self._parts = parts
        self._slots = slots
        self._order_after_steps = order_after_steps
        self._scheduler = parts.scheduler
        self._running = RequestStatus.RUNNING
        self._aborted = RequestStatus.FINISHED_ABORTED
        self._queued = (
            RequestStatus.WAITING,
            RequestStatus.PREEMPTED,
            RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR,
        )
        self._pins: dict[str, list[Any]] = {}
        self._suspended: dict[str, _Suspended] = {}
        """Suspended and leaving requests."""

    # -- looking ---------------------------------------------------------------------------

    def facts(self, request_id: str) -> MoveFacts | None:
        request = self._scheduler.requests.get(request_id)
        if request is None:
            return None
        return MoveFacts(
            in_prefill=not (self._waits(request) or self._decodes(request)),
            leaving=request_id in self._suspended or request_id in self._pins,
            never=self._parts.refusal or cannot_move(request),
        )

    def is_queued(self, request_id: str) -> bool:
        return self._waits(self._scheduler.requests[request_id])

    def outputs(self, request_id: str) -> Sequence[int]:
        return tuple(self._scheduler.requests[request_id].output_token_ids)

    def suspended(self, *, queued: bool) -> list[Any]:
        """Suspended and leaving requests; those that were queued still count as queued here."""
        return [s.request for s in self._suspended.values() if s.queued == queued]

    def num_pinned(self, request_id: str) -> int:
        return len(self._pins.get(request_id, ()))

    def set_rank(self, request_id: str, rank: int) -> None:
        request = self._scheduler.requests.get(request_id)
        if request is None:
            return
        queue = None
        if request.status != self._running and request_id not in self._suspended:
            holding, waiting = self._scheduler.kv_holding_waiting, self._scheduler.waiting
            queue = holding if self._scheduler._holds_kv_blocks(request) else waiting
            queue.remove_request(request)
        request.priority = -rank
        if queue is not None:
            queue.add_request(request)

    # -- pinning ---------------------------------------------------------------------------

    def pin(self, request_id: str, first_block: int) -> PinnedBlocks | None:
        request = self._scheduler.requests.get(request_id)
        if request is None or request_id in self._suspended or not self._decodes(request):
            return None
        num_final = request.num_computed_tokens - request.num_in_flight_tokens
        blocks = self._parts.kv.get_blocks(request_id).blocks[0]
        blocks = blocks[first_block : num_final // self._parts.block_size]
        self._parts.pool.touch(blocks)
        self._pins.setdefault(request_id, []).extend(blocks)
        self._order_after_steps()
        return PinnedBlocks(tuple(block.block_id for block in blocks), request.num_tokens)

    def unpin(self, request_id: str) -> None:
        pinned = self._pins.pop(request_id, ())
        self._parts.pool.free_blocks(reversed(pinned))

    # -- the cut ---------------------------------------------------------------------------

    def suspend(self, request_id: str) -> SuspendedRequest | None:
        request = self._scheduler.requests.get(request_id)
        if request is None:
            self.forget([request_id])
            raise KeyError(request_id)
        if request_id not in self._suspended and not self._take_out(request):
            return None
        if request.num_in_flight_tokens > 0:
            return None
        self._order_after_steps()
        num_blocks = blocks_for(request.num_computed_tokens, self._parts.block_size)
        return SuspendedRequest(
            block_ids=self._parts.block_ids(request_id)[:num_blocks],
            state=request_state.encode(self._state(request)),
            num_tokens=request.num_tokens,
        )

    def resume(self, request_id: str) -> None:
        suspended = self._suspended.pop(request_id, None)
        if suspended is None:
            return  # aborted meanwhile
        request = suspended.request
        if suspended.queued:
            self._scheduler._enqueue_waiting_request(request)
            return
        if request.lora_request is not None:
            worker_state.leave_batch(self._parts.runner, request_id)
        self._slots.enter(request)

    def release(self, request_id: str) -> None:
        """Does nothing if the request is not suspended: it was aborted, or came back meanwhile."""
        if request_id in self._suspended:
            self.forget([request_id])
            self._scheduler.finish_requests(request_id, self._aborted)

    def forget(self, request_ids: Iterable[str]) -> None:
        """The requests are gone from vLLM's books, or about to be. Their pinned blocks stay
        pinned."""
        for request_id in request_ids:
            suspended = self._suspended.pop(request_id, None)
            if suspended is not None and not suspended.queued:
                self._slots.give_back()

    def forget_finished(self) -> None:
        """Called after a step, which may have finished a leaving request."""
        known = self._scheduler.requests
        self.forget([request_id for request_id in self._suspended if request_id not in known])

    # -- details ---------------------------------------------------------------------------

    def _take_out(self, request: Any) -> bool:
        queued = self._waits(request)
        if queued:
            self._scheduler.waiting.remove_request(request)
            self._scheduler.deferred_waiting.discard(request)
        elif self._decodes(request):
            self._scheduler.running.remove(request)
            self._slots.keep()
        else:
            return False
        self._suspended[request.request_id] = _Suspended(request, queued)
        return True

    def _state(self, request: Any) -> request_state.RequestState:
        generator = worker_state.generator_state(self._parts.runner, request.request_id)
        return request_state.RequestState(
            output_token_ids=list(request.output_token_ids),
            queued=request.status != self._running,
            priority=request.priority,
            arrival_time=request.arrival_time,
            num_preemptions=request.num_preemptions,
            generator=generator,
        )

    def _decodes(self, request: Any) -> bool:
        return (
            request.status == self._running
            and not request.is_prefill_chunk
            and request.num_output_tokens > 0
        )

    def _waits(self, request: Any) -> bool:
        return request.status in self._queued and request.num_computed_tokens == 0


def cannot_move(request: Any) -> MoveRefusal | None:
    """Why the request can never move, on either side; None if it can."""
    if request.pooling_params is not None:
        return MoveRefusal.POOLING
    if request.mm_features:
        return MoveRefusal.MULTIMODAL
    if request.prompt_embeds is not None or request.prompt_token_ids is None:
        return MoveRefusal.PROMPT_EMBEDS
    if request.resumable:
        return MoveRefusal.STREAMED_PROMPT
    return None
