"""One vLLM engine, modelled: continuous batching over paged KV blocks.

A step first picks what runs and then applies it. There are two ways to pick:

`chunked`, as vLLM does today: those that run come first, in the order of their admission, each
with the tokens that it lacks, within the step's token budget; what is left of the budget admits
waiting requests, the last of them with a part of its prompt. `prefill-first`, as vLLM did in the
paper's time: a step admits waiting requests with their whole prompts, or else all running ones
decode. Either way a step is planned when the one before it is over; vLLM's asynchronous
scheduling, which plans one step ahead, is not modelled.

A running request that needs a block when none is free evicts one: the lowest rank, then the
latest (by arrival when chunked, by admission when prefill-first). The victim loses its blocks,
keeps its tokens, and computes them again when it is admitted again. A step that evicts does not
admit. Admission wants room for all known tokens of a request and leaves the watermark free
unless nothing else runs, so that a request alone always gets on.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from controller.core.snapshot import InstanceSnapshot, QueueHead, blocks_for
from controller.model.block_pool import BlockPool, CachedBlock
from controller.model.config import ModelConfig
from controller.model.profile import LatencyProfile
from controller.model.request import NEVER, ModelRequest, RequestState
from controller.model.waiting_queue import WaitingQueue

_NONE: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class StepResult:
    """One step. All ids are in the order in which the engine dealt with them.

    `admitted` went from waiting to running, whether new or evicted before; `num_cached_tokens`
    says of each how many tokens the prefix cache spared it. `evicted` lost their blocks.
    `emitted` produced one token each, for `finished` the last one. `num_prefill_tokens` says who
    computed how much of its prompt, or of what an eviction made it forget; everybody else in
    `emitted` decoded.
    """

    duration_s: float
    admitted: tuple[str, ...]
    evicted: tuple[str, ...]
    emitted: tuple[str, ...]
    finished: tuple[str, ...]
    num_cached_tokens: Mapping[str, int]
    num_prefill_tokens: Mapping[str, int]


class EngineModel:
    """Requests go in by `add`, tokens come out of `step`; nothing happens in between."""

    def __init__(self, config: ModelConfig, profile: LatencyProfile) -> None:
        self.config = config
        self.profile = profile
        self.num_evictions = 0
        self._pool = BlockPool(config.num_total_blocks)
        self._waiting = WaitingQueue(config.block_size, by_arrival=config.mode == "chunked")
        self._running: list[RequestState] = []  # in the order of their admission
        self._requests: dict[str, RequestState] = {}
        self._num_running_by_rank: dict[int, int] = {}
        self._chunked: set[RequestState] = set()  # running, and part of the prefill is done

    def add(self, request: ModelRequest) -> None:
        """Queues a request.

        Raises:
            ValueError: the id is in use, a count is not positive, or it can never run.
        """
        config, request_id = self.config, request.request_id
        if request_id in self._requests:
            raise ValueError(f"request {request_id} is already there")
        if request.num_prompt_tokens < 1 or request.max_output_tokens < 1:
            raise ValueError(f"request {request_id} has no prompt or wants no output")
        if request.num_prompt_tokens >= config.max_model_len:
            raise ValueError(
                f"request {request_id} has {request.num_prompt_tokens} prompt tokens, but "
                f"max_model_len is {config.max_model_len} with the outputs"
            )
        end_tokens = min(
            request.num_prompt_tokens + request.max_output_tokens, config.max_model_len
        )
        # The last token is never computed, so it needs no slot.
        if blocks_for(end_tokens - 1, config.block_size) > config.num_total_blocks:
            raise ValueError(
                f"request {request_id} grows to {end_tokens} tokens, but the KV cache holds "
                f"{config.num_total_blocks * config.block_size}"
            )
        state = RequestState(request, end_tokens, config.prefix_caching)
        self._requests[request_id] = state
        self._waiting.push(state)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Forgets requests, in any state; unknown ids are ignored."""
        for request_id in request_ids:
            state = self._requests.pop(request_id, None)
            if state is None:
                continue
            if state.queued:
                self._waiting.discard(state)
            else:
                self._running.remove(state)
                self._leave(state)

    def has_work(self) -> bool:
        return bool(self._requests)

    def step(self) -> StepResult:
        """Picks what runs, charges it and applies it."""
        config, running = self.config, self._running
        budget = config.max_num_batched_tokens
        evicted: list[str] = []
        if config.mode == "chunked":
            chunk = budget
            if config.long_prefill_token_threshold and len(self._requests) > 1:
                chunk = config.long_prefill_token_threshold
            num_picked, budget = self._pick_running(budget, chunk, evicted)
            admitted = {} if evicted or not self._waiting else self._admit(budget, chunk)
            num_picked += len(admitted)
            picked = running if num_picked == len(running) else running[:num_picked]
        else:
            admitted = self._admit(budget, NEVER) if self._waiting else {}
            if admitted:
                picked = running[-len(admitted) :]
            else:
                num_picked, _ = self._pick_running(budget, NEVER, evicted)
                picked = running[:num_picked]
        return self._apply(picked, admitted, tuple(evicted))

    def snapshot(self, instance_id: str, incarnation: int) -> InstanceSnapshot:
        """What an instance with this engine would report (docs/metrics.md)."""
        config, waiting = self.config, self._waiting
        return InstanceSnapshot(
            instance_id=instance_id,
            incarnation=incarnation,
            block_size=config.block_size,
            num_total_blocks=config.num_total_blocks,
            num_free_blocks=self._pool.num_free,
            watermark_blocks=config.watermark_blocks,
            fill_blocks=sum(
                max(0, blocks_for(r.num_tokens, config.block_size) - r.num_blocks)
                for r in self._chunked
            ),
            max_num_running=config.max_num_running,
            num_running=len(self._running),
            num_running_by_rank=dict(self._num_running_by_rank),
            num_queued=len(waiting),
            queued_demand_blocks=waiting.demand_blocks,
            queue_head=self._queue_head() if waiting else None,
            num_evicted_queued=waiting.num_evicted,
            num_evictions=self.num_evictions,
        )

    def check(self) -> None:
        """Compares the state with itself; walks everything.

        Raises:
            AssertionError: something does not add up.
        """
        bs, running, queued = self.config.block_size, self._running, self._waiting.in_order()
        assert len(running) <= self.config.max_num_running
        assert {id(r) for r in self._requests.values()} == {id(r) for r in [*running, *queued]}
        assert len(self._requests) == len(running) + len(queued), "in two places at once"
        assert len(queued) == len(self._waiting)
        assert not queued or self._waiting.head() is queued[0]
        assert self._waiting.num_evicted == sum(r.evicted for r in queued)
        assert self._waiting.demand_blocks == sum(blocks_for(r.num_tokens, bs) for r in queued)
        for r in queued:
            assert r.queued
            assert r.num_blocks == r.num_computed == len(r.cached) == 0, "queued, but has blocks"
        for r in running:
            assert not r.queued
            assert not r.evicted
            assert r.num_slots == r.num_blocks * bs
            assert r.num_blocks == blocks_for(r.num_computed, bs), "blocks for what is computed"
            assert r.in_prefill == (r in self._chunked)
            assert r.in_prefill or (r.num_new == 1 and r.num_computed == r.num_tokens - 1)
            if r.block_hash is not None:
                assert len(r.cached) == r.num_computed // bs, "full blocks are cached"
                assert r.full_at == (len(r.cached) + 1) * bs
        for r in self._requests.values():
            assert r.num_computed < r.num_tokens < r.end_tokens, "over, and still there"
        ranks = [r.rank for r in running]
        assert self._num_running_by_rank == {rank: ranks.count(rank) for rank in ranks}
        assert self._chunked <= set(running)
        self._pool.check(
            sum(r.num_blocks - len(r.cached) for r in running), (r.cached for r in running)
        )

    def _pick_running(self, budget: int, chunk: int, evicted: list[str]) -> tuple[int, int]:
        """Gives blocks to the running ones, evicting where none is left.

        Returns how many of them run in this step, from the first on, and what is left of the
        token budget.
        """
        running, i = self._running, 0
        while i < len(running) and budget > 0:
            r = running[i]
            if r.in_prefill:
                r.num_new = min(r.num_tokens - r.num_computed, chunk, budget)
            end = r.num_computed + r.num_new
            while end > r.num_slots and not self._extend(r, end):
                victim = self._victim()
                at = running.index(victim)
                del running[at]
                if at < i:  # it was to run in this step
                    i -= 1
                    budget += victim.num_new
                self._evict(victim)
                evicted.append(victim.request_id)
                if victim is r:
                    return i, budget
            if end >= r.full_at:
                self._remember_full(r, end)
            budget -= r.num_new
            i += 1
        return i, budget

    def _admit(self, budget: int, chunk: int) -> dict[str, int]:
        """Starts waiting requests in queue order, until one does not fit.

        Returns their ids, each with the number of tokens found in the prefix cache.
        """
        bs, pool = self.config.block_size, self._pool
        waiting, running = self._waiting, self._running
        whole_prompts = self.config.mode == "prefill-first"
        admitted: dict[str, int] = {}
        while waiting and budget > 0 and len(running) < self.config.max_num_running:
            r = waiting.head()
            found = self._find_cached(r)
            num_found = len(found) * bs
            num_missing = r.num_tokens - num_found
            if whole_prompts and admitted and num_missing > budget:
                break
            num_wanted = blocks_for(r.num_tokens, bs) - sum(b.num_refs > 0 for b in found)
            if num_wanted + (self.config.watermark_blocks if running else 0) > pool.num_free:
                break
            waiting.pop()
            r.evicted = False
            pool.hold(found)
            r.cached = found
            r.num_blocks = len(found)
            r.num_computed = num_found
            r.num_new = num_missing if whole_prompts else min(num_missing, chunk, budget)
            end = num_found + r.num_new
            self._extend(r, end)
            if r.block_hash is not None:
                r.full_at = num_found + bs
                if end >= r.full_at:
                    self._remember_full(r, end)
            budget -= r.num_new
            running.append(r)
            self._num_running_by_rank[r.rank] = self._num_running_by_rank.get(r.rank, 0) + 1
            admitted[r.request_id] = num_found
        return admitted

    def _apply(
        self, picked: list[RequestState], admitted: dict[str, int], evicted: tuple[str, ...]
    ) -> StepResult:
        emitted: list[str] = []
        finished: list[RequestState] = []
        prefill: list[tuple[int, int]] = []
        num_prefill_tokens: dict[str, int] = {}
        num_context_tokens = 0
        for r in picked:
            if r.in_prefill:
                prefill.append((r.num_new, r.num_computed))
                num_prefill_tokens[r.request_id] = r.num_new
                r.num_computed += r.num_new
                if r.num_computed < r.num_tokens:
                    self._chunked.add(r)
                    continue
                self._chunked.discard(r)
                r.in_prefill = False
                r.num_new = 1
            else:
                r.num_computed += 1
                num_context_tokens += r.num_computed
            emitted.append(r.request_id)
            r.num_tokens = r.num_computed + 1
            if r.num_tokens == r.end_tokens:
                finished.append(r)
        num_decoding = len(picked) - len(prefill)
        if finished:
            for r in finished:
                del self._requests[r.request_id]
                self._leave(r)
            self._running = [r for r in self._running if r.num_tokens < r.end_tokens]
        return StepResult(
            self.profile.step_time_s(prefill, num_decoding, num_context_tokens),
            tuple(admitted),
            evicted,
            tuple(emitted),
            tuple(r.request_id for r in finished),
            admitted or _NONE,
            num_prefill_tokens or _NONE,
        )

    def _find_cached(self, request: RequestState) -> list[CachedBlock]:
        """The longest cached prefix; the last token is left out, since its output is wanted."""
        found: list[CachedBlock] = []
        if request.block_hash is not None:
            for index in range((request.num_tokens - 1) // self.config.block_size):
                block = self._pool.find(request.block_hash(index))
                if block is None:
                    break
                found.append(block)
        return found

    def _extend(self, request: RequestState, num_tokens: int) -> bool:
        """Takes the blocks that are missing for so many tokens; False if not all are free."""
        bs = self.config.block_size
        num_missing = blocks_for(num_tokens, bs) - request.num_blocks
        if num_missing > self._pool.num_free:
            return False
        self._pool.take(num_missing)
        request.num_blocks += num_missing
        request.num_slots = request.num_blocks * bs
        return True

    def _remember_full(self, request: RequestState, num_tokens: int) -> None:
        """Caches the blocks that so many tokens fill, before they are computed, as vLLM does:
        a request that is admitted in the same step may already share them."""
        bs, block_hash = self.config.block_size, request.block_hash
        assert block_hash is not None
        for index in range(len(request.cached), num_tokens // bs):
            request.cached.append(self._pool.remember(block_hash(index)))
        request.full_at = (len(request.cached) + 1) * bs

    def _victim(self) -> RequestState:
        if self.config.mode == "chunked":
            return max(self._running, key=lambda r: (-r.rank, r.arrival_time_s))
        return min(reversed(self._running), key=lambda r: r.rank)

    def _evict(self, request: RequestState) -> None:
        self._leave(request)
        request.start_over()
        request.evicted = True
        self.num_evictions += 1
        self._waiting.push(request)

    def _leave(self, request: RequestState) -> None:
        """Frees the blocks of one that runs no more."""
        self._pool.give_back(request.num_blocks - len(request.cached), request.cached)
        self._chunked.discard(request)
        self._num_running_by_rank[request.rank] -= 1
        if not self._num_running_by_rank[request.rank]:
            del self._num_running_by_rank[request.rank]

    def _queue_head(self) -> QueueHead:
        head = self._waiting.head()
        return QueueHead(
            request_id=head.request_id,
            rank=head.rank,
            demand_blocks=blocks_for(head.num_tokens, self.config.block_size),
            arrival_time_s=head.arrival_time_s,
            evicted=head.evicted,
        )
