"""Bounds to compare policies with: clusters that no real one can be.

O1 has one queue, first come first served, for memory that all engines share: as if requests moved
for free and at once, so that no free block is in the wrong place. A request is admitted as soon as
the cluster has room for it, by the engine with the fewest requests; if no block is left for the
next token the request that came last gives way, and goes back to its place in the queue.

O2 also knows how long each answer will be. When a request ends it admits those from the head of the
queue on with which all have room to their end, if the engines' steps take equally long. As they do
not, an engine waits where its next step might leave too little for the others: blocks are lent by
the banker's algorithm, the most that an engine will need being its claim. So nobody gives way.

Both are for requests of one rank: ranks are ignored. Moves are not to be seen: they cost nothing.
"""

import heapq
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from controller.core.load.snapshot import blocks_for
from controller.model.profile import ModelConfig
from controller.sim.bounds.pooled_engine import PooledEngine, PooledRequest
from controller.sim.event_queue import EventQueue
from controller.sim.incoming import model_request, schedule_arrivals
from controller.sim.outcome import Outcome
from controller.sim.request_run import RequestRun
from controller.sim.setup import ClusterSetup
from controller.sim.workload.request import Trace, TraceRequest


class PooledCluster:
    """One run: `run` may be called once. The setup's policy does not matter.

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
        self._num_to_come = 0

    def run(self, trace: Trace) -> Outcome:
        """Until all requests have ended.

        Raises:
            ValueError: a request could never run on one instance; nothing has run then.
        """
        for number, each in enumerate(trace.requests):
            refusal = self._config.refusal(each.num_prompt_tokens, each.num_output_tokens)
            if refusal:
                raise ValueError(f"request r-{number} {refusal}")
        self._num_to_come = len(trace.requests)
        schedule_arrivals(self.events, trace, self._arrive)
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
        return not (self._num_to_come or self._queue or any(e.num_running for e in self.engines))

    # -- requests --------------------------------------------------------------------------

    def _arrive(self, number: int, traced: TraceRequest) -> None:
        self._num_to_come -= 1
        config = self._config
        run = RequestRun(model_request(number, traced, 0, 0, config.block_size), traced)
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
        """Takes note of the engine's higher claim if so."""
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
        """Whether the engines could, after this, still run to their ends one after the other."""
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
                return  # until a request ends, here or elsewhere
        else:
            while num_wanted > self.num_free_blocks:
                self._evict_last()
                num_wanted = engine.num_blocks_wanted()
        self._take(engine, num_wanted)
        duration_s = engine.begin()
        if duration_s is not None:
            self.events.after(duration_s, partial(self._end, engine))

    def _take(self, engine: PooledEngine, num_blocks: int) -> None:
        """Gives back where the number is negative."""
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
