"""Bounds to compare policies with: clusters with one pooled memory, which no real cluster can have.

O1 has one queue, first come first served, for memory that all engines share: as if requests moved
for free and at once, so that no free block is in the wrong place. A request is admitted as soon as
the cluster has room for it, by the engine with the fewest requests; if no block is left for the
next token, the request that came last gives way, and goes back to its place in the queue.

O2 also knows how long each answer will be. When a request ends, O2 admits requests from the head of
the queue, as long as all requests would have room until their ends if the engines' steps took
equally long. As they do not, an engine waits if its next step might leave too little for the
others: blocks are lent by the banker's algorithm, where the claim of an engine is the most that it
will need. So no request gives way.

Both bounds are for requests of one rank: ranks are ignored. Moves do not appear, as they cost
nothing.
"""

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

import numpy as np

from controller.core.load.snapshot import blocks_for
from controller.model.profile import LatencyProfile, ModelConfig
from controller.sim.event_queue import EventQueue
from controller.sim.outcome import Outcome
from controller.sim.request_run import Arrivals, RequestRun, TokenTimes, model_request
from controller.sim.setup import ClusterSetup
from controller.sim.workload.trace import Trace, TraceRequest


@dataclass(slots=True)
class Future:
    """How many blocks a batch will hold at most, if no request joins it and the lengths are known.
    Each request takes one token per step until its last step, and then gives all its blocks back.
    So the batch holds the most blocks just before one of these last steps. For each request this
    stores how many tokens it has computed by now, and how many steps from now its last step is."""

    num_computed: list[int] = field(default_factory=list)
    last_steps: list[int] = field(default_factory=list)

    def add(self, num_computed: int, last_step: int) -> None:
        self.num_computed.append(num_computed)
        self.last_steps.append(last_step)

    def extend(self, other: "Future") -> None:
        self.num_computed += other.num_computed
        self.last_steps += other.last_steps

    def peak_blocks(self, block_size: int) -> int:
        """The most blocks that the batch will hold. Takes n log n. In step t each request that has
        not ended holds ceil((c + t) / bs) blocks. This is q + t // bs, and one more block if the
        two remainders together fill one."""
        if not self.num_computed:
            return 0
        lasts = np.array(self.last_steps)
        order = np.argsort(-lasts)  # so that requests that end later stand first
        steps = lasts[order]
        quotients, rests = np.divmod(
            np.array(self.num_computed)[order] + block_size - 1, block_size
        )
        places = np.arange(len(steps))
        another = np.cumsum(rests[:, None] >= block_size - np.arange(block_size), axis=0)
        blocks = (
            np.cumsum(quotients)
            + (places + 1) * (steps // block_size)
            + another[places, steps % block_size]
        )
        return int(blocks.max())


class PooledRequest:
    """A request in a pooled cluster. `num_tokens`: the prompt and outputs that were known when it
    was admitted last. `num_left`: the tokens that its prefill still has to compute. `turn`: its
    place in the cluster's queue.

    While it decodes it has computed `offset` tokens more than its engine has done decode steps.
    """

    __slots__ = ("end_tokens", "engine", "num_left", "num_tokens", "offset", "run", "turn")

    def __init__(self, run: RequestRun, turn: int, num_tokens: int, end_tokens: int) -> None:
        self.run = run
        self.turn = turn
        self.num_tokens = num_tokens
        self.end_tokens = end_tokens
        self.num_left = num_tokens
        self.offset = 0
        self.engine: PooledEngine | None = None


class PooledEngine:
    """One engine: its batch, and how long each step takes.

    The cluster manages the memory. The engine says how many blocks its next step takes, and counts
    the blocks of each request by the steps that it has done, so that a step costs the same for any
    size of the batch.
    """

    def __init__(self, number: int, config: ModelConfig, profile: LatencyProfile) -> None:
        self.number = number
        self.times = TokenTimes()
        self.prefilling: dict[PooledRequest, None] = {}
        """In the order in which they were admitted, like `decoding`."""
        self.decoding: dict[PooledRequest, None] = {}
        self.num_steps = 0
        self.in_step = False
        self.num_held_blocks = 0
        self.peak_blocks = 0
        """The most blocks that its requests will hold at once, or more; only an admission raises
        it."""
        self._config = config
        self._costs = profile.costs
        self._whole_prompts = config.mode == "prefill-first"
        self._num_decodes = 0
        """How many decode steps are over."""
        self._num_context_tokens = 0
        """How many tokens all decoding requests have computed so far."""
        self._num_due = [0] * config.block_size
        """How many requests need another block for decode step d: by d modulo the block size."""
        self._ending: dict[int, list[PooledRequest]] = {}
        """The decoding requests, by the number of decode steps after which they end."""
        self._chunks: dict[PooledRequest, int] = {}
        """How many prompt tokens the step under way computes."""
        self._decodes = False
        """Whether the step under way decodes."""

    @property
    def num_running(self) -> int:
        return len(self.prefilling) + len(self.decoding)

    def admit(self, request: PooledRequest) -> None:
        request.engine = self
        request.num_left = request.num_tokens
        self.prefilling[request] = None

    # -- steps -----------------------------------------------------------------------------

    def num_blocks_wanted(self) -> int:
        """How many blocks the next step takes."""
        if not self.decoding or (self._whole_prompts and self.prefilling):
            return 0
        return self._num_due[self._num_decodes % self._config.block_size]

    def begin(self) -> float | None:
        """Begins a step and returns how long it takes; None if there is nothing to do."""
        num_decoding = len(self.decoding)
        if self.prefilling:
            self._pick_chunks(0 if self._whole_prompts else num_decoding)
            self._decodes = num_decoding > 0 and not self._whole_prompts
            prefill = [(num, r.num_tokens - r.num_left) for r, num in self._chunks.items()]
        elif num_decoding:
            self._decodes, prefill = True, []
        else:
            return None
        self.in_step = True
        if not self._decodes:
            return self._costs.time_s(prefill, 0, 0)
        return self._costs.time_s(prefill, num_decoding, self._num_context_tokens + num_decoding)

    def end(self, now_s: float) -> list[PooledRequest]:
        """Ends the step under way. Returns the requests that have their last token."""
        self.in_step = False
        self.num_steps += 1
        finished: list[PooledRequest] = []
        if self._decodes:
            self._decodes = False
            self._num_decodes += 1
            self._num_context_tokens += len(self.decoding)
            self.times.decoded(now_s)
            for request in self._ending.pop(self._num_decodes, ()):
                self.remove(request)
                finished.append(request)
        if self._chunks:
            for request, num in self._chunks.items():
                request.num_left -= num
                if not request.num_left:
                    del self.prefilling[request]
                    self._prefilled(request, now_s, finished)
            self._chunks.clear()
        return finished

    def _pick_chunks(self, num_decoding: int) -> None:
        """Picks the prompt tokens that the step computes, in order of admission, as far as the
        step's tokens suffice. Prompts are computed in parts or, where they are computed whole, at
        least the first one is."""
        budget = self._config.max_num_batched_tokens - num_decoding
        for request in self.prefilling:
            if budget <= 0:
                break
            if self._whole_prompts:
                if self._chunks and request.num_left > budget:
                    break
                num = request.num_left
            else:
                num = min(request.num_left, budget)
            self._chunks[request] = num
            budget -= num

    def _prefilled(
        self, request: PooledRequest, now_s: float, finished: list[PooledRequest]
    ) -> None:
        self.times.prefilled(request.run, now_s)
        num_steps_left = request.end_tokens - request.num_tokens - 1
        if not num_steps_left:
            self.times.leave(request.run)
            finished.append(request)
            return
        request.offset = request.num_tokens - self._num_decodes
        self.decoding[request] = None
        self._num_context_tokens += request.num_tokens
        self._num_due[-request.offset % self._config.block_size] += 1
        self._ending.setdefault(self._num_decodes + num_steps_left, []).append(request)

    # -- requests --------------------------------------------------------------------------

    def remove(self, request: PooledRequest) -> None:
        """Takes out a decoding request: it has ended, or is evicted."""
        del self.decoding[request]
        self._num_context_tokens -= request.offset + self._num_decodes
        self._num_due[-request.offset % self._config.block_size] -= 1
        self.times.leave(request.run)

    def evict(self, request: PooledRequest, now_s: float) -> int:
        """Takes a request out of the batch; the request keeps its tokens. Returns how many blocks
        that frees."""
        num_blocks = self.num_blocks(request)
        if request in self.decoding:
            request.num_tokens = request.offset + self._num_decodes + 1
            self.remove(request)
            self._ending[request.end_tokens - 1 - request.offset].remove(request)
        else:
            del self.prefilling[request]
            self._chunks.pop(request, None)
        request.engine = None
        request.run.evict(now_s)
        return num_blocks

    def num_blocks(self, request: PooledRequest) -> int:
        """How many blocks the request holds, including the blocks that the step under way has
        taken."""
        num_tokens = (
            request.offset + self._num_decodes + self._decodes
            if request in self.decoding
            else request.num_tokens
        )
        return blocks_for(num_tokens, self._config.block_size)

    # -- the future ------------------------------------------------------------------------

    def future(self, newcomer: PooledRequest | None = None) -> Future:
        """The future of the requests on this engine and, if there is one, of a new request.

        Steps count from the one under way, which is treated as if it were over for all requests.
        Where prompts are computed whole, the steps that compute prompts do not count. Elsewhere a
        request in its prefill may decode at once, or only when all prompts before its own are
        computed. So it is taken to grow from now on, and to leave as late as it may. A request that
        is alone is an exception: it may need all blocks that there are, and must not seem to need
        more. Without a new request, no later future has a higher peak.
        """
        config, future = self._config, Future()
        num_done = self._num_decodes + self._decodes
        for r in self.decoding:
            num_computed = r.offset + num_done
            future.add(num_computed, r.end_tokens - 1 - num_computed)
        num_before, least_chunk = 0, config.max_num_batched_tokens - config.max_num_running + 1
        prefilling = (*self.prefilling, *([newcomer] if newcomer is not None else ()))
        is_late = not self._whole_prompts and len(prefilling) + len(self.decoding) > 1
        for r in prefilling:
            num_before += r.num_left - self._chunks.get(r, 0)
            num_late = -(-num_before // least_chunk) if is_late else 0
            future.add(r.num_tokens, r.end_tokens - 1 - r.num_tokens + num_late)
        return future


class PooledCluster:
    """One run: `run` may be called once. The policy of the setup does not matter.

    Raises:
        ValueError: the setup has a prefix cache, faults or auto-scaling, with which these are no
            bounds.
    """

    def __init__(self, setup: ClusterSetup, *, knows_lengths: bool) -> None:
        if setup.prefix_caching or setup.faults or setup.policy.autoscale is not None:
            raise ValueError(
                "the bounds O1 and O2 have neither a prefix cache, nor faults, nor auto-scaling"
            )
        self.events = EventQueue()
        self.outcome = Outcome()
        config = ModelConfig.of(setup.profile, mode=setup.mode, prefix_caching=False)
        self.engines = [
            PooledEngine(number, config, setup.profile) for number in range(setup.num_instances)
        ]
        self.num_total_blocks = setup.num_instances * config.num_total_blocks
        self.num_free_blocks = self.num_total_blocks
        self._watermark_blocks = setup.num_instances * config.watermark_blocks
        self._config = config
        self._knows_lengths = knows_lengths
        self._sample_s = setup.sample_s
        self._queue: list[tuple[int, PooledRequest]] = []

    def run(self, trace: Trace) -> Outcome:
        """Runs until all requests have ended.

        Raises:
            ValueError: a request could never run on one instance; nothing has run then.
        """
        for number, each in enumerate(trace.requests):
            refusal = self._config.refusal(each.num_prompt_tokens, each.num_output_tokens)
            if refusal:
                raise ValueError(f"request r-{number} {refusal}")
        self._arrivals = Arrivals(self.events, trace, self._arrive)
        self._sample()
        self.events.run(self._is_over)
        self.outcome.num_steps = sum(each.num_steps for each in self.engines)
        self.outcome.duration_s = self.events.now_s
        return self.outcome

    def check(self) -> None:
        """Raises AssertionError if blocks are lost or counted twice."""
        num_held = 0
        for engine in self.engines:
            held = sum(engine.num_blocks(r) for r in (*engine.prefilling, *engine.decoding))
            assert held == engine.num_held_blocks
            assert engine.num_running <= self._config.max_num_running
            num_held += held
            if self._knows_lengths:
                claim = engine.future().peak_blocks(self._config.block_size)
                assert held <= claim <= engine.peak_blocks, "more than was foreseen"
        assert num_held + self.num_free_blocks == self.num_total_blocks
        assert self.num_free_blocks >= 0

    def _is_over(self) -> bool:
        num_to_come = self._arrivals.num_to_come
        return not (num_to_come or self._queue or any(e.num_running for e in self.engines))

    # -- requests --------------------------------------------------------------------------

    def _arrive(self, number: int, traced: TraceRequest) -> None:
        config = self._config
        run = RequestRun(number, model_request(number, traced, 0, 0, config.block_size), traced)
        num_prompt_tokens = traced.num_prompt_tokens
        end_tokens = config.end_tokens(num_prompt_tokens, traced.num_output_tokens)
        self._enqueue(PooledRequest(run, number, num_prompt_tokens, end_tokens))
        if len(self._queue) == 1:
            self._admit()

    def _enqueue(self, request: PooledRequest) -> None:
        heapq.heappush(self._queue, (request.turn, request))

    def _admit(self) -> None:
        """Admits from the head of the queue on, until one does not fit."""
        while self._queue:
            request = self._queue[0][1]
            engine = min(self.engines, key=lambda each: (each.num_running, each.number))
            if engine.num_running >= self._config.max_num_running:
                break
            num_blocks = blocks_for(request.num_tokens, self._config.block_size)
            if not self._has_room(request, num_blocks, engine):
                break
            heapq.heappop(self._queue)
            self._take(engine, num_blocks)
            engine.admit(request)
        for engine in self.engines:
            if not engine.in_step and engine.num_running:
                self._begin(engine)

    def _has_room(self, request: PooledRequest, num_blocks: int, engine: PooledEngine) -> bool:
        is_idle = self.num_free_blocks == self.num_total_blocks
        watermark_blocks = 0 if is_idle else self._watermark_blocks
        if num_blocks + watermark_blocks > self.num_free_blocks:
            return False
        return not self._knows_lengths or self._fits_to_the_end(request, num_blocks, engine)

    def _fits_to_the_end(
        self, request: PooledRequest, num_blocks: int, engine: PooledEngine
    ) -> bool:
        """Whether all requests have room until their ends if this one is admitted. If so, the
        engine's claim is raised."""
        block_size = self._config.block_size
        future = engine.future(request)
        peak_blocks = future.peak_blocks(block_size)
        for other in self.engines:
            if other is not engine:
                future.extend(other.future())
        if future.peak_blocks(block_size) > self.num_total_blocks:
            return False
        claimed_blocks, engine.peak_blocks = engine.peak_blocks, peak_blocks
        if self._may_take(engine, num_blocks):
            return True
        engine.peak_blocks = claimed_blocks
        return False

    def _may_take(self, engine: PooledEngine, num_blocks: int) -> bool:
        """Whether the engines could still run to their ends one after the other, once these blocks
        are taken."""
        held = [(each, each.num_held_blocks) for each in self.engines if each is not engine]
        held.append((engine, engine.num_held_blocks + num_blocks))
        num_free = self.num_free_blocks - num_blocks
        for num_lacking, num_held in sorted((e.peak_blocks - num, num) for e, num in held):
            if num_lacking > num_free:
                return False
            num_free += num_held
        return True

    # -- steps -----------------------------------------------------------------------------

    def _begin(self, engine: PooledEngine) -> None:
        num_wanted = engine.num_blocks_wanted()
        if self._knows_lengths:
            if num_wanted and not self._may_take(engine, num_wanted):
                return  # until a request ends, on this engine or another
        else:
            while num_wanted > self.num_free_blocks:
                self._evict_last()
                num_wanted = engine.num_blocks_wanted()
        self._take(engine, num_wanted)
        duration_s = engine.begin()
        if duration_s is not None:
            self.events.after(duration_s, partial(self._end, engine))

    def _take(self, engine: PooledEngine, num_blocks: int) -> None:
        """Takes blocks for the engine; gives blocks back if the number is negative."""
        engine.num_held_blocks += num_blocks
        self.num_free_blocks -= num_blocks

    def _end(self, engine: PooledEngine) -> None:
        finished = engine.end(self.events.now_s)
        if not finished:
            self._begin(engine)
            return
        for request in finished:
            # The last token is never computed, so it holds no block.
            self._take(engine, -blocks_for(request.end_tokens - 1, self._config.block_size))
            request.run.finished_s = self.events.now_s
            self.outcome.rows.add(request.run)
            self._arrivals.answered(request.run.number)
        if self._knows_lengths:
            engine.peak_blocks = engine.future().peak_blocks(self._config.block_size)
        self._admit()

    def _evict_last(self) -> None:
        last = max(
            (r for e in self.engines for r in (*e.prefilling, *e.decoding)), key=lambda r: r.turn
        )
        engine = last.engine
        assert engine is not None
        self._take(engine, -engine.evict(last, self.events.now_s))
        self._enqueue(last)

    # -- over time -------------------------------------------------------------------------

    def _sample(self) -> None:
        sampled = self.outcome.sampled
        sampled.times_s.append(self.events.now_s)
        sampled.num_waiting.append(len(self._queue))
        sampled.num_running.append(sum(each.num_running for each in self.engines))
        sampled.num_instances.append(len(self.engines))
        sampled.fragmentation.append(0.0)
        num_used = self.num_total_blocks - self.num_free_blocks
        sampled.used_share.append(num_used / self.num_total_blocks)
        self.events.after(self._sample_s, self._sample)


ORACLES: Mapping[str, Callable[[ClusterSetup], PooledCluster]] = MappingProxyType(
    {
        "O1": partial(PooledCluster, knows_lengths=False),
        "O2": partial(PooledCluster, knows_lengths=True),
    }
)
