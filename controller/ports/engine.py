"""The inference engine as the llumlet sees it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from controller.core.load.snapshot import InstanceSnapshot
from controller.ports.engine_moves import EngineMoves
from controller.ports.frames import Frames


@dataclass(frozen=True, slots=True)
class EmittedTokens:
    """One request's share of a step: how many tokens, and how it ended if it did.

    `finish_reason` is vLLM's word: stop, length, abort or error.
    """

    request_id: str
    num_tokens: int
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True)
class StepOutputs:
    """What one step produced for one frontend; `body` is the engine's own object. Without tokens it
    has only the scheduler's statistics, which any one frontend may read."""

    frontend_index: int
    emitted: tuple[EmittedTokens, ...]
    body: Any


@dataclass(frozen=True, slots=True)
class EngineEvent:
    """A request entered the batch, or lost its blocks to memory pressure.

    `num_cached_tokens` is what the prefix cache spared it on admission.
    """

    kind: Literal["admitted", "evicted"]
    request_id: str
    time_s: float
    """Seconds since the epoch."""
    num_tokens: int
    """The request's prompt and outputs at that moment."""
    num_cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Emulation:
    """How well an emulated engine keeps the time of its profile, since it began.

    `profile_time_s` is what its steps should have taken, `wall_time_s` what they took, with what
    lay between steps that followed each other. `num_late_steps` ended more than 5% late.
    """

    profile_time_s: float = 0.0
    wall_time_s: float = 0.0
    num_late_steps: int = 0


StepPhase = Literal["begin", "after-schedule", "after-update", "before-return"]
"""Points within a step: before anything is decided; when the scheduler has chosen what runs; when
the tokens are in its books; when the outputs are about to go to their readers."""
STEP_PHASES: tuple[StepPhase, ...] = ("begin", "after-schedule", "after-update", "before-return")


class Engine(Protocol):
    """One instance's engine. `prepare` and `encode` may be called from any thread; all the
    others only from the thread that built it, between steps."""

    max_model_len: int
    num_gpu_blocks: int
    block_size: int
    max_num_running: int
    """Requests that fit into the batch."""
    supported_tasks: tuple[str, ...]
    on_phase: Callable[[StepPhase], None]
    """Called within `step`, after-schedule and after-update, on its thread. It may be replaced by
    whoever steps the engine. A snapshot may be taken there, and nothing else asked."""

    @property
    def emulation(self) -> Emulation | None:
        """None for an engine that computes."""

    @property
    def moves(self) -> EngineMoves: ...

    def prepare(self, frames: Frames, frontend_index: int) -> Any:
        """Decode a request. Raises ValueError for one that this engine cannot take."""

    def add(self, prepared: Any) -> None: ...

    def abort(self, request_ids: Sequence[str]) -> None:
        """Forget these requests and free their blocks; unknown ids are ignored."""

    def has_work(self) -> bool: ...

    def step(self) -> Sequence[StepOutputs]: ...

    def encode(self, body: Any) -> Frames: ...

    def encode_one(self, body: Any, request_id: str) -> Frames:
        """Encodes one request's part of a step's outputs. May be called from any thread."""

    def encode_rest(self) -> Frames:
        """Outputs of no request, whose statistics say that nothing runs or waits. May be called
        from any thread."""

    def take_events(self) -> Sequence[EngineEvent]:
        """What happened since the last call, in order."""

    def snapshot(self, instance_id: str, incarnation: int) -> InstanceSnapshot: ...

    def shutdown(self) -> None: ...


EngineFactory = Callable[[Callable[[str], None]], Engine]
"""Builds an engine on the calling thread; the argument reports what it is doing."""
