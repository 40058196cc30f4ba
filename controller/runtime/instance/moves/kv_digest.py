"""A digest of KV blocks, to compare both sides of a move with (`--verify-kv`).

Full blocks do not change any more, so each stage's blocks are read after their copy, while the
request decodes on. Only the last stage's, one block or two, are read while it is suspended.
"""

import asyncio
import hashlib
from collections.abc import Sequence

from controller.ports.moves import KvBlocks

SLICE_BYTES = 4 << 20


class KvDigest:
    """A digest of the copied blocks of one move. Used from the event loop's thread; another thread
    reads the blocks in slices, about 1 s per GiB."""

    def __init__(self, blocks: KvBlocks) -> None:
        self._blocks = blocks
        self._digest = hashlib.blake2b(digest_size=32)
        self._last: asyncio.Task[bytes] | None = None

    def add(self, block_ids: Sequence[int]) -> "asyncio.Future[bytes]":
        """Adds blocks, which must not change until the future is done; its result is 32 bytes over
        all blocks so far, in order. If blocks cannot be read, this future fails and all later
        ones."""
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
    """Marks a failure as seen: the next `add` fails too, or the move is over."""
    if not taking.cancelled():
        taking.exception()
