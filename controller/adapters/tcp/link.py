"""One direction between two instances: a TCP connection, and a thread at each end that works on it.

The stream of a link is slices, each a header and the bytes of its blocks. Source and destination
never lose step, whatever is cancelled: a destination reads and drops slices that it does not
expect, and a source whose stage was cancelled says so in place of the next slice. The destination
sends one byte back for each slice that it has read.

A broken link is never mended: the next stage opens a new link with a new name.
"""

import asyncio
import contextlib
import hashlib
import hmac
import logging
import socket
import struct
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from queue import Empty, SimpleQueue
from typing import Any, Self

from controller.adapters.tcp.door import PROOF_BYTES, Door, LinkKey, link_id, new_secret
from controller.core.migration.protocol import OPEN_TIMEOUT_S, STALL_TIMEOUT_S
from controller.ports.engine import KvBlocks, Peer, StageCopy, TransferError


class RateLimit:
    """A limit of bytes per second: an account that one take may overdraw.

    The first bytes go at once, the next when the account is balanced again. A rest saves nothing
    up, so any t seconds have at most rate x t bytes and one take. Times only go up. The limit may
    differ at each call; each counts for the time before it.
    """

    def __init__(self) -> None:
        self._owed_bytes = 0.0
        self._at_s: float | None = None

    def wait_s(self, now_s: float, max_bytes_per_s: float | None) -> float:
        """Seconds until the next bytes may go, if the limit stays. None, or 0, is no limit."""
        at_s, self._at_s = self._at_s, now_s
        if not max_bytes_per_s:
            self._owed_bytes = 0.0
        elif at_s is not None:
            self._owed_bytes = max(0.0, self._owed_bytes - (now_s - at_s) * max_bytes_per_s)
        return self._owed_bytes / max_bytes_per_s if max_bytes_per_s else 0.0

    def take(self, num_bytes: int) -> None:
        """Must follow a `wait_s` that returned 0."""
        self._owed_bytes += num_bytes


log = logging.getLogger(__name__)

# -- the stream ------------------------------------------------------------------------

_FORMAT = struct.Struct("<16sIIQB")
HEADER_BYTES = _FORMAT.size
TAKEN = b"\x06"


class Kind(IntEnum):
    MORE = 0
    LAST = 1
    CANCELLED = 2


class NotALinkError(Exception):
    """The other end does not speak as a link of this cluster does."""


@dataclass(frozen=True, slots=True)
class SliceHeader:
    """`first` is the slice's place among the stage's blocks."""

    kind: Kind
    stage: bytes = bytes(16)
    first: int = 0
    num_blocks: int = 0
    num_bytes: int = 0

    def encode(self) -> bytes:
        return _FORMAT.pack(self.stage, self.first, self.num_blocks, self.num_bytes, self.kind)

    @classmethod
    def decode(cls, header: bytes | bytearray) -> Self:
        """Raises NotALinkError."""
        stage, first, num_blocks, num_bytes, kind = _FORMAT.unpack(header)
        if kind > max(Kind):
            raise NotALinkError(f"a slice of kind {kind}")
        return cls(Kind(kind), stage, first, num_blocks, num_bytes)


def stage_key(stage_id: str) -> bytes:
    return hashlib.blake2b(stage_id.encode(), digest_size=16).digest()


# -- a stage on its way ----------------------------------------------------------------


class CopyJob:
    """One side of a stage: its blocks, and the future that says how the copy ended.

    Made on the event loop's thread; a link's thread works on it. The future is done only when
    no thread touches the blocks any more; `fail` returns before that.
    """

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


# -- the connection --------------------------------------------------------------------

_TIME = struct.Struct("@ll")


class ConnectionBrokenError(Exception):
    """Nothing goes through the connection any more."""


class Connection:
    """A context manager. A call that takes longer than `patience_s` fails, and the connection with
    it."""

    def __init__(self, made: socket.socket, patience_s: float) -> None:
        self._socket = made
        made.setblocking(True)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.set_patience(patience_s)

    @classmethod
    def to(cls, address: str, patience_s: float) -> Self:
        host, _, port = address.rpartition(":")
        try:
            return cls(socket.create_connection((host, int(port)), patience_s), patience_s)
        except OSError as error:
            raise ConnectionBrokenError(f"no connection: {error}") from None

    def set_patience(self, patience_s: float) -> None:
        seconds = int(patience_s)
        time = _TIME.pack(seconds, round((patience_s - seconds) * 1e6))
        for option in socket.SO_SNDTIMEO, socket.SO_RCVTIMEO:
            self._socket.setsockopt(socket.SOL_SOCKET, option, time)

    def wait(self) -> None:
        """Waits without a time-out until bytes come or the connection ends."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIME.pack(0, 0))
        self.receive(bytearray(1), socket.MSG_PEEK)

    def send(self, data: Any) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise ConnectionBrokenError(_why(error)) from None

    def receive(self, into: Any, flags: int = 0) -> None:
        """Receives until `into`, a buffer of bytes, is full."""
        try:
            num_bytes = self._socket.recv_into(into, 0, flags | socket.MSG_WAITALL)
        except OSError as error:
            raise ConnectionBrokenError(_why(error)) from None
        if num_bytes < len(into):
            why = "the other end has closed it" if not num_bytes else "it stopped within a slice"
            raise ConnectionBrokenError(why)

    def receive_some(self, at_most: int) -> int:
        """Receives and drops one or more bytes; returns how many."""
        try:
            num_bytes = len(self._socket.recv(at_most))
        except OSError as error:
            raise ConnectionBrokenError(_why(error)) from None
        if not num_bytes:
            raise ConnectionBrokenError("the other end has closed it")
        return num_bytes

    def break_off(self) -> None:
        """From any thread: calls that wait at either end fail at once."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.break_off()
        self._socket.close()


def _why(error: OSError) -> str:
    return "nothing moves" if isinstance(error, BlockingIOError) else str(error)


# -- the link, from both ends ----------------------------------------------------------

# Slices on their way at once: while one is scattered the next comes in and another is gathered.
DEPTH = 2


@dataclass(frozen=True, slots=True)
class Ends:
    """What all links of an instance have in common."""

    door: Door
    blocks: KvBlocks
    slice_blocks: int

    @property
    def slice_bytes(self) -> int:
        """Both ends of a link must agree on this."""
        return self.slice_blocks * self.blocks.block_bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """Where the destination waits, and its secret."""

    address: str
    secret: bytes


class LinkClosedError(Exception):
    """This end gave the link up, or the other end did not come."""


class Link(ABC):
    """`on_over` is called on the link's thread, at its very end."""

    def __init__(
        self, name: str, peer: Peer, ends: Ends, on_over: Callable[["Link"], None]
    ) -> None:
        self.name = name
        self.peer = peer
        self.secret = new_secret()
        self._ends = ends
        self._on_over = on_over
        self._met: SimpleQueue[Answer | socket.socket | None] = SimpleQueue()
        """What the source or the destination needs to open the link; None: it must not open."""
        self._connection: Connection | None = None
        self._why: str | None = None
        """Why the link must end or has ended; None while it may work."""
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"kv {name}", daemon=True)

    @property
    def over(self) -> bool:
        return self._why is not None

    def start(self) -> None:
        self._thread.start()

    def meet(self, other: Answer | socket.socket) -> None:
        """From any thread: hands over the destination's answer, or the source's connection."""
        self._met.put(other)

    def break_off(self, why: str) -> None:
        """From any thread; returns at once. The link's stages fail at once, too; its thread ends
        within three times OPEN_TIMEOUT_S if it is still opening."""
        with self._changed:
            if self._why is not None:
                return
            self._why = why
            if self._connection is not None:
                self._connection.break_off()
            self._changed.notify_all()
        self._fail_all(why)
        self._met.put(None)

    def wake(self) -> None:
        """From any thread: the link's thread looks again at what it waits for."""
        with self._changed:
            self._changed.notify_all()

    def join(self) -> None:
        """Call it after `on_over`, when the thread is about to end."""
        self._thread.join()

    def _run(self) -> None:
        why = "the link broke"
        try:
            with self._open() as connection:
                self._work(connection)
        except (ConnectionBrokenError, LinkClosedError, NotALinkError) as error:
            why = f"the link broke: {error}"
        except Exception as error:
            log.exception("link %s", self.name)
            why = f"the link broke: {error!r}"
        with self._changed:
            self._connection = None
            broken_off, self._why = self._why, self._why or why
        self._close_what_came_too_late()
        log.info("link %s is over: %s", self.name, self._why)
        if broken_off is None:
            self._fail_all(why)
        self._on_over(self)

    def _close_what_came_too_late(self) -> None:
        while not self._met.empty():
            if isinstance(met := self._met.get(), socket.socket):
                met.close()

    def _met_within(self, patience_s: float) -> Answer | socket.socket:
        try:
            met = self._met.get(timeout=patience_s)
        except Empty:
            raise LinkClosedError("the other end did not come") from None
        if met is None:
            raise LinkClosedError("it is not wanted any more")
        return met

    def _keep(self, connection: Connection) -> Connection:
        """Lets `break_off` reach the connection. Raises LinkClosedError if it came before."""
        with self._changed:
            self._connection = connection
            wanted = self._why is None
        if not wanted:
            with connection:
                raise LinkClosedError("it is not wanted any more")
        return connection

    @abstractmethod
    def _open(self) -> Connection:
        """Connects; returns when both ends have proved that they know the link's key."""

    @abstractmethod
    def _work(self, connection: Connection) -> None: ...

    @abstractmethod
    def _fail_all(self, why: str) -> None:
        """Fails the present stages; later ones may come over the next link."""


# -- the source's end ------------------------------------------------------------------


class SendingLink(Link):
    """Gathers slices and sends them, one stage after the other."""

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


# -- the destination's end -------------------------------------------------------------

# Stages that came unexpected and are remembered: a job that expects one of them later fails at
# once, as its bytes are gone.
MAX_DROPPED = 256


class ExpectedStages:
    """The stages that a peer is expected to send, wherever its link is. The event loop's thread
    puts jobs in; the thread of the peer's link takes slices in."""

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


class ReceivingLink(Link):
    """Receives slices."""

    def __init__(self, *args: Any, source_secret: bytes, expected: ExpectedStages) -> None:
        super().__init__(*args)
        self._key = LinkKey(self.name, source_secret, self.secret)
        self._expected = expected
        self._superseded = False

    def invite(self) -> Answer:
        """Opens the door to the source; called before `start`."""
        door = self._ends.door
        door.expect(link_id(self.name), self._key.proof_of_source(), self.meet)
        return Answer(door.address, self.secret)

    def supersede(self) -> None:
        self._superseded = True
        self.break_off("its source opened another link")

    def _open(self) -> Connection:
        try:
            made = self._met_within(OPEN_TIMEOUT_S)
        finally:
            self._ends.door.forget(link_id(self.name))
        assert isinstance(made, socket.socket)
        connection = self._keep(Connection(made, OPEN_TIMEOUT_S))
        connection.send(self._key.proof_of_destination())
        return connection

    def _work(self, connection: Connection) -> None:
        buffer = self._ends.blocks.buffer(self._ends.slice_blocks)
        room = self._ends.blocks.writable(buffer, self._ends.slice_blocks)
        raw = bytearray(HEADER_BYTES)
        while True:
            connection.wait()
            connection.set_patience(STALL_TIMEOUT_S)
            connection.receive(raw)
            header = self._checked(SliceHeader.decode(raw))
            if header.num_bytes:
                connection.receive(room[: header.num_bytes])
            self._expected.take(header, buffer)
            connection.send(TAKEN)

    def _checked(self, header: SliceHeader) -> SliceHeader:
        num_bytes = header.num_blocks * self._ends.blocks.block_bytes
        if header.num_blocks > self._ends.slice_blocks or header.num_bytes != num_bytes:
            raise NotALinkError(f"{header.num_blocks} blocks in {header.num_bytes} bytes")
        return header

    def _fail_all(self, why: str) -> None:
        self._expected.fail(why, only_begun=self._superseded)
