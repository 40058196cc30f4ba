"""One side of a stage on its way: its blocks, and the future that says how the copy ended."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator, Sequence

from controller.ports.kv_transfer import StageCopy, TransferError


class CopyJob:
    """Made on the event loop's thread; a link's thread works on it. The future is done only when
    no thread touches the blocks any more; `fail` returns before that."""

    def __init__(self, peer_key: tuple[str, int], block_ids: Sequence[int]) -> None:
        self.peer_key = peer_key
        self.block_ids = tuple(block_ids)
        self.num_done = 0
        """Blocks done; written by the link's thread."""
        self._lock = threading.Lock()
        self._held = False
        self._over = False
        self._error: TransferError | None = None
        self._began_s = time.perf_counter()
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[StageCopy] = self._loop.create_future()

    @property
    def over(self) -> bool:
        return self._over

    def begin(self) -> None:
        """The stage's turn on the link has come: its copy time counts from now."""
        self._began_s = time.perf_counter()

    @contextlib.contextmanager
    def hands_on(self) -> Iterator[bool]:
        """Encloses all code that touches the blocks. Yields False if they must not be touched."""
        with self._lock:
            self._held = not self._over
        try:
            yield self._held
        finally:
            with self._lock:
                self._held = False
                if self._error is not None:
                    self._settle(self._error)

    def fail(self, why: str) -> None:
        """From any thread; does nothing once the job is over."""
        with self._lock:
            if self._over:
                return
            self._over = True
            if self._held:
                self._error = TransferError(why)
            else:
                self._settle(TransferError(why))

    def finish(self, block_bytes: int) -> None:
        took_s = time.perf_counter() - self._began_s
        with self._lock:
            if not self._over:
                self._over = True
                self._settle(StageCopy(self.num_done, self.num_done * block_bytes, took_s))

    def _settle(self, outcome: StageCopy | TransferError) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(self._set, outcome)

    def _set(self, outcome: StageCopy | TransferError) -> None:
        if self.future.done():
            return
        if isinstance(outcome, TransferError):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)
