"""One direction between two instances: a Gloo group of two, and a thread that works on it.

Gloo has no way to call a blocked operation back but to break the pair. `break_off` does that with
a receive that times out at once: the blocked thread returns in 10 ms, and so does the other end's
(measured with torch 2.13). A broken link is never mended; the next stage opens another.
"""

import contextlib
import logging
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import ProcessGroupGloo

from controller.adapters.gloo import wire
from controller.adapters.gloo.copy_job import CopyJob
from controller.adapters.gloo.rendezvous import LinkClosedError, MailboxStore
from controller.ports.moves import KvBlocks

log = logging.getLogger(__name__)

SOURCE, DESTINATION = 0, 1
OPEN_TIMEOUT = timedelta(seconds=10)
# How long a stage may take is the migration's affair: it cancels.
FOREVER = timedelta(days=20)
_TAG, _BREAK_TAG = 0, 1
# A slice is what a cancelled copy still does, and the step of the bandwidth limit. 8 blocks of the
# embedded model are 1 MiB.
SLICE_BYTES = 1 << 20


def slice_blocks(blocks: KvBlocks) -> int:
    return max(1, SLICE_BYTES // blocks.block_bytes)


class Link(ABC):
    """`on_broken` is called on the link's thread, once, when nothing goes through it any more."""

    def __init__(
        self,
        name: str,
        rank: int,
        device: Any,
        blocks: KvBlocks,
        publish: Callable[[str, bytes], None],
        on_broken: Callable[["Link"], None],
    ) -> None:
        self.name = name
        self.store = MailboxStore(publish)
        self._rank = rank
        self._device = device
        self._blocks = blocks
        self._on_broken = on_broken
        self._group: ProcessGroupGloo | None = None
        self._closing = False
        self._over = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"kv {name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def break_off(self) -> None:
        """From any thread; returns at once."""
        self._closing = True
        self.store.close()
        group = self._group
        if group is not None:
            with contextlib.suppress(RuntimeError):
                nothing = torch.zeros(1, dtype=torch.uint8)
                group.recv([nothing], 1 - self._rank, _BREAK_TAG).wait(timedelta(milliseconds=1))

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            self._group = self._open()
            if not self._closing:
                self._work(self._group)
        except (RuntimeError, LinkClosedError, wire.NotALinkError) as error:
            log.info("link %s is over: %s", self.name, error)
        finally:
            self._closing = True
            self._group = None
            self._on_broken(self)
            with self._lock:
                self._over = True
            self._fail_all()

    def _open(self) -> ProcessGroupGloo:
        options = ProcessGroupGloo._Options()
        options._devices = [self._device]
        options._threads = 1
        options._timeout = OPEN_TIMEOUT
        return ProcessGroupGloo(self.store, self._rank, 2, options)

    def _send(self, group: ProcessGroupGloo, data: bytes | bytearray | memoryview) -> None:
        group.send([_tensor(data)], 1 - self._rank, _TAG).wait(FOREVER)

    def _receive(self, group: ProcessGroupGloo, into: bytearray | memoryview) -> None:
        group.recv([_tensor(into)], 1 - self._rank, _TAG).wait(FOREVER)

    @abstractmethod
    def _work(self, group: ProcessGroupGloo) -> None: ...

    @abstractmethod
    def _fail_all(self) -> None: ...


class SendingLink(Link):
    """Sends the stages one after the other."""

    def __init__(self, *args: Any, limit: Callable[[], float | None]) -> None:
        super().__init__(*args)
        self._limit = limit
        self._jobs: queue.SimpleQueue[tuple[bytes, CopyJob] | None] = queue.SimpleQueue()
        self._current: CopyJob | None = None

    def add(self, stage: bytes, job: CopyJob) -> None:
        with self._lock:
            if not self._over:
                self._jobs.put((stage, job))
                return
        job.cancel("the link broke")

    def break_off(self) -> None:
        super().break_off()
        self._jobs.put(None)

    def _work(self, group: ProcessGroupGloo) -> None:
        buffer = self._blocks.buffer(slice_blocks(self._blocks))
        self._say(group, wire.SliceHeader(bytes(16), 0, 0, wire.WARM_UP))
        while (entry := self._jobs.get()) is not None:
            stage, self._current = entry
            self._send_stage(group, stage, self._current, buffer)
            self._current = None

    def _send_stage(self, group: ProcessGroupGloo, stage: bytes, job: CopyJob, buffer: Any) -> None:
        job.begin()
        size, total = slice_blocks(self._blocks), len(job.block_ids)
        due_s = time.monotonic()
        for first in range(0, total, size):
            block_ids = job.block_ids[first : first + size]
            with job.hands_on:
                if job.cancelled:
                    break
                data = self._blocks.gather(block_ids, buffer)
            kind = wire.LAST if first + size >= total else wire.MORE
            self._say(group, wire.SliceHeader(stage, first, len(block_ids), kind))
            self._send(group, data)
            job.num_done += len(block_ids)
            due_s = self._keep_to_limit(due_s, len(data), job)
        if not total:
            self._say(group, wire.SliceHeader(stage, 0, 0, wire.LAST))
        if job.num_done == total and not job.cancelled:
            job.finish()
        elif job.num_done < total:
            self._say(group, wire.SliceHeader(stage, job.num_done, 0, wire.CANCELLED))

    def _keep_to_limit(self, due_s: float, num_bytes: int, job: CopyJob) -> float:
        """Waits until so many bytes may have gone since the stage began."""
        limit = self._limit()
        if limit is None:
            return time.monotonic()
        due_s += num_bytes / limit
        while (wait_s := due_s - time.monotonic()) > 0 and not (job.cancelled or self._closing):
            time.sleep(min(wait_s, 0.05))
        return due_s

    def _say(self, group: ProcessGroupGloo, header: wire.SliceHeader) -> None:
        self._send(group, bytearray(header.encode()))

    def _fail_all(self) -> None:
        if self._current is not None:
            self._current.cancel("the link broke")
        while True:
            try:
                entry = self._jobs.get_nowait()
            except queue.Empty:
                return
            if entry is not None:
                entry[1].cancel("the link broke")


class ReceivingLink(Link):
    """Takes in what comes; `expected` knows where it belongs."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._expected: dict[bytes, CopyJob] = {}

    def expect(self, stage: bytes, job: CopyJob) -> None:
        with self._lock:
            if not self._over:
                self._expected[stage] = job
                return
        job.cancel("the link broke")

    def _work(self, group: ProcessGroupGloo) -> None:
        size = slice_blocks(self._blocks)
        buffer = self._blocks.buffer(size)
        head = bytearray(wire.HEADER_BYTES)
        while not self._closing:
            self._receive(group, head)
            header = wire.decode(head)
            if header.num_blocks > size:
                raise wire.NotALinkError(f"a slice of {header.num_blocks} blocks")
            if header.num_blocks:
                self._receive(group, self._blocks.writable(buffer, header.num_blocks))
            if header.kind != wire.WARM_UP:
                self._take(header, buffer)

    def _take(self, header: wire.SliceHeader, buffer: Any) -> None:
        with self._lock:
            job = self._expected.get(header.stage)
        if job is None:
            return
        end = header.first + header.num_blocks
        with job.hands_on:
            if job.cancelled:
                self._expected.pop(header.stage, None)
                return
            fits = header.first == job.num_done and end <= len(job.block_ids)
            if fits and header.num_blocks:
                self._blocks.scatter(job.block_ids[header.first : end], buffer)
                job.num_done = end
        if not fits or header.kind == wire.CANCELLED:
            self._expected.pop(header.stage, None)
            job.cancel("its source gave up" if fits else "a slice that does not fit")
        elif header.kind == wire.LAST:
            self._expected.pop(header.stage, None)
            job.finish()

    def _fail_all(self) -> None:
        with self._lock:
            jobs, self._expected = list(self._expected.values()), {}
        for job in jobs:
            job.cancel("the link broke")


def _tensor(data: bytearray | memoryview | bytes) -> torch.Tensor:
    return torch.frombuffer(data, dtype=torch.uint8)
