"""The source's end of a link: gathers slices and sends them, one stage after the other."""

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from controller.adapters.gloo.copy_job import CopyJob
from controller.adapters.gloo.group import LinkGroup, Posted
from controller.adapters.gloo.link import DATA_TAG, DEPTH, HEADER_TAG, STALL_TIMEOUT, Link
from controller.adapters.gloo.wire import NO_BLOCKS, Kind, SliceHeader
from controller.core.rate_limit import RateLimit

log = logging.getLogger(__name__)


class _Slot:
    """A buffer, and what of it is on its way."""

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer
        self._posted: tuple[Posted, ...] = ()

    def wait(self) -> None:
        for message in self._posted:
            message.wait(STALL_TIMEOUT)
        self._posted = ()

    def send(self, group: LinkGroup, header: SliceHeader, data: bytearray | memoryview) -> None:
        if isinstance(data, memoryview) and data.readonly:
            data = bytearray(data)  # torch has no tensors that cannot be written
        self._posted = (group.send(header.encode(), HEADER_TAG), group.send(data, DATA_TAG))


class SendingLink(Link):
    def __init__(self, *args: Any, max_bytes_per_s: Callable[[], float | None]) -> None:
        super().__init__(*args)
        self._max_bytes_per_s = max_bytes_per_s
        self._limit = RateLimit()
        self._jobs: deque[tuple[bytes, CopyJob]] = deque()
        self._current: CopyJob | None = None
        self._waiting_since_s: float | None = time.monotonic()
        """For the other end: to be there, or to take a slice."""

    @property
    def stalled_s(self) -> float:
        """From any thread."""
        since_s = self._waiting_since_s
        return 0.0 if since_s is None else time.monotonic() - since_s

    def add(self, stage: bytes, job: CopyJob) -> None:
        with self._changed:
            why = self._why
            if why is None:
                self._jobs.append((stage, job))
                self._changed.notify_all()
        if why is not None:
            job.fail(why)

    def _work(self, group: LinkGroup) -> None:
        slots = deque(
            _Slot(self._ends.blocks.buffer(self._ends.slice_blocks)) for _ in range(DEPTH)
        )
        self._waiting_since_s = None
        slots[0].send(group, SliceHeader(Kind.WARM_UP), bytearray(NO_BLOCKS))
        while (entry := self._next_job()) is not None:
            self._send_stage(group, *entry, slots)

    def _next_job(self) -> tuple[bytes, CopyJob] | None:
        """None: the link shall end."""
        with self._changed:
            self._current = None
            self._changed.wait_for(lambda: self._jobs or self._why is not None)
            if self._why is not None:
                return None
            stage, self._current = self._jobs.popleft()
            return stage, self._current

    def _send_stage(
        self, group: LinkGroup, stage: bytes, job: CopyJob, slots: deque[_Slot]
    ) -> None:
        job.begin()
        num_blocks = len(job.block_ids)
        first = 0
        while first < num_blocks:
            slots.rotate()
            self._wait_for(slots[0])
            self._keep_to_the_limit(job)
            block_ids = job.block_ids[first : first + self._ends.slice_blocks]
            data = self._gather(job, block_ids, slots[0].buffer)
            if data is None:
                break
            last = first + len(block_ids) == num_blocks
            kind = Kind.LAST if last else Kind.MORE
            header = SliceHeader(kind, stage, first, len(block_ids), len(data))
            slots[0].send(group, header, data)
            self._limit.take(len(data))
            first += len(block_ids)
        if first < num_blocks or not num_blocks:
            slots.rotate()
            self._wait_for(slots[0])
            kind = Kind.CANCELLED if num_blocks else Kind.LAST
            slots[0].send(group, SliceHeader(kind, stage, first), bytearray(NO_BLOCKS))
        for slot in slots:
            self._wait_for(slot)
        job.num_done = first
        job.finish(self._ends.blocks.block_bytes)

    def _wait_for(self, slot: _Slot) -> None:
        self._waiting_since_s = time.monotonic()
        slot.wait()
        self._waiting_since_s = None

    def _gather(self, job: CopyJob, block_ids: tuple[int, ...], buffer: Any) -> memoryview | None:
        """None: the job is over."""
        with job.hands_on() as held:
            if not held:
                return None
            try:
                return self._ends.blocks.gather(block_ids, buffer)
            except Exception as error:
                why = f"the blocks could not be read: {error!r}"
                log.warning(why)
                job.fail(why)
                return None

    def _keep_to_the_limit(self, job: CopyJob) -> None:
        """Waits until more may go; `wake` makes it look again."""
        with self._changed:
            while not job.over and self._why is None:
                wait_s = self._limit.wait_s(time.monotonic(), self._max_bytes_per_s())
                if wait_s <= 0:
                    return
                self._changed.wait(wait_s)

    def _fail_all(self, why: str) -> None:
        with self._changed:
            jobs = [job for _, job in self._jobs]
            if self._current is not None:
                jobs.append(self._current)
            self._jobs.clear()
        for job in jobs:
            job.fail(why)
