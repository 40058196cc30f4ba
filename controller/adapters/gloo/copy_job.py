"""One stage on its way, on one side: its blocks, and the future that says how it went."""

import asyncio
import threading
import time
from collections.abc import Sequence

from controller.ports.kv_transfer import StageCopy, TransferError


class CopyJob:
    """`hands_on` is held while blocks are read or written. `cancel` waits for it, at most one
    slice, so that nothing touches the blocks once the future is done."""

    def __init__(self, block_ids: Sequence[int], block_bytes: int) -> None:
        self.block_ids = block_ids
        self.hands_on = threading.Lock()
        self.cancelled = False
        self.num_done = 0
        self._block_bytes = block_bytes
        self._began_s = time.perf_counter()
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[StageCopy] = self._loop.create_future()

    def begin(self) -> None:
        """Its turn has come: from now on its time counts."""
        self._began_s = time.perf_counter()

    def cancel(self, why: str = "cancelled") -> None:
        with self.hands_on:
            self.cancelled = True
        self._settle(TransferError(why))

    def finish(self) -> None:
        took_s = time.perf_counter() - self._began_s
        self._settle(StageCopy(self.num_done, self.num_done * self._block_bytes, took_s))

    def _settle(self, outcome: StageCopy | TransferError) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._set, outcome)

    def _set(self, outcome: StageCopy | TransferError) -> None:
        if self.future.done():
            return
        if isinstance(outcome, TransferError):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)
