"""A model of one vLLM engine: continuous batching over paged KV blocks.

A step first chooses which requests run, and then applies the choice. There are two modes:

`chunked`, as vLLM works today: running requests come first, in the order of their admission. Each
gets the tokens that it still has to compute, within the step's token budget. The rest of the budget
admits waiting requests, the last of them with a part of its prompt. `prefill-first`, as vLLM worked
in the paper's time: a step admits waiting requests with their whole prompts; if it admits none, all
running requests decode. In both modes a step is planned when the step before it is over. vLLM's
asynchronous scheduling, which plans one step ahead, is not modelled.

A running request that needs a block when none is free evicts another request: the one with the
lowest rank, and of these the latest (by arrival when chunked, by admission when prefill-first). The
evicted request loses its blocks, keeps its tokens, and computes them again after its next
admission. A step that evicts admits no request. A request is admitted if there is room for all of
its known tokens in addition to the watermark. If no other request runs, the watermark does not
count, so that a single request always goes on.

Requests move to and from other engines by `moves`. While a batch only decodes and stays as it is, a
simulation asks for a `stretch` of steps instead of computing each step."""

import math
from bisect import bisect_right
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType
from typing import Self

from controller.core.load.snapshot import InstanceSnapshot, PrefillSpeed, QueueHead, blocks_for
from controller.core.load.step_times import (
    ANY_TIME,
    LEAST_CHUNK_TOKENS,
    MAX_LOOKED_AT,
    StepCosts,
    StepLimit,
    default_limit_s,
)
from controller.core.migration.prefix_fetch import HOST_BYTES_PER_S
from controller.core.value import value
from controller.model.engine_state import (
    NEVER,
    EngineState,
    Hold,
    ModelRequest,
    RequestState,
    num_held,
)
from controller.model.model_fetches import ModelFetches
from controller.model.model_moves import ModelMoves
from controller.model.profile import LatencyProfile, ModelConfig

_NONE: Mapping[str, int] = MappingProxyType({})


@value
class StepResult:
    """One step. All ids are in the order in which the engine dealt with them.

    `admitted`: requests that went from the queue into the batch, whether they are new or were
    evicted before. `num_cached_tokens`: how many tokens of each admitted request came from the
    prefix cache. `evicted`: requests that lost their blocks. `emitted`: requests that produced one
    token each. `finished`: the requests for which this token was the last one.
    `num_prefill_tokens`: how many tokens of its prompt, or of what it lost by an eviction, each
    request computed; the other requests in `emitted` decoded."""

    duration_s: float
    admitted: tuple[str, ...]
    evicted: tuple[str, ...]
    emitted: tuple[str, ...]
    finished: tuple[str, ...]
    num_cached_tokens: Mapping[str, int]
    num_prefill_tokens: Mapping[str, int]


@value
class DecodeStretch:
    """Several steps of a batch that only decodes and stays as it is, computed by a formula.

    While every running request decodes and no request can be admitted, each step adds one token to
    each running request. So the time, the tokens and the blocks after any number of such steps
    follow from their values before the first one. The stretch has at most `num_steps`: after these
    steps a request has ended, or the next step lacks a block.

    Step i (counted from 1) takes `first_s` + (i - 1) * `growth_s`. `num_due[r]`: how many requests
    have room for fewer than r more tokens in their blocks, so that they take a block within r
    steps."""

    num_steps: int
    num_running: int
    num_free_blocks: int
    first_s: float
    growth_s: float
    num_due: Sequence[int]

    @classmethod
    def of(
        cls,
        running: Sequence[RequestState],
        costs: StepCosts,
        block_size: int,
        num_free_blocks: int,
    ) -> Self | None:
        """Returns None if a request is in its prefill or has a whole free block (as after a move to
        this engine), or if not even one step can be run."""
        with_room = [0] * block_size
        num_context_tokens, least_left = 0, 1 << 62
        for r in running:
            num_computed = r.num_computed
            room = r.num_slots - num_computed
            if r.in_prefill or room >= block_size:
                return None
            with_room[room] += 1
            num_context_tokens += num_computed
            num_left = r.end_tokens - r.num_tokens
            if num_left < least_left:
                least_left = num_left
        num_running = len(running)
        num_due = [0, *accumulate(with_room)]
        num_rounds, num_blocks_left = divmod(num_free_blocks, num_running)
        fit = num_rounds * block_size + bisect_right(num_due, num_blocks_left) - 1
        if fit < 1:
            return None
        return cls(
            min(least_left, fit),
            num_running,
            num_free_blocks,
            costs.time_s((), num_running, num_context_tokens + num_running),
            costs.decode_per_context_token_s * num_running,
            num_due,
        )

    def time_s(self, num_steps: int) -> float:
        """The time that the first `num_steps` steps take."""
        return num_steps * (self.first_s + self.growth_s * (num_steps - 1) / 2)

    def last_step_s(self, num_steps: int) -> float:
        """The time that the last of `num_steps` steps takes."""
        return self.first_s + self.growth_s * (num_steps - 1)

    def num_steps_within(self, time_s: float) -> int:
        """How many steps have ended after `time_s`."""
        first_s, growth_s, most = self.first_s, self.growth_s, self.num_steps
        square_s = growth_s / 2
        linear_s = first_s - square_s
        if square_s:
            root = math.sqrt(linear_s * linear_s + 4 * square_s * (time_s if time_s > 0.0 else 0.0))
            num_steps = int((root - linear_s) / (2 * square_s))
        else:
            num_steps = int(time_s / linear_s)
        # The root is rounded, so `num_steps` may be off by one step. The formula of `time_s` is
        # repeated here because each status runs this code, and calls of `time_s` made it take twice
        # as long.
        while num_steps < most and (num_steps + 1) * (first_s + growth_s * num_steps / 2) <= time_s:
            num_steps += 1
        while num_steps > 0 and num_steps * (first_s + growth_s * (num_steps - 1) / 2) > time_s:
            num_steps -= 1
        return num_steps if num_steps < most else most

    def num_taken_blocks(self, num_steps: int) -> int:
        """How many blocks the batch takes in the first `num_steps`."""
        num_rounds, rest = divmod(num_steps, len(self.num_due) - 1)
        return num_rounds * self.num_running + self.num_due[rest]


class EngineModel:
    """A modelled engine. Requests enter by `add` or by `moves`, and their tokens come out of
    `step`. Between two calls nothing happens."""

    def __init__(self, config: ModelConfig, profile: LatencyProfile) -> None:
        self.config = config
        self.profile = profile
        self._step_limit = ANY_TIME
        self.num_evictions = 0
        self._costs = profile.costs
        self.prefill_speed = self._costs.prefill_speed(config.max_num_batched_tokens)
        self.copy_token_s = (
            profile.kv_bytes_per_token / profile.copy_bytes_per_s if config.prefix_caching else 0.0
        )
        self.load_token_s = (
            profile.kv_bytes_per_token / HOST_BYTES_PER_S if config.num_host_blocks else 0.0
        )
        self._state = EngineState(config)
        self.moves = ModelMoves(self._state)
        self.fetches = ModelFetches(self._state)

    def limit_steps(self, limit: StepLimit) -> None:
        """How long steps may take from now on while requests decode; at first, any time. Engines
        that compute whole prompts have no limit."""
        self._step_limit = limit if self.config.mode == "chunked" else ANY_TIME

    def add(self, request: ModelRequest) -> None:
        """Queues a request. Raises ValueError if its id is in use, if a count is not positive, or
        if it can never run."""
        state = self._state.new_state(request)
        state.num_expected = num_held(self._state.find_cached(state)) * self.config.block_size
        self._state.requests[request.request_id] = state
        self._state.waiting.push(state)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Forgets requests in any state. Unknown and arriving requests are ignored."""
        for request_id in request_ids:
            if request_id in self._state.requests:
                self._state.forget(request_id)

    def num_tokens(self, request_id: str) -> int:
        """The number of tokens of the request's prompt and outputs so far. Raises KeyError if the
        request is not here."""
        return self._state.requests[request_id].num_tokens

    def take_cache_changes(self) -> Mapping[Hashable, bool]:
        """The segments that the prefix cache has got whole (True), or has not whole any more
        (False), since the last call, by name."""
        return self._state.pool.take_changes()

    def take_host_cache_changes(self) -> Mapping[Hashable, bool]:
        """Like `take_cache_changes`, for the host cache."""
        host_cache = self._state.host_cache
        return {} if host_cache is None else host_cache.take_changes()

    def has_work(self) -> bool:
        """Whether a step would do anything. A step does nothing for requests that are suspended or
        arriving, or that wait for blocks or places that moves hold."""
        engine_state = self._state
        if engine_state.running or not engine_state.waiting:
            return bool(engine_state.running)
        head = engine_state.waiting.head()
        return engine_state.num_free_places > 0 and self._has_room(
            head, engine_state.find_cached(head)
        )

    def step(self) -> StepResult:
        """Runs one step: chooses the requests, computes the step's time, and applies the choice."""
        config, engine_state = self.config, self._state
        running, waiting = engine_state.running, engine_state.waiting
        budget = config.max_num_batched_tokens
        evicted: list[str] = []
        if config.mode == "chunked":
            chunk = budget
            if config.long_prefill_token_threshold and len(running) + len(waiting) > 1:
                chunk = config.long_prefill_token_threshold
            if not self._step_limit.is_any and (engine_state.chunked or waiting):
                budget = min(budget, self._limited_budget())
            num_picked, budget = self._pick_running(budget, chunk, evicted)
            admitted = {} if evicted or not waiting else self._admit(budget, chunk)
            num_picked += len(admitted)
            picked = running if num_picked == len(running) else running[:num_picked]
        else:
            decode_first = engine_state.moved_in and running
            admitted = self._admit(budget, NEVER) if waiting and not decode_first else {}
            if admitted:
                picked = running[-len(admitted) :]
            else:
                num_picked, _ = self._pick_running(budget, NEVER, evicted)
                picked = running[:num_picked]
        engine_state.moved_in = False
        return self._apply(picked, admitted, tuple(evicted))

    def stretch(self) -> DecodeStretch | None:
        """The next steps, if they only decode. None if the next step does anything else than
        decode. Takes time in proportion to the batch."""
        engine_state = self._state
        running = engine_state.running
        if not running or engine_state.chunked:
            return None
        if engine_state.waiting and engine_state.num_free_places > 0:
            head = engine_state.waiting.head()
            if self._has_room(head, engine_state.find_cached(head)):
                return None
        return DecodeStretch.of(
            running, self._costs, self.config.block_size, engine_state.pool.num_free
        )

    def decode(self, num_steps: int) -> list[str]:
        """Does at once what `num_steps` calls of `step` would do within a `stretch`. The stretch
        must have been made in the present state. Returns the ids of the requests that finished in
        the last step."""
        engine_state, bs = self._state, self.config.block_size
        num_taken, finished = 0, list[RequestState]()
        for r in engine_state.running:
            r.num_computed = num_computed = r.num_computed + num_steps
            r.num_tokens = num_computed + 1
            if num_computed > r.num_slots:
                num_blocks = blocks_for(num_computed, bs)
                num_taken += num_blocks - r.num_blocks
                r.num_blocks = num_blocks
                r.num_slots = num_blocks * bs
            if num_computed >= r.full_at:
                engine_state.remember_full(r, num_computed)
            if r.num_tokens == r.end_tokens:
                finished.append(r)
        engine_state.pool.take(num_taken)
        engine_state.moved_in = False
        self._finish(finished)
        return [r.request_id for r in finished]

    def snapshot(self, instance_id: str, incarnation: int) -> InstanceSnapshot:
        """The status that an instance with this engine would report (docs/metrics.md)."""
        config, engine_state, waiting = self.config, self._state, self._state.waiting
        decoding = [r.num_computed for r in engine_state.running if not r.in_prefill]
        num_context_tokens, speed = sum(decoding), self.prefill_speed
        decode_step_s = self._costs.time_s((), len(decoding), num_context_tokens)
        limit_s = self._limit_s(decode_step_s)
        if limit_s is not None and decoding:
            share = self._costs.prompt_share(limit_s, len(decoding), num_context_tokens)
            speed = PrefillSpeed(speed.token_s / share, speed.pair_s / share)
        return InstanceSnapshot(  # by position: with names it takes four times as long
            instance_id,
            incarnation,
            config.block_size,
            config.num_total_blocks,
            engine_state.pool.num_free,
            config.watermark_blocks,
            engine_state.fill_blocks() if engine_state.chunked else 0,
            config.max_num_running,
            len(engine_state.running) + engine_state.num_kept_places,
            dict(engine_state.num_running_by_rank),
            waiting.num_queued,
            dict(waiting.num_queued_by_rank),
            waiting.demand_blocks,
            self._queue_head() if waiting.num_queued else None,
            waiting.num_evicted,
            self.num_evictions,
            max_step_tokens=config.max_num_batched_tokens,
            backlog_s=self._backlog_s(speed),
            prefill_speed=speed,
            decode_step_s=decode_step_s,
            copy_token_s=self.copy_token_s,
            load_token_s=self.load_token_s,
            step_limit_s=limit_s or 0.0,
        )

    def _backlog_s(self, speed: PrefillSpeed) -> float:
        waiting = self._state.waiting
        backlog_s = speed.token_s * waiting.prefill_tokens + speed.pair_s * waiting.prefill_pairs
        for r in self._state.chunked:
            backlog_s += speed.time_s(r.num_computed, r.num_tokens)
        return backlog_s

    def check(self) -> None:
        """Checks that the whole state is consistent. Raises AssertionError if it is not."""
        self._state.check()

    def _limit_s(self, decode_step_s: float) -> float | None:
        """How long a step may take beside the requests that decode now. None: any time."""
        if self._step_limit.is_any:
            return None
        default_s = default_limit_s(self._costs.time_s((), 1, 1), decode_step_s)
        return self._step_limit.limit_s(self._state.num_running_by_rank, default_s)

    def _limited_budget(self) -> int:
        """How many tokens a step may compute so that it takes no longer than it may. Without
        requests that decode nobody waits for the step's end, so there is no limit. The first step
        of a request that moved here is a short one, as the request has already waited."""
        engine_state = self._state
        decoding = [r for r in engine_state.running if not r.in_prefill]
        if not decoding and not engine_state.num_kept_places:
            return NEVER
        if engine_state.chunked:  # they go last, or they would use up the tokens of the others
            prefilling = [r for r in engine_state.running if r.in_prefill]
            engine_state.running[:] = [*decoding, *prefilling]
        if engine_state.moved_in:
            return len(decoding) + LEAST_CHUNK_TOKENS
        num_context_tokens = sum(r.num_computed for r in decoding) + len(decoding)
        decode_step_s = self._costs.time_s((), len(decoding), num_context_tokens)
        limit_s = self._limit_s(decode_step_s)
        if limit_s is None:
            return NEVER
        return len(decoding) + self._costs.prompt_tokens_within(
            limit_s, self._prompts(), len(decoding), num_context_tokens
        )

    def _prompts(self) -> Iterator[tuple[int, int]]:
        """What a step would compute next of prompts, in order: for each, (the tokens that are still
        to be computed, the tokens computed before)."""
        engine_state = self._state
        for r in engine_state.running:
            if r.in_prefill:
                yield r.num_tokens - r.num_computed, r.num_computed
        for r in engine_state.waiting.next_ones(MAX_LOOKED_AT):
            num_found = num_held(engine_state.find_cached(r)) * self.config.block_size
            yield r.num_tokens - num_found, num_found
        yield NEVER, 0

    def _pick_running(self, budget: int, chunk: int, evicted: list[str]) -> tuple[int, int]:
        """Gives blocks to the running requests, and evicts requests when no block is left.

        Returns how many of the running requests take part in this step, counted from the first, and
        the rest of the token budget."""
        engine_state, running, i = self._state, self._state.running, 0
        while i < len(running) and budget > 0:
            r = running[i]
            if r.in_prefill:
                r.num_new = min(r.num_tokens - r.num_computed, chunk, budget)
            end = r.num_computed + r.num_new
            while end > r.num_slots and not self._extend(r, end):
                victim = self._victim()
                at = running.index(victim)
                del running[at]
                if at < i:  # the evicted request was to run in this step
                    i -= 1
                    budget += victim.num_new
                self._evict(victim)
                evicted.append(victim.request_id)
                if victim is r:
                    break
            if r.evicted:
                if self.config.own_eviction_ends_step:
                    break
                continue
            if end >= r.full_at:
                engine_state.remember_full(r, end)
            budget -= r.num_new
            i += 1
        return i, budget

    def _admit(self, budget: int, chunk: int) -> dict[str, int]:
        """Admits waiting requests in queue order, until a request does not fit.

        Returns the ids of the admitted requests, each with the number of its tokens that the prefix
        cache had.
        """
        bs, engine_state = self.config.block_size, self._state
        waiting, running = engine_state.waiting, engine_state.running
        whole_prompts = self.config.mode == "prefill-first"
        num_places = engine_state.num_free_places
        admitted: dict[str, int] = {}
        while waiting and budget > 0 and len(admitted) < num_places:
            r = waiting.head()
            cached = engine_state.find_cached(r)
            num_found = num_held(cached) * bs
            num_missing = r.num_tokens - num_found
            if whole_prompts and admitted and num_missing > budget:
                break
            if not self._has_room(r, cached):
                break
            waiting.pop()
            r.evicted = False
            engine_state.hold(r, cached)
            r.num_computed = num_found
            r.num_new = num_missing if whole_prompts else min(num_missing, chunk, budget)
            end = num_found + r.num_new
            engine_state.take(r, blocks_for(end, bs))
            if r.segment_at is not None:
                r.full_at = num_found + bs
                if end >= r.full_at:
                    engine_state.remember_full(r, end)
            budget -= r.num_new
            running.append(r)
            engine_state.enter(r)
            admitted[r.request_id] = num_found
        return admitted

    def _has_room(self, request: RequestState, cached: list[Hold]) -> bool:
        """Whether a waiting request fits, when the blocks in `cached` were found in the prefix
        cache."""
        num_wanted = blocks_for(request.num_tokens, self.config.block_size)
        num_wanted += self._state.pool.num_used_again(cached) - num_held(cached)
        if self._state.running:
            num_wanted += self.config.watermark_blocks
        return num_wanted <= self._state.pool.num_free

    def _apply(
        self, picked: list[RequestState], admitted: dict[str, int], evicted: tuple[str, ...]
    ) -> StepResult:
        engine_state = self._state
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
                    engine_state.chunked.add(r)
                    continue
                engine_state.chunked.discard(r)
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
        self._finish(finished)
        return StepResult(
            self._costs.time_s(prefill, num_decoding, num_context_tokens),
            tuple(admitted),
            evicted,
            tuple(emitted),
            tuple(r.request_id for r in finished),
            admitted or _NONE,
            num_prefill_tokens or _NONE,
        )

    def _finish(self, finished: list[RequestState]) -> None:
        engine_state = self._state
        for r in finished:
            del engine_state.requests[r.request_id]
            engine_state.leave(r)
        if finished:
            engine_state.running = [r for r in engine_state.running if r.num_tokens < r.end_tokens]

    def _extend(self, request: RequestState, num_tokens: int) -> bool:
        """Takes the blocks that the request still needs for `num_tokens`. Returns False if not all
        of them are free."""
        num_blocks = blocks_for(num_tokens, self.config.block_size)
        if num_blocks - request.num_blocks > self._state.pool.num_free:
            return False
        self._state.take(request, num_blocks)
        return True

    def _victim(self) -> RequestState:
        running = self._state.running
        if self.config.mode == "chunked":
            return max(running, key=lambda r: (-r.rank, r.arrival_time_s))
        return min(reversed(running), key=lambda r: r.rank)

    def _evict(self, request: RequestState) -> None:
        self._state.leave(request)
        request.start_over()
        request.num_expected = 0
        request.evicted = True
        self.num_evictions += 1
        self._state.waiting.push(request)

    def _queue_head(self) -> QueueHead:
        head = self._state.waiting.first()
        return QueueHead(
            request_id=head.request_id,
            rank=head.rank,
            demand_blocks=blocks_for(head.num_tokens, self.config.block_size),
            arrival_time_s=head.arrival_time_s,
            evicted=head.evicted,
        )
