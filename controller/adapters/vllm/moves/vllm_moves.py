"""Live moves of a vLLM engine's requests (EngineMoves): stock vLLM, without a patch.

The halves are vllm_source.py and vllm_destination.py; each file names its touch points with vLLM.
"""

from collections.abc import Sequence
from typing import Any

from controller.adapters.vllm.engine.batch_slots import BatchSlots
from controller.adapters.vllm.engine.fingerprint import fingerprint
from controller.adapters.vllm.engine.parts import EngineParts, parts_of
from controller.adapters.vllm.moves.candidates import candidates
from controller.adapters.vllm.moves.cuda_blocks import CudaBlocks
from controller.adapters.vllm.moves.kv_blocks import HostBlocks
from controller.adapters.vllm.moves.vllm_destination import DestinationMoves
from controller.adapters.vllm.moves.vllm_source import SourceMoves
from controller.core.emptying.relief import Candidate


class VllmMoves(SourceMoves, DestinationMoves):
    def __init__(self, core: Any) -> None:
        parts = parts_of(core)
        slots = BatchSlots(parts.scheduler)
        self.blocks = _blocks(parts)
        self.fingerprint = fingerprint(parts)
        SourceMoves.__init__(self, parts, slots, self.blocks.order_after_steps)
        DestinationMoves.__init__(self, parts, slots, self.blocks.order_after_steps)

    def in_the_batch(self) -> list[Any]:
        """Requests that count as running though vLLM's batch does not have them: suspended,
        or with a place reserved."""
        return [*self.suspended(queued=False), *self.arriving()]

    def fill_blocks(self) -> int:
        """The blocks that running prefills still take."""
        return self._parts.fill_blocks()

    def candidates(self) -> Sequence[Candidate]:
        return candidates(self._parts, self)

    def drop(self, request_id: str) -> None:
        self.forget([request_id])
        super().drop(request_id)


def _blocks(parts: EngineParts) -> HostBlocks | CudaBlocks:
    if parts.runner is None:
        return HostBlocks([], parts.pool.num_gpu_blocks)  # this process holds none
    caches, device = parts.runner.kv_caches, parts.runner.device
    if device.type == "cpu":
        return HostBlocks(caches, parts.pool.num_gpu_blocks)
    return CudaBlocks(caches, parts.pool.num_gpu_blocks, device)
