"""The source's end of a link: gathers slices and sends them, one stage after the other."""

import hmac
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from controller.adapters.tcp.connection import Connection
from controller.adapters.tcp.copy_job import CopyJob
from controller.adapters.tcp.link import DEPTH, Answer, Link
from controller.adapters.tcp.proof import PROOF_BYTES, LinkKey, link_id
from controller.adapters.tcp.wire import Kind, NotALinkError, SliceHeader
from controller.core.migration.protocol import OPEN_TIMEOUT_S, STALL_TIMEOUT_S
from controller.core.rate_limit import RateLimit

log = logging.getLogger(__name__)


class SendingLink(Link):
    def __init__(self, *args: Any, max_bytes_per_s: Callable[[], float | None]) -> None:
        super().__init__(*args)
        self._max_bytes_per_s = max_bytes_per_s
        self._limit = RateLimit()
        self._jobs: deque[tuple[bytes, CopyJob]] = deque()
        self._current: CopyJob | None = None
        self._waiting_since_s: float | None = time.monotonic()
        """Since when this end waits for the other to come or to take a slice."""
        self._num_on_their_way = 0
        """Slices that the other end has not taken yet."""

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

    def _open(self) -> Connection:
        answer = self._met_within(OPEN_TIMEOUT_S)
        assert isinstance(answer, Answer)
        key = LinkKey(self.name, self.secret, answer.secret)
        connection = self._keep(Connection.to(answer.address, OPEN_TIMEOUT_S))
        try:
            connection.send(link_id(self.name) + key.proof_of_source())
            proof = bytearray(PROOF_BYTES)
            connection.receive(proof)
            if not hmac.compare_digest(proof, key.proof_of_destination()):
                raise NotALinkError("its other end does not know its key")
        except BaseException:
            with connection:
                raise
        return connection

    def _work(self, connection: Connection) -> None:
        connection.set_patience(STALL_TIMEOUT_S)
        buffer = self._ends.blocks.buffer(self._ends.slice_blocks)
        self._waiting_since_s = None
        while (entry := self._next_job()) is not None:
            self._send_stage(connection, *entry, buffer)

    def _next_job(self) -> tuple[bytes, CopyJob] | None:
        """Waits for a job; None: the link must end."""
        with self._changed:
            self._current = None
            self._changed.wait_for(lambda: self._jobs or self._why is not None)
            if self._why is not None:
                return None
            stage, self._current = self._jobs.popleft()
            return stage, self._current

    def _send_stage(self, connection: Connection, stage: bytes, job: CopyJob, buffer: Any) -> None:
        job.begin()
        num_blocks = len(job.block_ids)
        first = 0
        while first < num_blocks:
            self._wait_for_room(connection)
            self._keep_to_the_limit(job)
            block_ids = job.block_ids[first : first + self._ends.slice_blocks]
            data = self._gather(job, block_ids, buffer)
            if data is None:
                break
            last = first + len(block_ids) == num_blocks
            kind = Kind.LAST if last else Kind.MORE
            self._send(connection, SliceHeader(kind, stage, first, len(block_ids), len(data)), data)
            self._limit.take(len(data))
            first += len(block_ids)
        if first < num_blocks or not num_blocks:
            self._wait_for_room(connection)
            kind = Kind.CANCELLED if num_blocks else Kind.LAST
            self._send(connection, SliceHeader(kind, stage, first))
        job.num_done = first
        job.finish(self._ends.blocks.block_bytes)

    def _wait_for_room(self, connection: Connection) -> None:
        if self._num_on_their_way == DEPTH:
            with self._waiting():
                self._num_on_their_way -= connection.receive_some(DEPTH)

    def _send(
        self, connection: Connection, header: SliceHeader, data: memoryview | None = None
    ) -> None:
        with self._waiting():
            connection.send(header.encode())
            if data is not None:
                connection.send(data)
        self._num_on_their_way += 1

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        self._waiting_since_s = time.monotonic()
        yield
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
        """Waits until the limit lets more bytes go; `wake` makes it look again."""
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
