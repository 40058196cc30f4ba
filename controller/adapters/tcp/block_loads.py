"""Copies from an engine's host cache into its KV blocks, on a thread of their own."""

import asyncio
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from controller.ports.engine import KvBlocks, StageCopy, TransferError

SLICE_BYTES = 16 << 20


class BlockLoads:
    """Used on the event loop's thread. Loads run one after the other."""

    def __init__(self, blocks: KvBlocks) -> None:
        self._blocks = blocks
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="host-loads")
        self._cancelled: dict[str, threading.Event] = {}
        """By name, the loads that are not over."""

    def begin(
        self, stage_id: str, from_ids: Sequence[int], to_ids: Sequence[int]
    ) -> "asyncio.Future[StageCopy]":
        cancelled = self._cancelled[stage_id] = threading.Event()
        loading = asyncio.get_running_loop().run_in_executor(
            self._thread, self._copy, tuple(from_ids), tuple(to_ids), cancelled
        )
        loading.add_done_callback(lambda _: self._cancelled.pop(stage_id))
        return loading

    def cancel(self, stage_id: str) -> None:
        if (cancelled := self._cancelled.get(stage_id)) is not None:
            cancelled.set()

    def _copy(
        self, from_ids: Sequence[int], to_ids: Sequence[int], cancelled: threading.Event
    ) -> StageCopy:
        began_s, blocks = time.monotonic(), self._blocks
        num_per_slice = max(1, SLICE_BYTES // blocks.block_bytes)
        try:
            buffer = blocks.buffer(max(1, min(num_per_slice, len(from_ids))))
            for first in range(0, len(from_ids), num_per_slice):
                if cancelled.is_set():
                    raise TransferError("the load was cancelled")
                end = first + num_per_slice
                blocks.gather(from_ids[first:end], buffer)
                blocks.scatter(to_ids[first:end], buffer)
        except (RuntimeError, OSError, ValueError) as error:
            raise TransferError(f"the host cache cannot be read: {error}") from error
        num_bytes = len(from_ids) * blocks.block_bytes
        return StageCopy(len(from_ids), num_bytes, time.monotonic() - began_s)
