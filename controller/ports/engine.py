"""The inference engine as the llumlet sees it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from controller.core.snapshot import InstanceSnapshot

Frames = Sequence[bytes | memoryview]


@dataclass(frozen=True, slots=True)
class EmittedTokens:
    """One request's share of a step: how many tokens, and whether they are its last."""

    request_id: str
    num_tokens: int
    finished: bool


@dataclass(frozen=True, slots=True)
class StepOutputs:
    """What one step produced for one frontend; `body` is the engine's own object."""

    frontend_index: int
    emitted: tuple[EmittedTokens, ...]
    body: Any


class Engine(Protocol):
    """One instance's engine. `prepare` and `encode` may be called from any thread; all the
    others only from the thread that built it, between steps."""

    max_model_len: int
    num_gpu_blocks: int
    block_size: int
    supported_tasks: tuple[str, ...]

    def prepare(self, frames: Frames, frontend_index: int) -> Any:
        """Decode a request. Raises ValueError for one that this engine cannot take."""

    def add(self, prepared: Any) -> None: ...

    def abort(self, request_ids: Sequence[str]) -> None:
        """Forget these requests and free their blocks; unknown ids are ignored."""

    def has_work(self) -> bool: ...

    def step(self) -> Sequence[StepOutputs]: ...

    def encode(self, body: Any) -> Frames: ...

    def snapshot(self, instance_id: str, incarnation: int) -> InstanceSnapshot: ...

    def shutdown(self) -> None: ...


EngineFactory = Callable[[Callable[[str], None]], Engine]
"""Builds an engine on the calling thread; the argument reports what it is doing."""
