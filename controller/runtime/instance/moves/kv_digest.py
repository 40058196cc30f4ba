"""A digest of KV blocks, to compare both sides of a move with (`--verify-kv`).

Full blocks do not change any more, so each stage's are taken when they were copied, while the
request decodes on. What is left when it is stopped is the last stage's: a block or two.
"""

import asyncio
import hashlib
from collections.abc import Sequence

from controller.ports.moves import KvBlocks

SLICE_BYTES = 4 << 20


class KvDigest:
    """Of the copied blocks of one move. Used from the event loop's thread; reads on another one, in
    slices, about 1 s per GiB."""

    def __init__(self, blocks: KvBlocks) -> None:
        self._blocks = blocks
        self._digest = hashlib.blake2b(digest_size=32)
        self._last: asyncio.Task[bytes] | None = None

    def add(self, block_ids: Sequence[int]) -> "asyncio.Future[bytes]":
        """Blocks that must stay as they are until this is done: 32 bytes over all that were added
        so far, in order. Fails if they could not be read, and all that come after them too."""
        taking = self._take(self._last, tuple(block_ids))
        self._last = asyncio.get_running_loop().create_task(taking)
        self._last.add_done_callback(_heeded)
        return self._last

    async def _take(self, before: "asyncio.Task[bytes] | None", block_ids: Sequence[int]) -> bytes:
        if before is not None:
            await before
        return await asyncio.get_running_loop().run_in_executor(None, self._read, block_ids)

    def _read(self, block_ids: Sequence[int]) -> bytes:
        num_per_slice = max(1, SLICE_BYTES // self._blocks.block_bytes)
        buffer = self._blocks.buffer(num_per_slice)
        for first in range(0, len(block_ids), num_per_slice):
            there = block_ids[first : first + num_per_slice]
            self._digest.update(self._blocks.gather(there, buffer))
        return self._digest.digest()


def _heeded(taking: "asyncio.Task[bytes]") -> None:
    """A failure is seen by who waits for the next, or by nobody: the move is over."""
    if not taking.cancelled():
        taking.exception()
