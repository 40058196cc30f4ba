"""The destination's half of a move: blocks and a place in the batch, then the request itself.

vLLM's scheduler does not know an arriving request until its commit; only the KV cache manager
does, by the blocks that it gave. The blocks enter the prefix cache at the commit, when their
content is there.

vLLM's watermark is kept when a request arrives, as on an admission, and not when it grows. What
running prefills still take is left free in both cases: vLLM gives them blocks chunk by chunk, and
would evict where an arriving request has taken them.

Touch points of vLLM: v1/core/kv_cache_manager.py `get_computed_blocks`,
`truncate_computed_blocks`, `allocate_slots`, `cache_blocks`, `free`, `take_new_block_ids`,
`record_blocks_for_zeroing`; v1/core/sched/scheduler.py `requests`, `running`, `add_request`,
`_enqueue_waiting_request`, `finish_requests`, `finished_req_ids`, `prev_step_scheduled_req_ids`,
`max_model_len`, `lora_config`; v1/engine/core.py `list_loras`; v1/request.py
`append_output_token_ids`, `prefill_stats`, `structured_output_request`.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from controller.adapters.vllm.engine.batch_slots import BatchSlots
from controller.adapters.vllm.engine.parts import EngineParts
from controller.adapters.vllm.moves import request_state, worker_state
from controller.adapters.vllm.moves.grammar_replay import GrammarReplay
from controller.adapters.vllm.moves.request_state import RequestState
from controller.adapters.vllm.moves.vllm_source import cannot_move
from controller.core.load.snapshot import blocks_for
from controller.core.migration.refusals import MoveRefusal, why
from controller.ports.engine import Frames, ReservedBlocks


@dataclass(frozen=True, slots=True)
class _Arrival:
    request: Any
    queued: bool
    num_cached: int
    grammar: GrammarReplay | None


class DestinationMoves:
    def __init__(
        self, parts: EngineParts, slots: BatchSlots, order_after_steps: Callable[[], None]
    ) -> None:
        from vllm.v1.request import RequestStatus

        self._parts = parts
        self._slots = slots
        self._order_after_steps = order_after_steps
        self._scheduler = parts.scheduler
        self._waiting, self._evicted = RequestStatus.WAITING, RequestStatus.PREEMPTED
        self._aborted = RequestStatus.FINISHED_ABORTED
        self._arrivals: dict[str, _Arrival] = {}

    def arriving(self) -> Sequence[Any]:
        """Arriving requests with a place in the batch."""
        return tuple(a.request for a in self._arrivals.values() if not a.queued)

    # -- before the cut --------------------------------------------------------------------

    def compiling(self, prepared: Any) -> Future[Any] | None:
        structured = prepared.structured_output_request
        grammar = None if structured is None else structured._grammar
        return grammar if isinstance(grammar, Future) else None

    def reserve(
        self, prepared: Any, output_token_ids: Sequence[int], num_blocks: int
    ) -> ReservedBlocks | MoveRefusal:
        request, queued = prepared, num_blocks == 0
        refusal = self._parts.refusal or cannot_move(request) or self._not_taken(request)
        if refusal is None and not queued and not self._slots.any_free():
            refusal = MoveRefusal.NO_SLOT
        if refusal is not None:
            return refusal
        # The request may have been refused before, with fewer outputs.
        request.append_output_token_ids(list(output_token_ids[request.num_output_tokens :]))
        num_cached = 0 if queued else self._allocate_first(request, num_blocks)
        if num_cached is None:
            return MoveRefusal.NO_BLOCKS
        if not queued:
            self._slots.keep()
        grammar = None
        if request.use_structured_output:
            grammar = GrammarReplay(self._parts.core.structured_output_manager, request)
        arrival = _Arrival(request, queued, num_cached, grammar)
        self._arrivals[request.request_id] = arrival
        try:
            self._feed_grammar(arrival)
        except ValueError:
            self.cancel(request.request_id)
            return MoveRefusal.NOT_TAKEN
        return self._reserved(arrival)

    def extend(self, request_id: str, num_blocks: int) -> ReservedBlocks | None:
        arrival = self._arrivals[request_id]
        with suppress(ValueError):  # the commit will raise it again
            self._feed_grammar(arrival)
        if num_blocks > len(self._parts.block_ids(request_id)) and (
            arrival.queued or not self._allocate(arrival.request, num_blocks, keep_watermark=False)
        ):
            return None
        return self._reserved(arrival)

    def cancel(self, request_id: str) -> None:
        arrival = self._arrivals.pop(request_id, None)
        if arrival is not None and not arrival.queued:
            self._parts.kv.free(arrival.request)
            self._slots.give_back()

    # -- the cut ---------------------------------------------------------------------------

    def commit(self, request_id: str, state: Frames) -> None:
        arrival = self._arrivals[request_id]
        request = arrival.request
        found = request_state.decode(state)
        generator = self._check(arrival, found)
        if arrival.grammar is not None and found.output_token_ids:
            arrival.grammar.finish(found.output_token_ids)

        # From here on nothing fails.
        del self._arrivals[request_id]
        request.append_output_token_ids(found.output_token_ids[request.num_output_tokens :])
        request.priority, request.arrival_time = found.priority, found.arrival_time
        request.num_preemptions = found.num_preemptions
        if not found.output_token_ids:
            self._start_anew(request)
            return
        if arrival.queued:
            self._enqueue(request, generator)
        else:
            self._fill_blocks(request)
            self._register(request, generator)
            self._slots.enter(request)

    def reenter(self, prepared: Any, output_token_ids: Sequence[int], generator: Any) -> None:
        request = prepared
        refusal = self._parts.refusal or cannot_move(request) or self._not_taken(request)
        if refusal is not None:
            raise ValueError(why(refusal))
        if request.num_prompt_tokens + len(output_token_ids) >= self._scheduler.max_model_len:
            raise ValueError("it is as long as the model's context already")
        if request.use_structured_output:
            manager = self._parts.core.structured_output_manager
            GrammarReplay(manager, request).finish(output_token_ids)
        request.append_output_token_ids(list(output_token_ids))
        request.num_preemptions = 1
        self._enqueue(request, generator)

    def drawn_generator(self, prepared: Any, num_output_tokens: int) -> torch.Generator | None:
        if self._parts.runner is None:
            return None  # `reenter` refuses the request
        return worker_state.drawn_generator(self._parts.runner, prepared, num_output_tokens)

    def drop(self, request_id: str) -> None:
        self._scheduler.finish_requests(request_id, self._aborted)

    # -- details ---------------------------------------------------------------------------

    def _enqueue(self, request: Any, generator: torch.Generator | None) -> None:
        request.status = self._evicted
        self._register(request, generator)
        self._scheduler._enqueue_waiting_request(request)

    def _register(self, request: Any, generator: torch.Generator | None) -> None:
        request.prefill_stats = None  # an instance before has told them
        request_id = request.request_id
        worker_state.register(
            self._parts.runner, request, self._parts.block_ids(request_id), generator
        )
        # If the request was here before, the worker must not be told to forget it, nor take it for
        # one of its last batch.
        self._scheduler.finished_req_ids.discard(request_id)
        self._scheduler.prev_step_scheduled_req_ids.discard(request_id)
        self._scheduler.requests[request_id] = request

    def _not_taken(self, request: Any) -> MoveRefusal | None:
        request_id = request.request_id
        if request_id in self._scheduler.requests or request_id in self._arrivals:
            return MoveRefusal.NOT_TAKEN
        if request.num_tokens >= self._scheduler.max_model_len:
            return MoveRefusal.NOT_TAKEN
        adapter = request.lora_request
        if adapter is not None and (
            self._scheduler.lora_config is None
            or adapter.lora_int_id not in self._parts.core.list_loras()
        ):
            return MoveRefusal.NO_ADAPTER
        return None

    def _allocate_first(self, request: Any, num_blocks: int) -> int | None:
        """How many of the request's blocks the prefix cache had; None: not enough are free.
        `allocate_slots` gives no request more blocks than the model's longest needs."""
        kv, block_size = self._parts.kv, self._parts.block_size
        cached, num_cached_tokens, _ = kv.get_computed_blocks(request)
        num_cached = min(num_cached_tokens // block_size, num_blocks)
        cached = kv.truncate_computed_blocks(cached, num_cached * block_size)
        keep_watermark = bool(self._scheduler.running or self._arrivals)
        # vLLM keeps no watermark for a request that waits for its grammar, as it admits none.
        status, request.status = request.status, self._waiting
        allocated = self._allocate(request, num_blocks, num_cached, cached, keep_watermark)
        request.status = status
        return num_cached if allocated else None

    def _allocate(
        self,
        request: Any,
        num_blocks: int,
        num_cached: int = 0,
        cached: Any = None,
        keep_watermark: bool = True,
    ) -> bool:
        kv, block_size = self._parts.kv, self._parts.block_size
        allocated = kv.allocate_slots(
            request,
            num_new_tokens=(num_blocks - num_cached) * block_size,
            num_new_computed_tokens=num_cached * block_size,
            new_computed_blocks=cached,
            delay_cache_blocks=True,
            has_scheduled_reqs=keep_watermark,
            reserved_blocks=self._parts.fill_blocks(),
        )
        kv.take_new_block_ids()  # or the next step might zero blocks that hold copies by then
        return allocated is not None

    def _feed_grammar(self, arrival: _Arrival) -> None:
        if arrival.grammar is not None:
            arrival.grammar.feed(arrival.request.output_token_ids)

    def _reserved(self, arrival: _Arrival) -> ReservedBlocks:
        """Orders copies after the steps under way: with asynchronous scheduling such a step may
        still write one of these blocks, for a request that has ended since."""
        self._order_after_steps()
        return ReservedBlocks(self._parts.block_ids(arrival.request.request_id), arrival.num_cached)

    def _check(self, arrival: _Arrival, found: RequestState) -> Any:
        """The request's generator. Raises ValueError if the state does not fit."""
        request, outputs = arrival.request, found.output_token_ids
        if found.queued != arrival.queued or not (outputs or found.queued):
            raise ValueError("reserved as queued and comes running, or the other way round")
        known = list(request.output_token_ids)
        if outputs[: len(known)] != known:
            raise ValueError("its outputs are not those it was reserved with")
        num_tokens = request.num_prompt_tokens + len(outputs)
        num_blocks = len(self._parts.block_ids(request.request_id))
        if not found.queued and num_blocks * self._parts.block_size < num_tokens:
            raise ValueError(f"{num_tokens} tokens in {num_blocks} reserved blocks")
        if not outputs:
            return None
        return worker_state.generator_from(self._parts.runner, request, found.generator)

    def _start_anew(self, request: Any) -> None:
        """Adds a request without output as if it were new. If it was evicted in mid-prefill, vLLM
        would leave out its prefill's figures unless they are set."""
        if request.num_preemptions > 0:
            request.prefill_stats.set(request.num_prompt_tokens, 0, 0)
        self._scheduler.add_request(request)

    def _fill_blocks(self, request: Any) -> None:
        """The copied blocks hold all tokens but the last, which the next step computes."""
        kv, block_size = self._parts.kv, self._parts.block_size
        request.num_computed_tokens = request.num_tokens - 1
        kv.cache_blocks(request, request.num_computed_tokens)
        num_copied = blocks_for(request.num_computed_tokens, block_size)
        kv.record_blocks_for_zeroing(request.request_id, num_copied * block_size)
