"""One instance in virtual time: an engine model, its steps, and what happens between two steps.

As on a real instance, nothing reaches the engine within a step: requests and moves wait for its
end, and a status shows the state between the last two steps. Steps that only decode are done as one
`DecodeStretch`; an event that comes meanwhile cuts it short at the end of the step under way.
"""

import math
from bisect import bisect_left
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import Protocol

from controller.core.load.cached_prefixes import CacheReport, CacheReporter
from controller.core.load.snapshot import InstanceRef, InstanceSnapshot, with_batch
from controller.core.migration.handover import MAX_PROMPTS
from controller.core.migration.move_table import MoveAway, MoveHere, MoveTable
from controller.core.migration.source import RequestEnded, RequestEvicted
from controller.model.engine_model import DecodeStretch, EngineModel, StepResult
from controller.model.engine_state import ModelRequest
from controller.model.profile import LatencyProfile, ModelConfig
from controller.sim.event_queue import Action, EventQueue
from controller.sim.request_run import RequestRun, TokenTimes

INCARNATION = 1


class MovingAway(MoveAway, Protocol):
    def handle(self, event: object) -> None: ...


class Arriving(MoveHere, Protocol):
    def handle(self, event: object) -> None: ...


class SimInstance:
    """`on_finished` is called with each request at its last token, and `on_changed` when the
    instance is between two steps after something other than plain decoding."""

    def __init__(
        self,
        instance_id: str,
        config: ModelConfig,
        profile: LatencyProfile,
        events: EventQueue,
        on_finished: Callable[[RequestRun], None],
        on_changed: Callable[["SimInstance"], None],
        max_moves: int,
    ) -> None:
        self.instance_id = instance_id
        self.ref = InstanceRef(instance_id, INCARNATION, instance_id)
        self.engine = EngineModel(config, profile)
        self.alive = True
        self.runs: dict[str, RequestRun] = {}
        """Requests whose engine state is here, by id."""
        self.coming: dict[str, RequestRun] = {}
        """The requests that were dispatched here and come in once the step is over, by id."""
        self.fetching: dict[str, tuple[ModelRequest, int]] = {}
        """Of those, the requests that are here and whose prefixes are being copied, by id, each
        with the number of tokens of the prefix."""
        self.finished: OrderedDict[str, ModelRequest] = OrderedDict()
        """The last requests that finished here and whose blocks may be cached, by id; what finished
        last comes last."""
        self.moves: MoveTable[MovingAway, Arriving] = MoveTable(self.runs, max_moves)
        self.num_steps = 0
        self.busy_s = 0.0
        """The time of all these steps."""
        self.step_time_s: float | None = None
        self.slowdown = 1.0
        """The factor by which steps take longer than the profile says."""
        self.cache_reporter = CacheReporter()
        self.host_cache_reporter = CacheReporter() if config.num_host_blocks else None
        self._events = events
        self._on_finished = on_finished
        self._on_changed = on_changed
        self._step: StepResult | None = None
        self._stretch: DecodeStretch | None = None
        self._began_s = 0.0
        """When the step or the stretch under way began."""
        self._turn = 0
        """Counts the steps and stretches that were begun or cut short; the end of any earlier one
        is void."""
        self._num_cut = 0
        """After how many steps the stretch ends."""
        self._between: deque[Action] = deque()
        self._status: InstanceSnapshot | None = None
        """The status after `_status_steps` steps of the stretch, or before the step under way."""
        self._status_steps = 0
        self._status_until_s = 0.0
        """When the next step of the stretch is over, as a time since the stretch began."""
        self._times = TokenTimes()

    # -- from outside ----------------------------------------------------------------------

    @property
    def draining(self) -> bool:
        return self.moves.draining

    @draining.setter
    def draining(self, draining: bool) -> None:
        self.moves.draining = draining

    def between_steps(self, action: Action) -> None:
        """Runs the action now if no step is under way, else at the end of the step."""
        if not self.alive:
            return
        between = self._between
        between.append(action)
        if len(between) > 1:
            return  # an earlier action has already arranged that
        if self._stretch is not None:
            elapsed_s = (self._events.now_s - self._began_s) / self.slowdown
            num_done = self._stretch.num_steps_within(elapsed_s)
            if num_done + 1 < self._num_cut:
                self._end_after(num_done + 1)
        elif self._step is None:
            self._next()

    def status(self) -> InstanceSnapshot:
        """The state after the last step that is over."""
        stretch, status = self._stretch, self._status
        if status is None:
            status = self.freest_status()
        if stretch is None:
            return status
        elapsed_s = (self._events.now_s - self._began_s) / self.slowdown
        if elapsed_s < self._status_until_s:
            return status
        num_steps = stretch.num_steps_within(elapsed_s)
        self._status_until_s = (
            stretch.time_s(num_steps + 1) if num_steps < stretch.num_steps else math.inf
        )
        if num_steps != self._status_steps:
            num_free = stretch.num_free_blocks - stretch.num_taken_blocks(num_steps)
            if num_free != status.num_free_blocks:
                self._status = status = _with_free(status, num_free)
            self._status_steps = num_steps
        return status

    def status_age_s(self) -> float:
        """How old the prompts in `status` are: they are those before the step under way."""
        return 0.0 if self._step is None else self._events.now_s - self._began_s

    def take_cache_report(self) -> CacheReport | None:
        """What the prefix cache has gained and lost since the last report."""
        self.cache_reporter.changed(_named(self.engine.take_cache_changes()))
        return self.cache_reporter.take()

    def take_host_cache_report(self) -> CacheReport | None:
        """Like `take_cache_report`, for the host cache."""
        if self.host_cache_reporter is None:
            return None
        self.host_cache_reporter.changed(_named(self.engine.take_host_cache_changes()))
        return self.host_cache_reporter.take()

    def report_caches_anew(self) -> None:
        self.cache_reporter.start_over()
        if self.host_cache_reporter is not None:
            self.host_cache_reporter.start_over()

    def freest_status(self) -> InstanceSnapshot:
        """Like `status`, but with the free blocks of some earlier moment of the stretch. A stretch
        only takes blocks, so at that moment at least as many were free. The steps since then do not
        have to be counted for this."""
        if self._status is None:
            self._status, self._status_steps = self._snapshot(), 0
        return self._status

    def first_s(self, holds: Callable[[InstanceSnapshot], bool]) -> float:
        """The moment, up to one step early, from which on `holds` is true of the status, until
        something other than decoding happens here; inf if it does not become true. If `holds` is
        true of a status, it must also be true of one with fewer free blocks."""
        stretch, freest = self._stretch, self.freest_status()
        if holds(freest):
            return -math.inf
        if stretch is None:
            return math.inf

        def holds_after(num_steps: int) -> bool:
            num_free = stretch.num_free_blocks - stretch.num_taken_blocks(num_steps)
            return holds(_with_free(freest, num_free))

        if not holds_after(self._num_cut):
            return math.inf
        num_steps = bisect_left(range(self._num_cut), True, key=holds_after)
        return self._began_s + stretch.time_s(num_steps - 1) * self.slowdown

    def add(self, run: RequestRun) -> None:
        """Takes in a request. Must be called between two steps. Raises ValueError if the request
        can never run here."""
        self.engine.add(run.request)
        self.arrive(run)

    def arrive(self, run: RequestRun, *, decoding: bool = False) -> None:
        """Makes the request belong to this instance from now on."""
        self.runs[run.request.request_id] = run
        run.instance_id = self.instance_id
        if decoding:
            self.decode_on(run)

    def stop_decoding(self, run: RequestRun) -> None:
        """Takes the request out of the batch, after the step that has just ended."""
        self._times.leave(run)

    def decode_on(self, run: RequestRun) -> None:
        """Lets the request decode in this batch from the next step on: either it is back here, or
        it came by a move."""
        self._times.join(run, self._events.now_s)

    def die(self) -> list[RequestRun]:
        """Lets the instance die. Returns the requests that were on the instance, or on their way to
        it."""
        self.alive = False
        self._turn += 1
        self._between.clear()
        lost = [*self.runs.values(), *self.coming.values()]
        self.fetching.clear()
        self.runs.clear()
        self.coming.clear()
        return lost

    # -- steps -----------------------------------------------------------------------------

    def _snapshot(self) -> InstanceSnapshot:
        snapshot = self.engine.snapshot(self.instance_id, INCARNATION)
        if self.fetching:
            snapshot = self._with_fetching(snapshot)
        return replace(snapshot, draining=True) if self.moves.draining else snapshot

    def _with_fetching(self, snapshot: InstanceSnapshot) -> InstanceSnapshot:
        """Counts the requests that wait for their prefixes as queued."""
        speed, by_rank = snapshot.prefill_speed, Counter(snapshot.num_queued_by_rank)
        demand_blocks, backlog_s = snapshot.queued_demand_blocks, snapshot.backlog_s
        for request, num_fetched in self.fetching.values():
            by_rank[request.rank] += 1
            demand_blocks += snapshot.demand_for(request.num_prompt_tokens)
            backlog_s += speed.time_s(num_fetched, request.num_prompt_tokens)
        return replace(
            snapshot,
            num_queued=snapshot.num_queued + len(self.fetching),
            num_queued_by_rank=dict(by_rank),
            queued_demand_blocks=demand_blocks,
            backlog_s=backlog_s,
        )

    def _next(self) -> None:
        """Called between two steps. Runs the actions that wait for this moment, then begins the
        next step."""
        # An action may itself ask for another action between two steps.
        between, self._stretch, self._step = self._between, None, _BUSY
        while between:
            self._status = None
            between.popleft()()
        self._status = self._step = None
        if not self.alive:
            return
        self._on_changed(self)
        engine = self.engine
        if not engine.has_work():
            return
        self._turn += 1
        self._began_s = self._events.now_s
        self._stretch = engine.stretch()
        if self._stretch is not None:
            self._status_until_s = 0.0
            self._end_after(self._stretch.num_steps)
            return
        self._status = self._snapshot()
        self._step = step = engine.step()
        for request_id in step.evicted:
            run = self.runs[request_id]
            self.stop_decoding(run)
            run.evict(self._began_s)
            if (move := self.moves.under_way(request_id)) is not None:
                move.handle(RequestEvicted())
        turn, duration_s = self._turn, step.duration_s * self.slowdown
        self._events.at(self._began_s + duration_s, lambda: self._end_step(turn, step))

    def _end_after(self, num_steps: int) -> None:
        assert self._stretch is not None
        self._turn += 1
        self._num_cut, turn = num_steps, self._turn
        duration_s = self._stretch.time_s(num_steps) * self.slowdown
        self._events.at(self._began_s + duration_s, lambda: self._end_stretch(turn))

    def _end_stretch(self, turn: int) -> None:
        stretch, num_steps = self._stretch, self._num_cut
        if turn != self._turn or stretch is None:
            return
        now_s, began_s, slowdown = self._events.now_s, self._began_s, self.slowdown
        finished = self.engine.decode(num_steps)
        self.num_steps += num_steps
        self.busy_s += now_s - began_s
        self.step_time_s = stretch.last_step_s(num_steps) * slowdown
        self._times.decoded(now_s if num_steps == 1 else began_s + stretch.first_s * slowdown)
        if num_steps > 1:
            self._times.decoded_on(now_s, self.step_time_s)
        for request_id in finished:
            self._finish(self.runs.pop(request_id))
        self._next()

    def _end_step(self, turn: int, step: StepResult) -> None:
        if turn != self._turn:
            return
        now_s = self._events.now_s
        self.num_steps += 1
        self.busy_s += now_s - self._began_s
        self.step_time_s = step.duration_s * self.slowdown
        if step.num_prefill_tokens:
            emitted = set(step.emitted)
            prefilled = [r for r in step.num_prefill_tokens if r in emitted]
        else:
            prefilled = []
        if len(step.emitted) > len(prefilled):
            self._times.decoded(now_s)
        for request_id in prefilled:
            self._times.prefilled(self.runs[request_id], now_s)
        for request_id in step.finished:
            self._finish(self.runs.pop(request_id))
        self._next()

    def _finish(self, run: RequestRun) -> None:
        self.stop_decoding(run)
        run.finished_s = self._events.now_s
        if run.request.segment_at is not None:
            self.finished[run.request.request_id] = run.request
            if len(self.finished) > MAX_PROMPTS:
                self.finished.popitem(last=False)
        if (move := self.moves.under_way(run.request.request_id)) is not None:
            move.handle(RequestEnded("finished"))
        self._on_finished(run)


_BUSY = StepResult(0.0, (), (), (), (), {}, {})
"""The marker for the moment between two steps."""


def _named(changes: Mapping[Hashable, bool]) -> dict[int, bool]:
    """The segments that have a name in the trace."""
    return {name: is_cached for name, is_cached in changes.items() if isinstance(name, int)}


def _with_free(status: InstanceSnapshot, num_free_blocks: int) -> InstanceSnapshot:
    return with_batch(status, num_free_blocks, status.num_running, status.num_running_by_rank)
