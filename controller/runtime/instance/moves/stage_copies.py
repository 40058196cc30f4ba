"""The stages of an outgoing move, each copied to the destination and, if asked, digested."""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Sequence
from functools import partial

from controller.core.migration.move_records import MoveOrder, StageRecord
from controller.core.migration.protocol import StageCopied, StageLost
from controller.ports.engine import KvBlocks
from controller.runtime.instance.moves.host import MoveHost

log = logging.getLogger(__name__)

SLICE_BYTES = 4 << 20


class StageCopies:
    """`on_end` gets the end of each stage. `is_over` says whether the move is over: a copy that
    ends later is not digested."""

    def __init__(
        self,
        host: MoveHost,
        order: MoveOrder,
        on_end: Callable[[StageCopied | StageLost], None],
        is_over: Callable[[], bool],
    ) -> None:
        self._host = host
        self._order = order
        self._on_end = on_end
        self._is_over = is_over
        self.num_cached = 0
        self.num_copied = 0
        """The number of blocks at the destination, cached or copied, from the first on."""
        self.records: list[StageRecord] = []
        self.digest: bytes | None = None
        """The digest of all blocks copied so far."""
        self._kv_digest = KvDigest(host.blocks) if order.verify_kv else None
        self._stage_id = ""

    def cached(self, num_blocks: int) -> None:
        """The destination has so many of the first blocks in its prefix cache."""
        self.num_cached = self.num_copied = num_blocks

    def least_time_s(self, num_blocks: int) -> float:
        """The time that the blocks' copy takes by the bandwidth limit."""
        limit = self._host.transfer.max_bytes_per_s
        return num_blocks * self._host.blocks.block_bytes / limit if limit else 0.0

    def copy(self, stage: int, block_ids: Sequence[int]) -> None:
        self._stage_id = f"{self._order.migration_id}/{stage}"
        sending = self._host.transfer.send(self._order.destination, self._stage_id, block_ids)
        sending.add_done_callback(partial(self._on_copied, stage, block_ids))

    def cancel(self) -> None:
        self._host.transfer.cancel(self._stage_id)

    def _on_copied(
        self, stage: int, block_ids: Sequence[int], sending: "asyncio.Future[StageRecord]"
    ) -> None:
        if sending.cancelled() or (error := sending.exception()) is not None:
            log.info("stage %s was not sent: %s", self._stage_id, error)
            self._on_end(StageLost(stage, "transfer"))
            return
        done = sending.result()
        self.num_copied += done.num_blocks
        if done.num_blocks:
            self.records.append(done)
        if self._kv_digest is None or self._is_over():
            self._on_end(StageCopied(stage))
        else:
            self._kv_digest.add(block_ids).add_done_callback(partial(self._on_digested, stage))

    def _on_digested(self, stage: int, digest: "asyncio.Future[bytes]") -> None:
        if digest.cancelled() or (error := digest.exception()) is not None:
            log.error("no digest of stage %s: %s", self._stage_id, error)
            self._on_end(StageLost(stage, "transfer"))
            return
        self.digest = digest.result()
        self._on_end(StageCopied(stage))


class KvDigest:
    """A digest of the copied blocks of one move, to compare both sides with (`--verify-kv`). Used
    from the event loop's thread; another thread reads the blocks in slices, about 1 s per GiB.

    Full blocks do not change any more, so each stage's blocks are read after their copy, while the
    request decodes on. Only the last stage's, one block or two, are read while it is suspended.
    """

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
