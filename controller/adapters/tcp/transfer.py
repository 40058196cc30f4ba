"""The KvTransfer port over TCP. See `link` for what happens to the bytes."""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any

from controller.adapters.tcp.door import Door
from controller.adapters.tcp.link import (
    Answer,
    CopyJob,
    Ends,
    ExpectedStages,
    Link,
    ReceivingLink,
    SendingLink,
    stage_key,
)
from controller.core.load.snapshot import InstanceRef
from controller.core.migration.protocol import OPEN_TIMEOUT_S
from controller.ports.engine import Frames, KvBlocks, Peer, StageCopy

log = logging.getLogger(__name__)

OPEN, HERE, OVER = b"open", b"here", b"over"
# benchmarks.transfer, 30 MB in blocks of 128 KiB on two cores with other work: 0.6-0.9 GB/s with
# slices of 1 MiB, 1.2-1.3 with 2 MiB, 1.0-1.6 with 4 MiB; one block takes 0.8-0.9 ms with any. Each
# end of a link has a buffer of one slice. The bandwidth limit works in slices: 20 ms at 100 MB/s.
SLICE_BYTES = 2 << 20
# A source that opens waits for an answer, the connection and a proof, one after the other.
CLOSE_TIMEOUT_S = 3 * OPEN_TIMEOUT_S + 1.0

PeerKey = tuple[str, int]


class TcpKvTransfer:
    """`host` is this instance's address for other instances; its door listens there."""

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
        """By name, until their threads end."""
        self._expected: dict[PeerKey, ExpectedStages] = {}
        self._jobs: dict[str, CopyJob] = {}
        self._incarnations: dict[str, int] = {}
        """The newest known incarnation of each peer."""
        self._numbers = itertools.count(1)
        self._accepted: dict[PeerKey, tuple[int, str]] = {}
        """Number and name of the last link that a peer opened."""
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
        if not block_ids:  # the destination gets an empty stage all the same
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

    def cancel(self, stage_id: str) -> None:
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
        """Ends all threads, but for one that hangs in `KvBlocks`."""
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
        """Raises ValueError: the stage is under way already."""
        if stage_id in self._jobs:
            raise ValueError(f"stage {stage_id} is under way already")
        job = self._jobs[stage_id] = CopyJob(peer.key, block_ids)
        job.future.add_done_callback(lambda _: self._jobs.pop(stage_id))
        return job

    def _is_current(self, peer: Peer) -> bool:
        """False for an incarnation that has a successor, and for all peers once this is closed.
        The first message from a successor ends the links and stages of the incarnation before."""
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
        """Accepts a link unless it is older than the peer's last: a peer that opens a new link has
        given up the ones before."""
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
        """Tells the source that its link is over, which it does not notice while it has nothing to
        send. So it opens another link before it sends the stage that is expected now."""
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
        """From a link's thread: calls on the event loop."""
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
        """False if the link was dropped already: its other end knows, or is gone."""
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
