"""The inference engine as the llumlet sees it, what it offers so that its requests can move live to
another instance's engine (`EngineMoves`), and how the bytes of KV blocks get there off the engine's
thread (`KvTransfer`).
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from controller.core.emptying.relief import Candidate
from controller.core.load.snapshot import InstanceRef, InstanceSnapshot
from controller.core.migration.move_records import StageRecord
from controller.core.migration.refusals import MoveFacts, MoveRefusal

Frames = Sequence[bytes | memoryview]
"""Opaque encoded bytes as they are sent: an engine's requests, outputs and states."""


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
    only has the scheduler's statistics, which any frontend may read."""

    frontend_index: int
    emitted: tuple[EmittedTokens, ...]
    body: Any


@dataclass(frozen=True, slots=True)
class EngineEvent:
    """A request entered the batch, or lost its blocks to memory pressure.

    `num_cached_tokens`: how many tokens the prefix cache spared it on admission.
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
    """How well an emulated engine has kept the time of its profile since it began.

    `profile_time_s`: the time that its steps should have taken. `wall_time_s`: the time that they
    took, with the time between steps that followed each other. `num_late_steps`: steps that ended
    more than 5% late.
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
    def moves(self) -> "EngineMoves": ...

    def prepare(self, frames: Frames, frontend_index: int) -> Any:
        """Decode a request. Raises ValueError if this engine cannot take it."""

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


# -- moves -----------------------------------------------------------------------------


class KvBlocks(Protocol):
    """The KV cache as numbered blocks of opaque bytes."""

    block_bytes: int
    """Bytes of one block over all layers, and over all ranks of the engine."""

    def buffer(self, num_blocks: int) -> Any:
        """Contiguous memory for so many blocks, for repeated use."""

    def gather(self, block_ids: Sequence[int], into: Any) -> memoryview:
        """Copies the blocks, one after the other, into a buffer; returns the bytes that are
        filled. The view is valid until the buffer is used again."""

    def scatter(self, block_ids: Sequence[int], buffer: Any) -> None:
        """Copies the first blocks of a buffer to these places."""

    def writable(self, buffer: Any, num_blocks: int) -> memoryview:
        """The bytes of the first blocks of a buffer, for a receiver to fill."""


@dataclass(frozen=True, slots=True)
class PinnedBlocks:
    """A running request's full blocks from the given index on. They stay unchanged until `unpin`,
    whatever happens to the request."""

    block_ids: tuple[int, ...]
    num_tokens: int
    """Prompt and outputs at this moment."""


@dataclass(frozen=True, slots=True)
class SuspendedRequest:
    """A request that is out of the batch. Its blocks stay unchanged until release or resume."""

    block_ids: tuple[int, ...]
    """The blocks that hold computed tokens, from the request's first on; empty for a queued one."""
    state: Frames
    """What the destination needs beyond the original request: outputs, generator, rank."""
    num_tokens: int


@dataclass(frozen=True, slots=True)
class ReservedBlocks:
    """`block_ids`: all blocks of the arriving request so far. The first `num_cached` of them
    already hold the right content, from the prefix cache."""

    block_ids: tuple[int, ...]
    num_cached: int


class EngineMoves(Protocol):
    """All methods are called between two steps on the thread that built the engine, except
    `compiling`, `drawn_generator` and those of `KvBlocks`, which any thread may call for blocks
    that are pinned or reserved for it.

    On the source a move pins blocks stage by stage while the request decodes on, suspends it at a
    step boundary, and then either releases it (the destination has it) or resumes it. On the
    destination a move reserves blocks stage by stage, and commits or cancels the reservation.
    """

    fingerprint: str
    """Equal for two engines if, and only if, a block of one means the same in the other: model,
    weights' identity, dtype, block size, layout, tensor-parallel size."""

    @property
    def blocks(self) -> KvBlocks: ...

    def set_rank(self, request_id: str, rank: int) -> None:
        """Changes the scheduling priority of a request in any state, if it is here."""

    # -- source --------------------------------------------------------------------------

    def facts(self, request_id: str) -> MoveFacts | None:
        """The facts that may keep the request from moving; None if it is not here. `refusal_of`
        decides."""

    def is_queued(self, request_id: str) -> bool:
        """The request waits and holds no blocks, so it moves without a copy."""

    def candidates(self) -> Sequence[Candidate]:
        """Every request that runs or waits here, also those that are leaving, but not those that
        arrive; each with its facts. `emptying.relieving.known` adds what only the instance's
        process knows, and why one cannot move."""

    def outputs(self, request_id: str) -> Sequence[int]:
        """The request's output tokens so far."""

    def pin(self, request_id: str, first_block: int) -> PinnedBlocks | None:
        """Pins the request's full blocks from `first_block` on, in addition to those pinned before.
        None if it is not running any more; what was pinned stays pinned."""

    def unpin(self, request_id: str) -> None:
        """Unpins all blocks that were pinned for the request, if any."""

    def suspend(self, request_id: str) -> SuspendedRequest | None:
        """Takes the request out of the batch, or out of the queue. Returns None if a step that
        includes it is under way; then ask again at the next boundary. Raises KeyError if it is
        gone."""

    def resume(self, request_id: str) -> None:
        """Puts a suspended request back into the batch, or into its place in the queue."""

    def release(self, request_id: str) -> None:
        """Forgets a suspended request and frees its blocks, without an output."""

    # -- destination ---------------------------------------------------------------------

    def compiling(self, prepared: Any) -> Future[Any] | None:
        """The compile of the request's grammar, which `Engine.prepare` began; None for a request
        without one. Until it is done, `commit` refuses the request if that has outputs. May be
        cancelled when the request does not come."""

    def reserve(
        self, prepared: Any, output_token_ids: Sequence[int], num_blocks: int
    ) -> ReservedBlocks | MoveRefusal:
        """Takes a place in the batch and `num_blocks` blocks for a request that `Engine.prepare`
        decoded; neither for 0 blocks (it arrives queued). On a refusal nothing is taken."""

    def extend(self, request_id: str, num_blocks: int) -> ReservedBlocks | None:
        """Reserves up to `num_blocks` in all. None: too few are free; what is reserved stays."""

    def cancel(self, request_id: str) -> None:
        """Frees what was reserved, if anything was."""

    def commit(self, request_id: str, state: Frames) -> None:
        """The request lives here from now on; unless it is queued the next step serves it. Raises
        ValueError for a state that does not fit, and then the reservation is still there."""

    def drop(self, request_id: str) -> None:
        """Forgets a committed request without an output, as another instance owns it."""

    # -- replay --------------------------------------------------------------------------

    def drawn_generator(self, prepared: Any, num_output_tokens: int) -> Any:
        """The generator of a seeded request as it is after so many tokens; None for another
        request. Any thread may call it, and it may take long."""

    def reenter(self, prepared: Any, output_token_ids: Sequence[int], generator: Any) -> None:
        """The request lives here from now on as an evicted one with these outputs, at least one,
        and no computed tokens. Raises ValueError, with the reason in a sentence, if it cannot: its
        grammar is not compiled, or the engine does not take it."""


# -- the copy of KV blocks -------------------------------------------------------------------------


Peer = InstanceRef
StageCopy = StageRecord


class TransferError(Exception):
    """The bytes did not arrive, or the copy was cancelled."""


class KvTransfer(Protocol):
    """The transfer is used from the event loop's thread only; other threads do the work, in slices.

    A stage is named by the same `stage_id` on both sides and its blocks come in the same order.
    The future of a copy is done only when nothing touches its blocks any more; it fails with
    TransferError, never with anything else. One direction of a pair is one link: what is sent
    there goes one stage after the other, in the order of the calls.
    """

    max_bytes_per_s: float | None
    """The limit of each link; None: no limit. May be set at any time."""

    def start(self, blocks: KvBlocks, tell: Callable[[Peer, Frames], None]) -> None:
        """`tell` carries small messages to the transfer of a peer, where `told` gets them."""

    def told(self, peer: Peer, frames: Frames) -> None: ...

    def warm_up(self, peer: Peer) -> None:
        """Opens the link to a destination if it is not open yet; returns at once."""

    def send(
        self, peer: Peer, stage_id: str, block_ids: Sequence[int]
    ) -> asyncio.Future[StageCopy]: ...

    def receive(
        self, peer: Peer, stage_id: str, block_ids: Sequence[int]
    ) -> asyncio.Future[StageCopy]:
        """Expects a stage; when this returns, the peer may begin to send. It sends at most so many
        blocks, for the first of these places, as the size of a last stage is not known before."""

    def cancel(self, stage_id: str) -> None:
        """Cancels a send or receive, if there is one: it fails as soon as its blocks are let go."""

    def stalled_s(self, peer: Peer) -> float:
        """How long this destination has taken none of the bytes that are ready for it. 0 while it
        takes some, while the limit or this side holds the bytes up, and while there are none to
        send."""

    def forget(self, peer: Peer) -> None:
        """The peer is dead: copies from it and to it fail."""

    async def close(self) -> None: ...
