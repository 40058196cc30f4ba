"""Live moves of a vLLM engine's requests (EngineMoves): stock vLLM, without a patch.

`SourceMoves` is the source's half: it pins a request's blocks, suspends the request, and releases
or resumes it. `DestinationMoves` is the destination's half: it reserves blocks and a place in the
batch, and then takes the request itself. `VllmMoves` has both halves, and describes the requests
from which some are chosen to move.

Touch points of vLLM: v1/core/sched/scheduler.py `requests`, `running`, `waiting`,
`kv_holding_waiting`, `deferred_waiting`, `_enqueue_waiting_request`, `_holds_kv_blocks`,
`finish_requests`, `add_request`, `finished_req_ids`, `prev_step_scheduled_req_ids`,
`max_model_len`; v1/request.py `status`, `num_computed_tokens`,
`num_in_flight_tokens`, `is_prefill_chunk`, `output_token_ids`, `priority`, `arrival_time`,
`num_preemptions`, `append_output_token_ids`, `prefill_stats`, `structured_output_request`,
`num_tokens`, `num_output_tokens`, `max_tokens`, `spec_token_ids`; v1/core/block_pool.py `touch`,
`get_new_blocks`, `get_num_free_blocks`, `free_blocks`; v1/core/kv_cache_manager.py
`prefix_cache_lookup_enabled`, `cache_blocks`, `watermark_blocks`; v1/core/kv_cache_coordinator.py
`find_longest_cache_hit`, `find_longest_cache_hit_per_group`;
v1/core/single_type_kv_cache_manager.py `req_to_blocks`, `num_cached_block`,
`records_new_block_ids`, `new_block_ids`;
v1/structured_output/__init__.py `accept_tokens`; v1/structured_output/request.py `grammar`,
`_grammar`, `is_grammar_ready`; v1/core/kv_cache_utils.py `ref_cnt`."""

import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

import msgspec

from controller.adapters.vllm.lora import EngineAdapters, adapters_of
from controller.adapters.vllm.rank_copies import RanksApartError
from controller.adapters.vllm.scheduler_side import BatchSlots, EngineParts, in_any_order, parts_of
from controller.adapters.vllm.workers import Workers, fingerprint, workers_of
from controller.core.emptying.relief import Candidate
from controller.core.load.snapshot import blocks_for
from controller.core.migration.refusals import MOVABLE, MoveFacts, MoveRefusal, why
from controller.ports.engine import Frames, PinnedBlocks, ReservedBlocks, SuspendedRequest

log = logging.getLogger(__name__)

# -- the state that travels ------------------------------------------------------------------------
# The state of a request that is sent in addition to its original message: msgpack, never pickle.
#
# All other state is in the request as its frontend sent it (prompt, sampling parameters, adapter,
# cache salt, routing), follows from its outputs (penalties, guided decoding, minimum of tokens, bad
# words), or stays in the frontend (text, stop strings, logprobs).


class MovedState(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    output_token_ids: list[int]
    queued: bool
    """True if the request waits or was evicted, False if it decodes."""
    priority: int
    arrival_time: float
    num_preemptions: int
    generator: bytes | None
    """The state of the request's random generator; None if the request has no seed or has not
    run."""
    draft_token_ids: list[int] = []
    """The tokens that the next step verifies. Without them that step would give one token only."""


_state_decoder = msgspec.msgpack.Decoder(MovedState)


def encode_state(state: MovedState) -> Frames:
    return [msgspec.msgpack.encode(state)]


def decode_state(frames: Frames) -> MovedState:
    """Decodes a moved request's state. Raises ValueError if the frames are not such a state."""
    if len(frames) != 1:
        raise ValueError(f"a request's state in {len(frames)} frames")
    return _state_decoder.decode(frames[0])


class _Moves:
    """The parts of an engine that both halves of a move use."""

    def __init__(
        self, parts: EngineParts, slots: BatchSlots, workers: Workers, adapters: EngineAdapters
    ) -> None:
        from vllm.v1.request import RequestStatus

        self._parts = parts
        self._slots = slots
        self._workers = workers
        self._adapters = adapters
        self._scheduler = parts.scheduler
        self._status: Any = RequestStatus

    def _never(self, request: Any, num_output_tokens: int) -> MoveRefusal | None:
        """Why the request can never move with so many outputs, whether from here or to here; None
        if it can. The first model runner counts the tokens of a thought step by step, and what it
        has counted cannot be had from the outputs."""
        refusal = self._parts.refusal or cannot_move(request)
        if (
            refusal is None
            and num_output_tokens > 0
            and self._workers.keeps_rows
            and request.sampling_params.thinking_token_budget is not None
        ):
            return MoveRefusal.THINKING_BUDGET
        return refusal

    def _finish(self, request_id: str) -> None:
        self._scheduler.finish_requests(request_id, self._status.FINISHED_ABORTED)


# -- the source ------------------------------------------------------------------------------------
# The source's half of a move: it pins a request's blocks, suspends the request, and releases or
# resumes it.
#
# A pinned block has one more reference, as if another request shared it. So it keeps its content
# when its request continues (full blocks are only read from then on), is evicted or is aborted.
#
# A suspended request is in vLLM's books (`requests`), but neither in its batch nor in its queue. So
# vLLM does not schedule or evict it, and makes no steps because of it, but frees it if it is
# aborted. Its place in the batch is kept.
#
# With asynchronous scheduling (vLLM's default on a GPU) a step that includes the request may be
# under way. The request leaves the batch at once, and the tokens computed for it arrive with the
# next steps. Until then it counts as leaving, not as suspended, and it may finish. UNTESTED beyond
# a scheduler without a GPU: on CPU vLLM schedules synchronously.


@dataclass(frozen=True, slots=True)
class _Suspended:
    request: Any
    queued: bool
    """Whether the request was waiting, so that it had no place in the batch."""


class SourceMoves(_Moves):
    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
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
            never=self._never(request, request.num_output_tokens),
        )

    def is_queued(self, request_id: str) -> bool:
        return self._waits(self._scheduler.requests[request_id])

    def outputs(self, request_id: str) -> Sequence[int]:
        return tuple(self._scheduler.requests[request_id].output_token_ids)

    def suspended(self, *, queued: bool) -> list[Any]:
        """Suspended and leaving requests: either the requests that were in the queue, or the
        requests that were in the batch."""
        return [s.request for s in self._suspended.values() if s.queued == queued]

    def num_pinned(self, request_id: str) -> int:
        return len(self._pins.get(request_id, ()))

    def set_rank(self, request_id: str, rank: int) -> None:
        request = self._scheduler.requests.get(request_id)
        if request is None:
            return
        queue = None
        if request.status != self._status.RUNNING and request_id not in self._suspended:
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
        num_full = num_final // self._parts.block_size
        blocks = self._parts.blocks(request_id)[first_block:num_full]
        self._parts.pool.touch(blocks)
        self._pins.setdefault(request_id, []).extend(blocks)
        self._workers.blocks.order_after_steps()
        num_tail = sum(group.num_copied for group in self._parts.tails)
        return PinnedBlocks(_ids(blocks), request.num_tokens, num_tail)

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
        self._workers.blocks.order_after_steps()
        parts, num_computed = self._parts, request.num_computed_tokens
        blocks = parts.blocks(request_id)[: blocks_for(num_computed, parts.block_size)]
        queued = self._suspended[request_id].queued
        return SuspendedRequest(
            block_ids=_ids(blocks),
            state=encode_state(self._state(request)),
            num_tokens=request.num_tokens,
            tail_ids=() if queued else parts.tail_ids(request_id, num_computed),
        )

    def resume(self, request_id: str) -> None:
        suspended = self._suspended.pop(request_id, None)
        if suspended is None:
            return  # it was aborted meanwhile
        request = suspended.request
        if suspended.queued:
            self._scheduler._enqueue_waiting_request(request)
            return
        if request.lora_request is not None:
            self._workers.leave_batch(request_id)
        self._slots.enter(request)

    def release(self, request_id: str) -> None:
        """Forgets a suspended request. Does nothing if it is not suspended: it was aborted, or came
        back meanwhile."""
        if request_id in self._suspended:
            self.forget([request_id])
            self._finish(request_id)

    def forget(self, request_ids: Iterable[str]) -> None:
        """Forgets requests that are gone from vLLM's books, or will be gone in a moment. Their
        pinned blocks stay pinned."""
        for request_id in request_ids:
            suspended = self._suspended.pop(request_id, None)
            if suspended is not None and not suspended.queued:
                self._slots.give_back()

    def forget_finished(self) -> None:
        """Forgets leaving requests that have finished. Called after each step."""
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

    def _state(self, request: Any) -> MovedState:
        generator = self._workers.generator_state(request)
        return MovedState(
            output_token_ids=list(request.output_token_ids),
            queued=request.status != self._status.RUNNING,
            priority=request.priority,
            arrival_time=request.arrival_time,
            num_preemptions=request.num_preemptions,
            generator=generator,
            draft_token_ids=list(request.spec_token_ids),
        )

    def _decodes(self, request: Any) -> bool:
        return (
            request.status == self._status.RUNNING
            and not request.is_prefill_chunk
            and request.num_output_tokens > 0
        )

    def _waits(self, request: Any) -> bool:
        queued = (
            self._status.WAITING,
            self._status.PREEMPTED,
            self._status.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR,
        )
        return request.status in queued and request.num_computed_tokens == 0


def _ids(blocks: Iterable[Any]) -> tuple[int, ...]:
    return tuple(block.block_id for block in blocks)


def cannot_move(request: Any) -> MoveRefusal | None:
    """What kind of request it is, if requests of its kind can never move."""
    if request.pooling_params is not None:
        return MoveRefusal.POOLING
    if request.mm_features:
        return MoveRefusal.MULTIMODAL
    if request.prompt_embeds is not None or request.prompt_token_ids is None:
        return MoveRefusal.PROMPT_EMBEDS
    if request.resumable:
        return MoveRefusal.STREAMED_PROMPT
    return None


# -- guided decoding -------------------------------------------------------------------------------
# Guided decoding of a request that arrives with outputs: its grammar has to accept these outputs
# again.
#
# The grammar is compiled in vLLM's own threads from `Engine.prepare` on. The source does not
# suspend the request before the grammar is compiled, so the engine's thread never waits for a
# compile. The outputs that are known by then are fed to the grammar before the request is
# suspended, so that few tokens are left at COMMIT (a compiled grammar takes 3 to 9 us for each of
# the embedded model's tokens). They are fed one by one, as after a step, so that the end of
# reasoning is found where the source found it.


@dataclass(slots=True)
class _Decoded:
    """The request as it was after the tokens that its grammar has accepted."""

    request_id: str
    structured_output_request: Any
    prompt_token_ids: list[int]
    all_token_ids: list[int]
    use_structured_output: bool = True


class GrammarReplay:
    def __init__(self, manager: Any, request: Any) -> None:
        self._manager = manager
        self._decoded = _Decoded(
            request.request_id,
            request.structured_output_request,
            request.prompt_token_ids,
            list(request.prompt_token_ids),
        )
        self._num_fed = 0

    def feed(self, output_token_ids: Sequence[int]) -> None:
        """Takes all outputs so far, and feeds the new ones to the grammar if it is compiled.

        Raises ValueError if the grammar does not compile or does not accept the outputs."""
        structured = self._decoded.structured_output_request
        grammar = structured.grammar
        if grammar is None:
            return
        if isinstance(grammar, Exception):
            # The message goes to a log, and the error's own text may quote the grammar.
            raise ValueError(f"its grammar does not compile here: {type(grammar).__name__}")
        for token in output_token_ids[self._num_fed :]:
            self._decoded.all_token_ids.append(token)
            if not self._manager.accept_tokens(self._decoded, [token]):
                raise ValueError("its grammar does not accept its outputs")
            self._num_fed += 1

    def finish(self, output_token_ids: Sequence[int]) -> None:
        """Feeds all outputs. Unlike `feed`, it also raises ValueError if the grammar is not
        compiled yet."""
        if not self._decoded.structured_output_request.is_grammar_ready:
            raise ValueError("its grammar is not compiled here yet")
        self.feed(output_token_ids)


# -- the destination -------------------------------------------------------------------------------
# The destination's half of a move: blocks and a place in the batch, then the request itself.
#
# Until its commit, an arriving request is unknown to vLLM: its blocks are only taken out of the
# pool. They become the request's tables, and enter the prefix cache, at the commit, because they do
# not have their content before.
#
# When a request arrives, vLLM's watermark is left free, as on an admission. When the request grows
# later, the watermark may be used. The blocks that running prefills still need are left free in
# both cases: vLLM gives them blocks chunk by chunk, and would evict a request if an arriving one
# had taken those blocks.


@dataclass(slots=True)
class _Arrival:
    request: Any
    queued: bool
    num_cached: int
    """How many of the blocks came from the prefix cache."""
    blocks: list[Any]
    """Of full attention."""
    tails: list[list[Any]]
    """By group, the blocks of the tail."""
    grammar: GrammarReplay | None = None

    @property
    def all_blocks(self) -> list[Any]:
        return [*self.blocks, *chain.from_iterable(self.tails)]


@dataclass(frozen=True, slots=True)
class _Table:
    """What one group's manager stores of a request that arrives."""

    manager: Any
    blocks: list[Any]
    num_cached: int
    """How many of the first blocks need not enter the prefix cache: they are in it, or null."""
    unfilled: list[Any]
    """The blocks at the end into which nothing was copied."""


class DestinationMoves(_Moves):
    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._arrivals: dict[str, _Arrival] = {}

    def arriving(self) -> Sequence[Any]:
        """The arriving requests that have a place in the batch."""
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
        refusal = self._never(request, len(output_token_ids)) or self._not_taken(request)
        if refusal is None and not queued:
            refusal = self._no_place(request)
        if refusal is not None:
            return refusal
        # The same request may have been refused before, when it had fewer outputs.
        request.append_output_token_ids(list(output_token_ids[request.num_output_tokens :]))
        arrival = _Arrival(request, queued, 0, [], [])
        if not queued:
            if not self._take_first(arrival, num_blocks):
                return MoveRefusal.NO_BLOCKS
            self._slots.keep()
        if request.use_structured_output:
            manager = self._parts.core.structured_output_manager
            arrival.grammar = GrammarReplay(manager, request)
        self._arrivals[request.request_id] = arrival
        try:
            self._feed_grammar(arrival)
        except ValueError:
            self.cancel(request.request_id)
            return MoveRefusal.NOT_TAKEN
        return self._reserved(arrival)

    def extend(self, request_id: str, num_blocks: int) -> ReservedBlocks | None:
        arrival = self._arrivals[request_id]
        with suppress(ValueError):  # the commit will raise the error again
            self._feed_grammar(arrival)
        num_more = self._at_most(num_blocks) - len(arrival.blocks)
        if num_more > 0:
            more = None if arrival.queued else self.take(num_more, keep_watermark=False)
            if more is None:
                return None
            arrival.blocks += more
        return self._reserved(arrival)

    def cancel(self, request_id: str) -> None:
        arrival = self._arrivals.pop(request_id, None)
        if arrival is not None and not arrival.queued:
            self._parts.pool.free_blocks(reversed(arrival.all_blocks))
            self._slots.give_back()

    # -- the cut ---------------------------------------------------------------------------

    def commit(self, request_id: str, state: Frames) -> None:
        arrival = self._arrivals[request_id]
        request = arrival.request
        found = decode_state(state)
        self._check(arrival, found)
        if not arrival.queued and not self._adapter_fits(request):
            raise ValueError(why(MoveRefusal.NO_ADAPTER_SLOT))  # others came meanwhile
        num_computed = request.num_prompt_tokens + len(found.output_token_ids) - 1
        tables = [] if arrival.queued else self._tables(arrival, num_computed)
        if found.output_token_ids:
            if arrival.grammar is not None:
                arrival.grammar.finish(found.output_token_ids)
            self._workers.register(
                request,
                found.output_token_ids,
                [_ids(table.blocks) for table in tables],
                found.generator,
            )

        # Nothing fails from here on.
        del self._arrivals[request_id]
        request.append_output_token_ids(found.output_token_ids[request.num_output_tokens :])
        request.priority, request.arrival_time = found.priority, found.arrival_time
        request.num_preemptions = found.num_preemptions
        request.spec_token_ids = found.draft_token_ids
        if not found.output_token_ids:
            self._start_anew(request)
            return
        if arrival.queued:
            self._enqueue(request)
        else:
            self._enter_tables(arrival, tables, num_computed)
            self._book(request)
            self._slots.enter(request)

    def reenter(
        self, prepared: Any, output_token_ids: Sequence[int], generator: bytes | None
    ) -> None:
        request = prepared
        refusal = self._never(request, len(output_token_ids)) or self._not_taken(request)
        if refusal is not None:
            raise ValueError(why(refusal))
        if request.num_prompt_tokens + len(output_token_ids) >= self._scheduler.max_model_len:
            raise ValueError("it is as long as the model's context already")
        if request.use_structured_output:
            manager = self._parts.core.structured_output_manager
            GrammarReplay(manager, request).finish(output_token_ids)
        self._workers.register(request, output_token_ids, [], generator)
        request.append_output_token_ids(list(output_token_ids))
        request.num_preemptions = 1
        self._enqueue(request)

    def drawn_generator(self, prepared: Any, num_output_tokens: int) -> bytes | None:
        if self._parts.refusal is not None:
            return None  # `reenter` refuses the request
        return self._workers.drawn_generator(prepared, num_output_tokens)

    def drop(self, request_id: str) -> None:
        self._finish(request_id)

    # -- details ---------------------------------------------------------------------------

    def _enqueue(self, request: Any) -> None:
        request.status = self._status.PREEMPTED
        self._book(request)
        self._scheduler._enqueue_waiting_request(request)

    def _book(self, request: Any) -> None:
        """Enters the request, which the workers know by now, into vLLM's books."""
        request.prefill_stats = None  # an earlier instance has reported these figures
        request_id = request.request_id
        if self._workers.keeps_rows:
            # The request may have been here before. The worker must not be told to forget it, nor
            # take it for a request of its last batch. (The second runner's workers have to forget
            # it: they have no more rows than places in the batch. They forget before they learn.)
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
        if adapter is not None and not self._adapters.has(adapter):
            return MoveRefusal.NO_ADAPTER
        return None

    def _no_place(self, request: Any) -> MoveRefusal | None:
        """Why the batch has no place for an arriving request."""
        if not self._slots.any_free():
            return MoveRefusal.NO_SLOT
        return None if self._adapter_fits(request) else MoveRefusal.NO_ADAPTER_SLOT

    def _adapter_fits(self, request: Any) -> bool:
        """Whether a step can have the request's adapter beside those of the batch."""
        if request.lora_request is None:
            return True
        holding = in_any_order(self._scheduler.kv_holding_waiting)
        others = [*self._scheduler.running, *holding, *self.arriving()]
        return self._adapters.fits_beside(request.lora_request, others)

    def _take_first(self, arrival: _Arrival, num_blocks: int) -> bool:
        """Takes the first blocks and the tail: what the prefix cache has, and new blocks for the
        rest."""
        num_blocks = self._at_most(num_blocks)
        cached = self.cached(arrival.request)[:num_blocks]
        num_tail = [group.num_held for group in self._parts.tails]
        num_new = num_blocks - len(cached) + sum(num_tail)
        keep_watermark = bool(self._scheduler.running or self._arrivals)
        taken = self.take(num_new, cached, keep_watermark)
        if taken is None:
            return False
        free = iter(taken)
        arrival.tails = [list(islice(free, number)) for number in num_tail]
        arrival.blocks = [*cached, *free]
        arrival.num_cached = len(cached)
        return True

    def num_cached_tokens(self, request: Any) -> int:
        """How many tokens of a new request the prefix cache has."""
        return len(self.cached(request)) * self._parts.block_size

    def cached(self, request: Any) -> list[Any]:
        """The request's first full blocks as the prefix cache has them."""
        parts = self._parts
        if parts.full is None or not parts.kv.prefix_cache_lookup_enabled(request):
            return []
        coordinator, group = parts.kv.coordinator, parts.managers.index(parts.full)
        wanted = request.block_hashes, request.num_tokens - 1
        if len(parts.managers) == 1:
            found, num_tokens, _ = coordinator.find_longest_cache_hit(*wanted)
        else:
            found, lengths = coordinator.find_longest_cache_hit_per_group(*wanted)
            num_tokens = lengths[group]
        return list(found[group][: num_tokens // parts.block_size])

    def take(
        self, num_new: int, cached: Sequence[Any] = (), keep_watermark: bool = True
    ) -> list[Any] | None:
        """Takes new blocks out of the pool, and holds the cached ones; None if too few are free."""
        pool = self._parts.pool
        num_taken = num_new + sum(block.ref_cnt == 0 for block in cached)
        watermark = self._parts.kv.watermark_blocks if keep_watermark else 0
        if num_taken + watermark > pool.get_num_free_blocks() - self._parts.fill_blocks():
            return None
        pool.touch(cached)
        blocks: list[Any] = pool.get_new_blocks(num_new)
        return blocks

    def _at_most(self, num_blocks: int) -> int:
        """No more blocks than the model's longest request needs, and none if no group has full
        attention."""
        if self._parts.full is None:
            return 0
        most = blocks_for(self._scheduler.max_model_len, self._parts.block_size)
        return min(num_blocks, most)

    def _feed_grammar(self, arrival: _Arrival) -> None:
        if arrival.grammar is not None:
            arrival.grammar.feed(arrival.request.output_token_ids)

    def _reserved(self, arrival: _Arrival) -> ReservedBlocks:
        """The reserved blocks. Copies to them are ordered after the steps under way: with
        asynchronous scheduling such a step may still write one of these blocks, for a request that
        has ended since."""
        self._workers.blocks.order_after_steps()
        tail = (
            held[: group.num_copied]
            for group, held in zip(self._parts.tails, arrival.tails, strict=False)
        )
        return ReservedBlocks(
            _ids(arrival.blocks), arrival.num_cached, _ids(chain.from_iterable(tail))
        )

    def _check(self, arrival: _Arrival, found: MovedState) -> None:
        """Raises ValueError if the state does not fit the reservation."""
        request, outputs = arrival.request, found.output_token_ids
        if found.queued != arrival.queued or not (outputs or found.queued):
            raise ValueError("reserved as queued and comes running, or the other way round")
        known = list(request.output_token_ids)
        if outputs[: len(known)] != known:
            raise ValueError("its outputs are not those it was reserved with")
        num_tokens = request.num_prompt_tokens + len(outputs)
        num_blocks, grows = len(arrival.blocks), self._parts.full is not None
        if not found.queued and grows and num_blocks * self._parts.block_size < num_tokens:
            raise ValueError(f"{num_tokens} tokens in {num_blocks} reserved blocks")

    def _start_anew(self, request: Any) -> None:
        """Adds a request without outputs as if it were new. If the request was evicted during its
        prefill, vLLM would not report the figures of its prefill unless they are set here."""
        if request.num_preemptions > 0:
            request.prefill_stats.set(request.num_prompt_tokens, 0, 0)
        if self._parts.tails:
            self._workers.leave_batch(request.request_id)
        self._scheduler.add_request(request)

    def _tables(self, arrival: _Arrival, num_computed: int) -> list[_Table]:
        """The tables of the request in all groups, after so many computed tokens."""
        parts, null = self._parts, self._parts.pool.null_block
        tails = iter(zip(parts.tails, arrival.tails, strict=True))
        tables = []
        for manager in parts.managers:
            if manager is parts.full:
                num_filled = blocks_for(num_computed, parts.block_size)
                blocks, num_cached = list(arrival.blocks), arrival.num_cached
            else:
                group, held = next(tails)
                live = group.live(num_computed)
                end = blocks_for(num_computed + 1, manager.block_size)  # for the next token too
                blocks = [null] * live.start + held[: end - live.start]
                num_filled, num_cached = live.stop, live.start
            tables.append(_Table(manager, blocks, num_cached, blocks[num_filled:]))
        return tables

    def _enter_tables(self, arrival: _Arrival, tables: Sequence[_Table], num_computed: int) -> None:
        """Makes the blocks the request's own. They hold all tokens except the last, which the next
        step computes."""
        request, parts = arrival.request, self._parts
        kept = {block.block_id for table in tables for block in table.blocks}
        parts.pool.free_blocks(b for b in reversed(arrival.all_blocks) if b.block_id not in kept)
        for table in tables:
            table.manager.req_to_blocks[request.request_id] = table.blocks
            table.manager.num_cached_block[request.request_id] = table.num_cached
            if table.manager.records_new_block_ids:
                # They may hold the bytes of another group.
                table.manager.new_block_ids.extend(_ids(table.unfilled))
        request.num_computed_tokens = num_computed
        parts.kv.cache_blocks(request, num_computed)


# -- both halves -----------------------------------------------------------------------------------


class VllmMoves(SourceMoves, DestinationMoves):
    def __init__(self, core: Any, adapters: EngineAdapters) -> None:
        parts = parts_of(core)
        slots = BatchSlots(parts.scheduler)
        try:
            workers = workers_of(core, parts)
        except RanksApartError as error:
            log.warning("no request of this engine can move: %s", error)
            parts = replace(parts, refusal=MoveRefusal.PARALLEL)
            workers = workers_of(core, parts)
        self.block_size, self.demand = parts.block_size, parts.demand
        self.has_states = parts.has_states
        self.copies_prefixes = parts.refusal is None and parts.full is not None and not parts.tails
        """Whether all blocks are of full attention, and may be copied."""
        self.parts = parts
        self.full_group: int | None = (
            None if parts.full is None else parts.managers.index(parts.full)
        )
        """The number of the group of blocks with full attention."""
        longest = core.vllm_config.model_config.max_model_len
        self.num_tail_blocks = sum(group.demand(longest) for group in parts.tails)
        self.blocks = workers.blocks
        self.fingerprint = fingerprint(core, parts)
        super().__init__(parts, slots, workers, adapters)

    def live_adapters(self) -> tuple[int, ...]:
        """The numbers of the adapters of all requests that run, wait or arrive here."""
        arriving = (arrival.request for arrival in self._arrivals.values())
        return adapters_of(chain(self._scheduler.requests.values(), arriving))

    def check(self, sampling_params: Any) -> None:
        """Raises ValueError if the engine cannot take such a request. Any thread may call this."""
        self._workers.check(sampling_params)

    def close(self) -> None:
        self._workers.close()

    def running(self) -> list[Any]:
        """The requests in the batch, including suspended ones."""
        holding = in_any_order(self._scheduler.kv_holding_waiting)
        return [*self._scheduler.running, *holding, *self.suspended(queued=False)]

    def queued(self) -> list[Any]:
        """The requests in the queue, including suspended ones."""
        return [*in_any_order(self._scheduler.waiting), *self.suspended(queued=True)]

    def take_entered(self) -> bool:
        """Whether a moved request has entered the batch since the last call."""
        return self._slots.take_entered()

    def fill_blocks(self) -> int:
        """The number of blocks that running prefills still need."""
        return self._parts.fill_blocks()

    def drop(self, request_id: str) -> None:
        self.forget([request_id])
        super().drop(request_id)

    def candidates(self) -> Sequence[Candidate]:
        """Describes all requests, so that some of them can be chosen to move.

        Called between two steps, and only on a source of relief. It takes some 20 ns for each block
        of a request, because the references of the block are read."""
        return [
            *(self._candidate(request, queued=False) for request in self.running()),
            *(self._candidate(request, queued=True) for request in self.queued()),
        ]

    def _candidate(self, request: Any, *, queued: bool) -> Candidate:
        request_id = request.request_id
        num_blocks = num_freed_blocks = 0
        if not queued:
            refs = [block.ref_cnt for block in self._parts.blocks(request_id)]
            # Pinned blocks come first and have one more reference, because of the pin.
            num_pinned = self.num_pinned(request_id)
            num_freed_blocks = refs[:num_pinned].count(2) + refs[num_pinned:].count(1)
            tail = [
                block.ref_cnt
                for group in self._parts.tails
                for block in group.table(request_id)
                if not block.is_null
            ]
            num_blocks, num_freed_blocks = len(refs) + len(tail), num_freed_blocks + tail.count(1)
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
                self._scheduler.max_model_len - num_tokens,
            ),
            facts=self.facts(request_id) or MOVABLE,
            num_tail_blocks=sum(group.demand(num_tokens) for group in self._parts.tails),
            num_outputs=request.num_output_tokens,
        )
