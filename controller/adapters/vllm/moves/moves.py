"""Live moves of a vLLM engine's requests (EngineMoves): stock vLLM, without a patch.

The halves are in source.py and destination.py; each file names its touch points with vLLM.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Any

from controller.adapters.vllm.engine.batch_slots import BatchSlots
from controller.adapters.vllm.engine.fingerprint import fingerprint
from controller.adapters.vllm.engine.parts import EngineParts, parts_of
from controller.adapters.vllm.moves.candidates import candidates
from controller.adapters.vllm.moves.cuda_blocks import CudaBlocks
from controller.adapters.vllm.moves.destination import DestinationMoves
from controller.adapters.vllm.moves.grammar_replay import compiling
from controller.adapters.vllm.moves.kv_blocks import HostBlocks
from controller.adapters.vllm.moves.source import SourceMoves
from controller.core.migration.refusals import MoveRefusal
from controller.core.rescheduling.candidate import Candidate
from controller.ports.frames import Frames
from controller.ports.moves import PinnedBlocks, ReservedBlocks, SuspendedRequest


class VllmMoves:
    def __init__(self, core: Any) -> None:
        self._parts = parts = parts_of(core)
        slots = BatchSlots(parts.scheduler)
        self.blocks = _blocks(parts)
        self.fingerprint = fingerprint(parts)
        self._source = SourceMoves(parts, slots, self.blocks.order_after_steps)
        self._destination = DestinationMoves(parts, slots, self.blocks.order_after_steps)

    # -- for the engine --------------------------------------------------------------------

    def in_the_batch(self) -> list[Any]:
        """Requests that count as running though vLLM's batch does not have them: suspended,
        or with a place reserved."""
        return [*self._source.suspended(queued=False), *self._destination.arriving()]

    def in_the_queue(self) -> list[Any]:
        """Suspended requests that were queued; their source still counts them as such."""
        return self._source.suspended(queued=True)

    def forget(self, request_ids: Iterable[str]) -> None:
        """The requests are being aborted; their pinned blocks stay pinned."""
        self._source.forget(request_ids)

    def forget_finished(self) -> None:
        self._source.forget_finished()

    def set_rank(self, request_id: str, rank: int) -> None:
        self._source.set_rank(request_id, rank)

    # -- source ----------------------------------------------------------------------------

    def refusal(self, request_id: str) -> MoveRefusal | None:
        return self._source.refusal(request_id)

    def is_queued(self, request_id: str) -> bool:
        return self._source.is_queued(request_id)

    def candidates(self) -> Sequence[Candidate]:
        return candidates(self._parts, self._source)

    def outputs(self, request_id: str) -> Sequence[int]:
        return self._source.outputs(request_id)

    def pin(self, request_id: str, first_block: int) -> PinnedBlocks | None:
        return self._source.pin(request_id, first_block)

    def unpin(self, request_id: str) -> None:
        self._source.unpin(request_id)

    def suspend(self, request_id: str) -> SuspendedRequest | None:
        return self._source.suspend(request_id)

    def resume(self, request_id: str) -> None:
        self._source.resume(request_id)

    def release(self, request_id: str) -> None:
        self._source.release(request_id)

    # -- destination -----------------------------------------------------------------------

    def compiling(self, prepared: Any) -> Future[Any] | None:
        return compiling(prepared)

    def reserve(
        self, prepared: Any, output_token_ids: Sequence[int], num_blocks: int
    ) -> ReservedBlocks | MoveRefusal:
        return self._destination.reserve(prepared, output_token_ids, num_blocks)

    def extend(self, request_id: str, num_blocks: int) -> ReservedBlocks | None:
        return self._destination.extend(request_id, num_blocks)

    def cancel(self, request_id: str) -> None:
        self._destination.cancel(request_id)

    def commit(self, request_id: str, state: Frames) -> None:
        self._destination.commit(request_id, state)

    def drop(self, request_id: str) -> None:
        self._source.forget([request_id])
        self._destination.drop(request_id)


def _blocks(parts: EngineParts) -> HostBlocks | CudaBlocks:
    if parts.runner is None:
        return HostBlocks([], parts.pool.num_gpu_blocks)  # this process holds none
    caches, device = parts.runner.kv_caches, parts.runner.device
    if device.type == "cpu":
        return HostBlocks(caches, parts.pool.num_gpu_blocks)
    return CudaBlocks(caches, parts.pool.num_gpu_blocks, device)
