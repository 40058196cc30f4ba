"""The stages that a peer is expected to send, wherever its link is."""

import logging
import threading
from collections import deque
from typing import Any

from controller.adapters.tcp.copy_job import CopyJob
from controller.adapters.tcp.wire import Kind, SliceHeader
from controller.ports.engine_moves import KvBlocks

log = logging.getLogger(__name__)

# Stages that came unexpected and are remembered: a job that expects one of them later fails at
# once, as its bytes are gone.
MAX_DROPPED = 256


class ExpectedStages:
    """The event loop's thread puts jobs in; the thread of the peer's link takes slices in."""

    def __init__(self, blocks: KvBlocks) -> None:
        self._blocks = blocks
        self._jobs: dict[bytes, CopyJob] = {}
        self._dropped: deque[bytes] = deque(maxlen=MAX_DROPPED)
        self._lock = threading.Lock()

    def add(self, stage: bytes, job: CopyJob) -> None:
        with self._lock:
            dropped = stage in self._dropped
            if not dropped:
                self._jobs[stage] = job
        if dropped:
            job.fail("its bytes came before it was expected, or after it was cancelled")

    def remove(self, stage: bytes) -> None:
        with self._lock:
            self._jobs.pop(stage, None)

    def fail(self, why: str, *, only_begun: bool) -> None:
        """`only_begun` spares jobs without a slice, which may come over another link."""
        with self._lock:
            jobs = [job for job in self._jobs.values() if job.num_done or not only_begun]
        for job in jobs:
            job.fail(why)

    def take(self, header: SliceHeader, buffer: Any) -> None:
        job = self._find(header)
        if job is None:
            return
        if header.first == 0:
            job.begin()
        why = self._scatter(job, header, buffer)
        if why is None and header.kind is Kind.CANCELLED:
            why = "its source gave up"
        if why is not None:
            job.fail(why)
        elif header.kind is Kind.LAST:
            job.finish(self._blocks.block_bytes)

    def _find(self, header: SliceHeader) -> CopyJob | None:
        with self._lock:
            job = self._jobs.get(header.stage)
            if job is None and header.num_blocks and header.stage not in self._dropped:
                log.info("an unexpected stage is dropped")
                self._dropped.append(header.stage)
        return job

    def _scatter(self, job: CopyJob, header: SliceHeader, buffer: Any) -> str | None:
        """Writes the slice; returns why the job fails, or None."""
        end = header.first + header.num_blocks
        if header.first != job.num_done or end > len(job.block_ids):
            return f"blocks {header.first} to {end} came, not those after {job.num_done}"
        with job.hands_on() as held:
            if held and header.num_blocks:
                try:
                    self._blocks.scatter(job.block_ids[header.first : end], buffer)
                except Exception as error:
                    why = f"the blocks could not be written: {error!r}"
                    log.warning(why)
                    return why
                job.num_done = end
        return None
