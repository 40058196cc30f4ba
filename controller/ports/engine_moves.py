"""What an engine offers so that its requests can move, live, to another instance's engine.

All methods are called between two steps on the thread that built the engine, except `compiling`,
`drawn_generator` and those of `KvBlocks`, which any thread may call for blocks that are pinned or
reserved for it.

On the source a move pins blocks stage by stage while the request decodes on, suspends it at a
step boundary, and then either releases it (the destination has it) or resumes it. On the
destination a move reserves blocks stage by stage, and commits or cancels the reservation.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from controller.core.emptying.relief import Candidate
from controller.core.migration.refusals import MoveFacts, MoveRefusal
from controller.ports.frames import Frames


class KvBlocks(Protocol):
    """The KV cache as numbered blocks of opaque bytes."""

    block_bytes: int
    """Bytes of one block over all layers, and over all ranks of the engine."""

    def buffer(self, num_blocks: int) -> Any:
        """Contiguous memory for so many blocks, to be used again and again."""

    def gather(self, block_ids: Sequence[int], into: Any) -> memoryview:
        """Copies the blocks, one after the other, into a buffer; returns the bytes that are
        filled. The view is valid until the buffer is used again."""

    def scatter(self, block_ids: Sequence[int], buffer: Any) -> None:
        """Copies the first blocks of a buffer to these places."""

    def writable(self, buffer: Any, num_blocks: int) -> memoryview:
        """The bytes of the first blocks of a buffer, for a receiver to fill."""


@dataclass(frozen=True, slots=True)
class PinnedBlocks:
    """A running request's full blocks from the asked index on, which stay as they are until
    `unpin`, whatever becomes of the request."""

    block_ids: tuple[int, ...]
    num_tokens: int
    """Prompt and outputs at this moment."""


@dataclass(frozen=True, slots=True)
class SuspendedRequest:
    """A request out of the batch; its blocks stay as they are until release or resume."""

    block_ids: tuple[int, ...]
    """The blocks that hold computed tokens, from the request's first on; empty for a queued one."""
    state: Frames
    """What the destination needs beyond the original request: outputs, generator, rank."""
    num_tokens: int


@dataclass(frozen=True, slots=True)
class ReservedBlocks:
    """`block_ids` are all of the arriving request's so far. The first `num_cached` of them hold
    the right content already, by the prefix cache."""

    block_ids: tuple[int, ...]
    num_cached: int


class EngineMoves(Protocol):
    fingerprint: str
    """Equal for two engines if, and only if, a block of one means the same in the other: model,
    weights' identity, dtype, block size, layout, tensor-parallel size."""

    @property
    def blocks(self) -> KvBlocks: ...

    def set_rank(self, request_id: str, rank: int) -> None:
        """Changes the scheduling priority of a request in any state, if it is here."""

    # -- source --------------------------------------------------------------------------

    def facts(self, request_id: str) -> MoveFacts | None:
        """What may keep the request from moving; None if it is not here. `refusal_of` decides."""

    def is_queued(self, request_id: str) -> bool:
        """The request waits and holds no blocks, so it moves without a copy."""

    def candidates(self) -> Sequence[Candidate]:
        """Every request that runs or waits here, also those that are leaving, but not those that
        arrive; each with its facts. `emptying.relieving.known` adds what only the instance's
        process knows, and why one cannot move."""

    def outputs(self, request_id: str) -> Sequence[int]:
        """The request's output tokens so far."""

    def pin(self, request_id: str, first_block: int) -> PinnedBlocks | None:
        """Pins the request's full blocks from `first_block` on, beside what is pinned already. None
        if it is not running any more; what was pinned stays so."""

    def unpin(self, request_id: str) -> None:
        """Lets go of all that was pinned for it; nothing if nothing was."""

    def suspend(self, request_id: str) -> SuspendedRequest | None:
        """Takes the request out of the batch, or out of the queue. None: not now (a step that
        includes it is under way); ask again at the next boundary. Raises KeyError if it is gone."""

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
        """Frees what was reserved; nothing if nothing was."""

    def commit(self, request_id: str, state: Frames) -> None:
        """The request lives here from now on; unless it is queued the next step serves it. Raises
        ValueError for a state that does not fit, and then the reservation is still there."""

    def drop(self, request_id: str) -> None:
        """Forgets a committed request without an output: another instance turned out to own it."""

    # -- replay --------------------------------------------------------------------------

    def drawn_generator(self, prepared: Any, num_output_tokens: int) -> Any:
        """The generator of a seeded request as it is after so many tokens; None for another
        request. Any thread may call it, and it may take long."""

    def reenter(self, prepared: Any, output_token_ids: Sequence[int], generator: Any) -> None:
        """The request lives here from now on as an evicted one with these outputs, at least one,
        and no computed tokens. Raises ValueError, with the reason in a sentence, if it cannot: its
        grammar is not compiled, or the engine does not take it."""
