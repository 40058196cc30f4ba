"""The KvTransfer port over TCP.

Each direction between two instances is a link: a TCP connection, and one thread at each end that
serves it.

The stream of a link consists of slices; each has a header and the bytes of its blocks. Source and
destination stay in step, whatever is cancelled: a destination reads and drops slices that it does
not expect, and a source whose stage was cancelled says so in place of the next slice. The
destination sends back one byte for each slice that it has read.

A broken link is not repaired: the next stage opens a new link with a new name."""

import asyncio
import contextlib
import hmac
import itertools
import logging
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from controller.adapters.tcp.block_loads import BlockLoads
from controller.adapters.tcp.link_stream import (
    HEADER_BYTES,
    PROOF_BYTES,
    TAKEN,
    Connection,
    ConnectionBrokenError,
    Door,
    Kind,
    LinkKey,
    NotALinkError,
    SliceHeader,
    link_id,
    new_secret,
    stage_key,
)
from controller.core.load.snapshot import InstanceRef
from controller.core.migration.protocol import OPEN_TIMEOUT_S, STALL_TIMEOUT_S
from controller.ports.engine import Frames, KvBlocks, Peer, StageCopy, TransferError


class RateLimit:
    """A limit in bytes per second, kept as an account that one `take` may overdraw.

    The first bytes may go at once. The next ones may go when the account is balanced again. Idle
    time is not saved up, so in any t seconds at most rate x t bytes and the bytes of one `take` are
    sent. Times must not decrease. The limit may differ at each call; each value applies to the time
    before that call."""

    def __init__(self) -> None:
        self._owed_bytes = 0.0
        self._at_s: float | None = None

    def wait_s(self, now_s: float, max_bytes_per_s: float | None) -> float:
        """Seconds until the next bytes may go, if the limit does not change. None and 0 mean no
        limit."""
        at_s, self._at_s = self._at_s, now_s
        if not max_bytes_per_s:
            self._owed_bytes = 0.0
        elif at_s is not None:
            self._owed_bytes = max(0.0, self._owed_bytes - (now_s - at_s) * max_bytes_per_s)
        return self._owed_bytes / max_bytes_per_s if max_bytes_per_s else 0.0

    def take(self, num_bytes: int) -> None:
        """Adds bytes that are sent now. May be called only after `wait_s` returned 0."""
        self._owed_bytes += num_bytes


log = logging.getLogger(__name__)

# -- the stream ------------------------------------------------------------------------


# -- a stage on its way ----------------------------------------------------------------


class CopyJob:
    """One side of a stage: its blocks, and the future that says how the copy ended.

    The job is made on the event loop's thread, and a link's thread works on it. The future is done
    only when no thread touches the blocks any more. `fail` may return earlier than that."""

    def __init__(self, peer_key: tuple[str, int], block_ids: Sequence[int]) -> None:
        self.peer_key = peer_key
        self.block_ids = tuple(block_ids)
        self.num_done = 0
        """How many blocks are done; only the link's thread writes it."""
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
        """Called when the stage's turn on the link has come. Its copy time counts from now."""
        self._began_s = time.perf_counter()

    @contextlib.contextmanager
    def hands_on(self) -> Iterator[bool]:
        """A context for all code that touches the blocks. It yields False if they must not be
        touched any more."""
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
        """Ends the job with an error. May be called from any thread. Does nothing if the job has
        ended."""
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


# -- the link, from both ends ----------------------------------------------------------

# How many slices are under way at once: the destination scatters one slice and receives the next,
# while the source gathers another.
DEPTH = 2


@dataclass(frozen=True, slots=True)
class Ends:
    """What all links of an instance share."""

    door: Door
    blocks: KvBlocks
    slice_blocks: int

    @property
    def slice_bytes(self) -> int:
        """The size of a slice. Both ends of a link must have the same size."""
        return self.slice_blocks * self.blocks.block_bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """What the destination tells the source: where it waits, and its secret."""

    address: str
    secret: bytes


class LinkClosedError(Exception):
    """This end gave up the link, or the other end did not come."""


class Link(ABC):
    """One end of a link, with its thread. `on_over` is called on this thread, as its last
    action."""

    def __init__(
        self, name: str, peer: Peer, ends: Ends, on_over: Callable[["Link"], None]
    ) -> None:
        self.name = name
        self.peer = peer
        self.secret = new_secret()
        self._ends = ends
        self._on_over = on_over
        self._met: SimpleQueue[Answer | socket.socket | None] = SimpleQueue()
        """What the other end sent to open the link: the destination's answer, or the source's
        connection. None: the link must not open."""
        self._connection: Connection | None = None
        self._why: str | None = None
        """Why the link must end or has ended; None while it may be used."""
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"kv {name}", daemon=True)

    @property
    def over(self) -> bool:
        return self._why is not None

    def start(self) -> None:
        self._thread.start()

    def meet(self, other: Answer | socket.socket) -> None:
        """Passes on the destination's answer, or the source's connection. May be called from any
        thread."""
        self._met.put(other)

    def break_off(self, why: str) -> None:
        """Ends the link. May be called from any thread, and returns at once. The link's stages fail
        at once. If the link is still being opened, its thread ends within three times
        OPEN_TIMEOUT_S."""
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
        """Makes the link's thread check again what it waits for. May be called from any thread."""
        with self._changed:
            self._changed.notify_all()

    def join(self) -> None:
        """Waits for the thread to end. Must be called after `on_over`."""
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
            raise LinkClosedError("the link is not wanted any more")
        return met

    def _keep(self, connection: Connection) -> Connection:
        """Stores the connection, so that `break_off` can end it. Raises LinkClosedError if
        `break_off` was called before."""
        with self._changed:
            self._connection = connection
            wanted = self._why is None
        if not wanted:
            with connection:
                raise LinkClosedError("the link is not wanted any more")
        return connection

    @abstractmethod
    def _open(self) -> Connection:
        """Connects, and returns when each end has proved that it knows the link's key."""

    @abstractmethod
    def _work(self, connection: Connection) -> None: ...

    @abstractmethod
    def _fail_all(self, why: str) -> None:
        """Fails the present stages. Later stages may use the next link."""


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
        """The time since which this end has waited for the other end to come or to take a slice."""
        self._num_on_their_way = 0
        """How many slices were sent that the other end has not taken yet."""

    @property
    def stalled_s(self) -> float:
        """How long this end has waited for the other end. May be called from any thread."""
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
        """Waits for the next job. Returns None if the link must end."""
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
        """Copies the blocks into the buffer. Returns None if the job has ended."""
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
        """Waits until the limit allows more bytes. `wake` makes it check the limit again."""
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

# How many unexpected stages are remembered. If such a stage is expected later, its job fails at
# once, because its bytes are gone.
MAX_DROPPED = 256


class ExpectedStages:
    """The stages that a peer is expected to send, over any of its links. The event loop's thread
    adds jobs; the thread of the peer's link adds slices."""

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
        """Fails the jobs. With `only_begun`, jobs without a slice are spared, because their stage
        may come over another link."""
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
        """Writes the slice. Returns why the job fails; None if it does not."""
        end = header.first + header.num_blocks
        if header.first != job.num_done or end > len(job.block_ids):
            return f"blocks {header.first} to {end} came, in place of those after {job.num_done}"
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
    """Receives slices and writes them into the blocks of the stages that are expected."""

    def __init__(self, *args: Any, source_secret: bytes, expected: ExpectedStages) -> None:
        super().__init__(*args)
        self._key = LinkKey(self.name, source_secret, self.secret)
        self._expected = expected
        self._superseded = False

    def invite(self) -> Answer:
        """Lets the door admit the source, and returns the answer for it. Must be called before
        `start`."""
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


# -- the port --------------------------------------------------------------------------------------

OPEN, HERE, OVER = b"open", b"here", b"over"
# Measured by benchmarks.transfer, 30 MB in blocks of 128 KiB on two cores with other work: 0.6-0.9
# GB/s with slices of 1 MiB, 1.2-1.3 with 2 MiB, 1.0-1.6 with 4 MiB; one block takes 0.8-0.9 ms with
# each size. Each end of a link has a buffer of one slice. The bandwidth limit delays whole slices:
# at 100 MB/s a slice takes 20 ms.
SLICE_BYTES = 2 << 20
# A source that opens a link waits three times: for an answer, for the connection, and for a proof.
CLOSE_TIMEOUT_S = 3 * OPEN_TIMEOUT_S + 1.0

PeerKey = tuple[str, int]


class TcpKvTransfer:
    """Copies blocks between instances over TCP. `host`: the address at which other instances reach
    this one, and at which the door listens."""

    def __init__(
        self, me: Callable[[], InstanceRef], host: str, slice_bytes: int = SLICE_BYTES
    ) -> None:
        self._max_bytes_per_s: float | None = None
        self._me = me
        self._host = host
        self._slice_bytes = slice_bytes
        self._sending: dict[PeerKey, SendingLink] = {}
        self._receiving: dict[PeerKey, ReceivingLink] = {}
        self._links: dict[str, Link] = {}
        """Each link by its name, until its thread has ended."""
        self._expected: dict[PeerKey, ExpectedStages] = {}
        self._jobs: dict[str, CopyJob] = {}
        self._incarnations: dict[str, int] = {}
        """For each peer, the newest incarnation that is known."""
        self._numbers = itertools.count(1)
        self._accepted: dict[PeerKey, tuple[int, str]] = {}
        """For each peer, the number and the name of the last link that it opened."""
        self._ends: Ends | None = None
        self._all_over = asyncio.Event()

    @property
    def max_bytes_per_s(self) -> float | None:
        return self._max_bytes_per_s

    @max_bytes_per_s.setter
    def max_bytes_per_s(self, limit: float | None) -> None:
        self._max_bytes_per_s = limit
        for link in self._links.values():
            link.wake()

    def start(self, blocks: KvBlocks, tell: Callable[[Peer, Frames], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._tell = tell
        self._loads = BlockLoads(blocks)
        block_bytes = max(1, blocks.block_bytes)  # 0 where requests cannot move
        self._ends = Ends(Door(self._host), blocks, max(1, self._slice_bytes // block_bytes))

    def told(self, peer: Peer, frames: Frames) -> None:
        kind, name_bytes, *rest = (bytes(frame) for frame in frames)
        name = name_bytes.decode()
        if kind == OPEN:
            if not self._accept(peer, name, int(rest[0]), rest[1]):
                self._tell(peer, (OVER, name_bytes))
            return
        link = self._links.get(name)
        if link is None or link.peer.key != peer.key:
            return
        if kind == HERE:
            link.meet(Answer(rest[0].decode(), rest[1]))
        elif kind == OVER:
            self._drop(link)
            link.break_off("the other end of the link is over")

    def warm_up(self, peer: Peer) -> None:
        if self._is_current(peer):
            self._link_to(peer)

    def send(
        self, peer: Peer, stage_id: str, block_ids: Sequence[int]
    ) -> asyncio.Future[StageCopy]:
        job = self._job(peer, stage_id, block_ids)
        if not block_ids:  # the destination gets an empty stage, too
            job.finish(0)
        if not self._is_current(peer):
            job.fail(f"{peer.instance_id} is gone")
        else:
            self._link_to(peer).add(stage_key(stage_id), job)
        return job.future

    def receive(
        self, peer: Peer, stage_id: str, block_ids: Sequence[int]
    ) -> asyncio.Future[StageCopy]:
        job = self._job(peer, stage_id, block_ids)
        if not block_ids:
            job.finish(0)
        elif not self._is_current(peer):
            job.fail(f"{peer.instance_id} is gone")
        else:
            stage, expected = stage_key(stage_id), self._expected_of(peer)
            expected.add(stage, job)
            self._tell_if_over(peer)
            job.future.add_done_callback(lambda _: expected.remove(stage))
        return job.future

    def load(
        self, stage_id: str, from_ids: Sequence[int], to_ids: Sequence[int]
    ) -> asyncio.Future[StageCopy]:
        return self._loads.begin(stage_id, from_ids, to_ids)

    def cancel(self, stage_id: str) -> None:
        self._loads.cancel(stage_id)
        if job := self._jobs.get(stage_id):
            job.fail("cancelled")
            for link in self._sending.values():
                link.wake()

    def stalled_s(self, peer: Peer) -> float:
        link = self._sending.get(peer.key)
        return 0.0 if link is None else link.stalled_s

    def forget(self, peer: Peer) -> None:
        for job in self._jobs.values():
            if job.peer_key == peer.key:
                job.fail(f"{peer.instance_id} is gone")
        for links in (self._sending, self._receiving):
            if link := links.pop(peer.key, None):
                link.break_off("its other end is gone")
        self._expected.pop(peer.key, None)

    async def close(self) -> None:
        """Ends all threads, except a thread that hangs in `KvBlocks`."""
        ends, self._ends = self._ends, None
        if ends is None:
            return
        for job in self._jobs.values():
            job.fail("the transfer is closed")
        for link in self._links.values():
            if self._drop(link):
                self._tell(link.peer, (OVER, link.name.encode()))
            link.break_off("the transfer is closed")
        if self._links:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_over.wait(), CLOSE_TIMEOUT_S)
        for name in self._links:
            log.error("link %s does not end", name)
        ends.door.close()

    # -- links -----------------------------------------------------------------------------

    def _job(self, peer: Peer, stage_id: str, block_ids: Sequence[int]) -> CopyJob:
        """Makes the job of a stage. Raises ValueError if the stage is under way already."""
        if stage_id in self._jobs:
            raise ValueError(f"stage {stage_id} is under way already")
        job = self._jobs[stage_id] = CopyJob(peer.key, block_ids)
        job.future.add_done_callback(lambda _: self._jobs.pop(stage_id))
        return job

    def _is_current(self, peer: Peer) -> bool:
        """Whether the peer has no newer incarnation. False for all peers once the transfer is
        closed. The first message from a newer incarnation ends the links and stages of the one
        before."""
        newest = self._incarnations.get(peer.instance_id, 0)
        if peer.incarnation > newest:
            self._incarnations[peer.instance_id] = peer.incarnation
            self._accepted.pop((peer.instance_id, newest), None)
            for link in list(self._links.values()):
                if link.peer.key == (peer.instance_id, newest):
                    self.forget(link.peer)
        return peer.incarnation >= newest and self._ends is not None

    def _link_to(self, peer: Peer) -> SendingLink:
        assert self._ends is not None
        link = self._sending.get(peer.key)
        if link is None or link.over:
            name = f"{_between(self._me(), peer)}#{next(self._numbers)}"
            link = SendingLink(
                *self._parts(peer, name), max_bytes_per_s=lambda: self._max_bytes_per_s
            )
            self._sending[peer.key] = self._links[name] = link
            size = b"%d" % self._ends.slice_bytes
            self._tell(peer, (OPEN, name.encode(), size, link.secret))
            link.start()
        return link

    def _accept(self, peer: Peer, name: str, slice_bytes: int, secret: bytes) -> bool:
        """Accepts a link, unless the peer has opened a newer one: a peer that opens a new link has
        given up its earlier links."""
        between, _, digits = name.rpartition("#")
        number = int(digits)
        known = self._is_current(peer) and between == _between(peer, self._me())
        if not known or self._ends is None or number <= self._last(peer)[0]:
            log.warning("link %s is refused: a newer one was opened, or its source is gone", name)
            return False
        if slice_bytes != self._ends.slice_bytes:
            log.error("link %s is refused: its slices are %d bytes", name, slice_bytes)
            return False
        self._accepted[peer.key] = number, name
        if (before := self._receiving.pop(peer.key, None)) is not None:
            before.supersede()
        expected = self._expected_of(peer)
        link = ReceivingLink(*self._parts(peer, name), source_secret=secret, expected=expected)
        self._receiving[peer.key] = self._links[name] = link
        answer = link.invite()
        self._tell(peer, (HERE, name.encode(), answer.address.encode(), answer.secret))
        link.start()
        return True

    def _last(self, peer: Peer) -> tuple[int, str]:
        return self._accepted.get(peer.key, (0, ""))

    def _tell_if_over(self, peer: Peer) -> None:
        """Tells the source that its link is over. The source does not notice this while it has
        nothing to send. Once it knows, it opens another link before it sends the stage that is
        expected now."""
        number, name = self._last(peer)
        link = self._receiving.get(peer.key)
        if number and (link is None or link.over):
            self._tell(peer, (OVER, name.encode()))

    def _expected_of(self, peer: Peer) -> ExpectedStages:
        assert self._ends is not None
        if peer.key not in self._expected:
            self._expected[peer.key] = ExpectedStages(self._ends.blocks)
        return self._expected[peer.key]

    def _parts(self, peer: Peer, name: str) -> tuple[Any, ...]:
        return name, peer, self._ends, lambda link: self._soon(self._remove, link)

    def _soon(self, call: Callable[..., None], *args: Any) -> None:
        """Calls `call` on the event loop. It is used on a link's thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(call, *args)

    def _remove(self, link: Link) -> None:
        link.join()
        del self._links[link.name]
        if self._drop(link):
            self._tell(link.peer, (OVER, link.name.encode()))
        if self._ends is None and not self._links:
            self._all_over.set()

    def _drop(self, link: Link) -> bool:
        """Drops the link. Returns False if the link was dropped before. In that case its other end
        knows that the link is over, or is gone."""
        for links in (self._sending, self._receiving):
            if links.get(link.peer.key) is link:
                del links[link.peer.key]
                return True
        return False


def _between(source: InstanceRef, destination: InstanceRef) -> str:
    return (
        f"{source.instance_id}/{source.incarnation}"
        f">{destination.instance_id}/{destination.incarnation}"
    )
