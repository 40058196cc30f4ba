"""The stages of an outgoing move, each copied to the destination and, if asked, digested."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from controller.core.migration.protocol import StageCopied, StageLost
from controller.core.migration.record import MoveOrder, StageRecord
from controller.runtime.instance.moves.host import MoveHost
from controller.runtime.instance.moves.kv_digest import KvDigest

log = logging.getLogger(__name__)


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
