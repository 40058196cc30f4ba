"""The engine model in real time, behind the Engine port.

A step is decided at once and then waited for: the engine thread sleeps until the time that the
profile gives the step is over. What is emulated is when tokens come and what memory they take.
Nothing is computed: the tokens are those of `controller.api.token_sequence`.
"""

import time
from collections.abc import Callable, Sequence

from controller.adapters.emulated import vllm_wire as wire
from controller.adapters.emulated.emulated_moves import EmulatedMoves, block_hashes, model_request
from controller.adapters.emulated.emulated_request import EmulatedRequest, answer_to
from controller.model.engine_model import EngineModel, StepResult
from controller.model.profile import LatencyProfile, ModelConfig
from controller.ports.engine import (
    EmittedTokens,
    Emulation,
    EngineEvent,
    Frames,
    StepOutputs,
    StepPhase,
)

MAX_CATCH_UP_S = 0.01
# A step that ends later than this share of its length counts as late.
LATE_SHARE = 0.05


class Pace:
    """When a step is over, and how well the machine keeps the profile's time. `clock` and `sleep`
    in seconds.

    Steps that follow each other keep the profile's time: the time that the process spends between
    two steps, and the delay of a late step, are taken off the next step's wait. A real engine's
    profile has such moments in it already. A delay over `MAX_CATCH_UP_S` is not caught up: the
    machine is too busy then, and `Emulation` shows it.
    """

    def __init__(self, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._clock = clock
        self._sleep = sleep
        self._due_s: float | None = None
        """When the last step should have ended; None before the first and after a rest."""
        self._ended_s = 0.0
        self._began_s = 0.0
        self.total = Emulation()

    def begin(self) -> None:
        """A step begins at the time when the last one should have ended, if that was just now."""
        now_s = self._clock()
        follows = self._due_s is not None and now_s - self._due_s <= MAX_CATCH_UP_S
        self._began_s = self._due_s if follows and self._due_s is not None else now_s
        if self._due_s is None:
            self._ended_s = now_s

    def end(self, duration_s: float) -> None:
        """Waits until `duration_s` after the step's beginning."""
        self._due_s = self._began_s + duration_s
        self._sleep(max(0.0, self._due_s - self._clock()))
        now_s = self._clock()
        total = self.total
        late = 0 < LATE_SHARE * duration_s < now_s - self._due_s
        self.total = Emulation(
            total.profile_time_s + duration_s,
            total.wall_time_s + now_s - self._ended_s,
            total.num_late_steps + late,
        )
        self._ended_s = now_s

    def rest(self) -> None:
        """The engine has nothing to do, so the next step follows none."""
        self._due_s = None


class EmulatedEngine:
    """`speed`: how many times faster than the profile steps are. `clock` and `sleep` time the
    steps, in seconds."""

    supported_tasks: tuple[str, ...] = ("generate",)
    encode = staticmethod(wire.encode_outputs)

    def __init__(
        self,
        profile: LatencyProfile,
        config: ModelConfig,
        speed: float,
        report: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        report(f"emulating {profile.name}")
        self._model = EngineModel(config, profile)
        self._speed = speed
        self._pace = Pace(clock, sleep)
        self.has_work, self.snapshot = self._model.has_work, self._model.snapshot
        self._live: dict[str, EmulatedRequest] = {}
        self.moves = EmulatedMoves(self._model, self._live, self._rest_if_idle)
        self._events: list[EngineEvent] = []
        self.on_phase: Callable[[StepPhase], None] = lambda phase: None
        self.max_model_len = config.max_model_len
        self.num_gpu_blocks = config.num_total_blocks + 1  # vLLM counts its null block too
        self.block_size = config.block_size
        self.max_num_running = config.max_num_running

    @property
    def emulation(self) -> Emulation:
        return self._pace.total

    def prepare(self, frames: Frames, frontend_index: int) -> EmulatedRequest:
        request = wire.decode_request(frames)
        answer = answer_to(request, self.max_model_len)
        return EmulatedRequest(request, request.prompt_token_ids or (), answer, frontend_index)

    def add(self, prepared: EmulatedRequest) -> None:
        """Raises ValueError for a request that could never run."""
        self._model.add(model_request(prepared, block_hashes(prepared, self.block_size)))
        self._live[prepared.request.request_id] = prepared
        prepared.news.append(wire.RequestEvent(wire.QUEUED, time.monotonic()))

    def abort(self, request_ids: Sequence[str]) -> None:
        self._model.abort(request_ids)
        for request_id in request_ids:
            self._live.pop(request_id, None)
            self.moves.forget_suspended(request_id)
        self._rest_if_idle()

    def step(self) -> Sequence[StepOutputs]:
        """A step takes as long as the profile says, or as its bookkeeping takes if that is
        longer. As it is decided at once, its tokens are in the books from `after-schedule` on."""
        self._pace.begin()
        result = self._model.step()
        self.on_phase("after-schedule")
        self._take_note(result)
        outputs = self._outputs(result)
        self._pace.end(result.duration_s / self._speed)
        self._rest_if_idle()
        for output in outputs:
            output.body.timestamp = time.monotonic()
        self.on_phase("after-update")
        return outputs

    def encode_one(self, body: wire.Outputs, request_id: str) -> Frames:
        outputs = [output for output in body.outputs if output.request_id == request_id]
        part = wire.Outputs(body.engine_index, outputs, timestamp=body.timestamp)
        return wire.encode_outputs(part)

    def encode_rest(self) -> Frames:
        return wire.encode_outputs(wire.Outputs(scheduler_stats=wire.SchedulerStats()))

    def take_events(self) -> Sequence[EngineEvent]:
        events, self._events = self._events, []
        return events

    def shutdown(self) -> None:
        """The engine holds nothing that outlives its process."""

    def _rest_if_idle(self) -> None:
        if not self._model.has_work():
            self._pace.rest()

    def _take_note(self, result: StepResult) -> None:
        """Records the evictions and admissions with which the step began."""
        now_s, monotonic_s = time.time(), time.monotonic()
        for request_id in result.evicted:
            live = self._live[request_id]
            live.news.append(wire.RequestEvent(wire.PREEMPTED, monotonic_s))
            self._events.append(EngineEvent("evicted", request_id, now_s, live.num_tokens))
        for request_id in result.admitted:
            live = self._live[request_id]
            num_cached = result.num_cached_tokens[request_id]
            live.news.append(wire.RequestEvent(wire.SCHEDULED, monotonic_s))
            self._events.append(
                EngineEvent("admitted", request_id, now_s, live.num_tokens, num_cached)
            )
            if not live.admitted_before:
                num_prompt_tokens = len(live.prompt)
                live.prefill_stats = wire.PrefillStats(
                    num_prompt_tokens, num_prompt_tokens - num_cached, num_cached, num_cached
                )
            live.admitted_before = True

    def _outputs(self, result: StepResult) -> list[StepOutputs]:
        by_frontend: dict[int, tuple[list[EmittedTokens], list[wire.Output]]] = {}
        finished = frozenset(result.finished)
        for request_id in result.emitted:
            live = self._live[request_id]
            emitted, outputs = by_frontend.setdefault(live.frontend_index, ([], []))
            output = self._next_token(live)
            reason = None
            if request_id in finished:
                del self._live[request_id]
                reason = live.answer.finish_reason
                output.finish_reason = wire.FINISH_REASONS.index(reason)
                output.stop_reason = live.answer.stop_reason
            outputs.append(output)
            emitted.append(EmittedTokens(request_id, 1, reason))
        stats = self._stats()
        if not by_frontend:
            return [StepOutputs(0, (), wire.Outputs(scheduler_stats=stats))]
        return [
            StepOutputs(index, tuple(emitted), wire.Outputs(outputs=outputs, scheduler_stats=stats))
            for index, (emitted, outputs) in by_frontend.items()
        ]

    def _next_token(self, live: EmulatedRequest) -> wire.Output:
        token_id = live.output(live.num_emitted)
        live.num_emitted += 1
        output = wire.Output(
            live.request.request_id,
            [token_id],
            events=live.news or None,
            prefill_stats=live.prefill_stats,
        )
        live.news, live.prefill_stats = [], None
        return output

    def _stats(self) -> wire.SchedulerStats:
        """The figures that vLLM's own metrics show."""
        found = self.snapshot("", 0)
        return wire.SchedulerStats(
            found.num_running, found.num_queued, found.num_used_blocks / found.num_total_blocks
        )
