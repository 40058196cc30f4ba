"""The engine model in real time, behind the Engine port.

A step is decided at once and then waited for: the engine thread sleeps until the time that the
profile gives the step is over. What is emulated is when tokens come and what memory they take.
Nothing is computed: the tokens are those of `controller.api.token_sequence`.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from controller.adapters.emulated import vllm_wire as wire
from controller.adapters.emulated.answer import Answer, answer_to
from controller.adapters.emulated.block_hashes import BlockHashes
from controller.adapters.emulated.pace import Pace
from controller.core.snapshot import InstanceSnapshot
from controller.model.config import ModelConfig
from controller.model.engine_model import EngineModel, StepResult
from controller.model.profile import LatencyProfile
from controller.model.request import ModelRequest
from controller.ports.engine import EmittedTokens, Emulation, EngineEvent, Frames, StepOutputs


@dataclass(slots=True)
class _Live:
    """A request from `prepare` to its last token. `news` and `prefill_stats` go out with its
    next token."""

    request: wire.Request
    prompt: Sequence[int]
    answer: Answer
    frontend_index: int
    num_emitted: int = 0
    admitted_before: bool = False
    news: list[wire.RequestEvent] = field(default_factory=list)
    prefill_stats: wire.PrefillStats | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.prompt) + self.num_emitted

    def token_at(self, index: int) -> int:
        """Of the prompt, and of the answer behind it."""
        num_prompt_tokens = len(self.prompt)
        if index < num_prompt_tokens:
            return self.prompt[index]
        return self.answer.token(index - num_prompt_tokens)


class EmulatedEngine:
    """`speed`: how many times faster than the profile's wall-clock time. `clock` and `sleep`
    are what a step is timed with, in seconds."""

    supported_tasks: tuple[str, ...] = ("generate",)

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
        self._prefix_caching = config.prefix_caching
        self._speed = speed
        self._pace = Pace(clock, sleep)
        self._live: dict[str, _Live] = {}
        self._events: list[EngineEvent] = []
        self.max_model_len = config.max_model_len
        self.num_gpu_blocks = config.num_total_blocks + 1  # vLLM counts its null block too
        self.block_size = config.block_size
        self.max_num_running = config.max_num_running

    @property
    def emulation(self) -> Emulation:
        return self._pace.total

    def prepare(self, frames: Frames, frontend_index: int) -> _Live:
        request = wire.decode_request(frames)
        answer = answer_to(request, self.max_model_len)
        return _Live(request, request.prompt_token_ids or (), answer, frontend_index)

    def add(self, prepared: _Live) -> None:
        """Raises ValueError for one that could never run."""
        request = prepared.request
        hashes = None
        if self._prefix_caching:
            hashes = BlockHashes(prepared.token_at, self.block_size, request.cache_salt)
        self._model.add(
            ModelRequest(
                request_id=request.request_id,
                num_prompt_tokens=len(prepared.prompt),
                max_output_tokens=prepared.answer.num_tokens,
                rank=-request.priority,
                arrival_time_s=request.arrival_time,
                block_hash=hashes,
            )
        )
        self._live[request.request_id] = prepared
        prepared.news.append(wire.RequestEvent(wire.QUEUED, time.monotonic()))

    def abort(self, request_ids: Sequence[str]) -> None:
        self._model.abort(request_ids)
        for request_id in request_ids:
            self._live.pop(request_id, None)
        if not self._model.has_work():
            self._pace.rest()

    def has_work(self) -> bool:
        return self._model.has_work()

    def step(self) -> Sequence[StepOutputs]:
        """Takes as long as the profile says, or as its own bookkeeping takes if that is longer."""
        self._pace.begin()
        result = self._model.step()
        self._take_note(result)
        outputs = self._outputs(result)
        self._pace.end(result.duration_s / self._speed)
        if not self._model.has_work():
            self._pace.rest()
        for output in outputs:
            output.body.timestamp = time.monotonic()
        return outputs

    def encode(self, body: wire.Outputs) -> Frames:
        return wire.encode_outputs(body)

    def take_events(self) -> Sequence[EngineEvent]:
        events, self._events = self._events, []
        return events

    def snapshot(self, instance_id: str, incarnation: int) -> InstanceSnapshot:
        return self._model.snapshot(instance_id, incarnation)

    def shutdown(self) -> None:
        """Nothing is held that outlives it."""

    def _take_note(self, result: StepResult) -> None:
        """What happened as the step began."""
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
        stats = self._stats() if by_frontend else None
        return [
            StepOutputs(index, tuple(emitted), wire.Outputs(outputs=outputs, scheduler_stats=stats))
            for index, (emitted, outputs) in by_frontend.items()
        ]

    def _next_token(self, live: _Live) -> wire.Output:
        token_id = live.answer.token(live.num_emitted)
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
        """For vLLM's own metrics."""
        found = self.snapshot("", 0)
        return wire.SchedulerStats(
            found.num_running, found.num_queued, found.num_used_blocks / found.num_total_blocks
        )
