"""The KV cache in the memory of a GPU as numbered blocks of bytes (KvBlocks).

Tested on a GPU by tests/gpu; elsewhere with streams that record the order of the calls. On an H100
one block of 8 MiB takes 1 ms, most of it launches, and 64 go at 48 GB/s, nine tenths of the bus.

Copies run on a stream of their own beside the steps. A copy waits for the steps that were launched
when blocks were last given to a copier, and for no later ones. Those steps write what a gather
reads, and under asynchronous scheduling they may still write what a scatter overwrites: a request
may end with the output of one step while the next step computes a token for it, and its blocks,
freed by then, may be reserved for a move. A gather goes through a buffer on the GPU into pinned
memory: one copy over the bus instead of one for each layer. Only the calling thread waits for a
copy, asleep and with the GIL released.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from controller.adapters.vllm.moves.kv_blocks import BlockRows, as_bytes, first_rows


@dataclass(frozen=True, slots=True)
class StagingBuffer:
    on_device: torch.Tensor
    pinned: torch.Tensor


class CudaBlocks:
    """Made on the engine's thread: the stream that is current there runs its steps."""

    def __init__(
        self, caches: Sequence[torch.Tensor], num_blocks: int, device: torch.device
    ) -> None:
        self._rows = BlockRows(caches, num_blocks)
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._launched = torch.cuda.Event()
        self.block_bytes = self._rows.width * self._rows.dtype.itemsize

    def order_after_steps(self) -> None:
        self._launched.record()

    def buffer(self, num_blocks: int) -> StagingBuffer:
        shape, dtype = (num_blocks, self._rows.width), self._rows.dtype
        return StagingBuffer(
            on_device=torch.empty(shape, dtype=dtype, device=self._device),
            pinned=torch.empty(shape, dtype=dtype, pin_memory=torch.cuda.is_available()),
        )

    def gather(self, block_ids: Sequence[int], into: StagingBuffer) -> memoryview:
        rows, staged = self._first(into, len(block_ids))
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(self._launched)
            self._rows.gather(self._index(block_ids), rows)
            staged.copy_(rows, non_blocking=True)
            copied = self._stream.record_event(torch.cuda.Event(blocking=True))
        copied.synchronize()
        return as_bytes(staged)

    def scatter(self, block_ids: Sequence[int], buffer: StagingBuffer) -> None:
        rows, staged = self._first(buffer, len(block_ids))
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(self._launched)
            rows.copy_(staged, non_blocking=True)
            self._rows.scatter(self._index(block_ids), rows)
            copied = self._stream.record_event(torch.cuda.Event(blocking=True))
        copied.synchronize()

    def writable(self, buffer: StagingBuffer, num_blocks: int) -> memoryview:
        return as_bytes(first_rows(buffer.pinned, num_blocks))

    def _first(self, buffer: StagingBuffer, num_blocks: int) -> tuple[Any, Any]:
        return first_rows(buffer.on_device, num_blocks), first_rows(buffer.pinned, num_blocks)

    def _index(self, block_ids: Sequence[int]) -> torch.Tensor:
        return torch.tensor(block_ids, dtype=torch.int64).to(self._device)
