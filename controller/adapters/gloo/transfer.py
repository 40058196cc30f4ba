"""The KvTransfer port over Gloo. See `link` for what happens to the bytes."""

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from functools import partial

from torch.distributed import ProcessGroupGloo

from controller.adapters.gloo import wire
from controller.adapters.gloo.copy_job import CopyJob
from controller.adapters.gloo.link import DESTINATION, SOURCE, Link, ReceivingLink, SendingLink
from controller.core.instance_ref import InstanceRef
from controller.ports.frames import Frames
from controller.ports.kv_transfer import Peer, StageCopy
from controller.ports.moves import KvBlocks

log = logging.getLogger(__name__)

OPEN, KEY, OVER = b"open", b"key", b"over"
JOIN_S = 2.0


class GlooKvTransfer:
    """`host` is the address of this instance that others can reach; Gloo listens there."""

    def __init__(self, me: Callable[[], InstanceRef], host: str) -> None:
        self.max_bytes_per_s: float | None = None
        self._me = me
        self._host = host
        self._sending: dict[tuple[str, int], SendingLink] = {}
        self._receiving: dict[tuple[str, int], ReceivingLink] = {}
        self._by_name: dict[str, Link] = {}
        self._jobs: dict[str, CopyJob] = {}
        self._numbers = itertools.count(1)
        self._loop: asyncio.AbstractEventLoop

    def start(self, blocks: KvBlocks, tell: Callable[[Peer, Frames], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._blocks = blocks
        self._tell = tell
        self._device = ProcessGroupGloo.create_device(hostname=self._host)

    def told(self, peer: Peer, frames: Frames) -> None:
        kind, name, *rest = (bytes(frame) for frame in frames)
        if kind == OPEN:
            self._accept(peer, name.decode())
        elif kind == KEY and (link := self._by_name.get(name.decode())):
            link.store.put(rest[0].decode(), rest[1])
        elif kind == OVER and (link := self._by_name.get(name.decode())):
            link.break_off()

    def warm_up(self, peer: Peer) -> None:
        self._link_to(peer)

    def send(
        self, peer: Peer, stage_id: str, block_ids: Sequence[int]
    ) -> asyncio.Future[StageCopy]:
        """An empty stage is said too: the other end may expect more."""
        job = self._job(stage_id, block_ids)
        self._link_to(peer).add(wire.stage_key(stage_id), job)
        return job.future

    def receive(
        self, peer: Peer, stage_id: str, block_ids: Sequence[int]
    ) -> asyncio.Future[StageCopy]:
        job = self._job(stage_id, block_ids)
        if not block_ids:
            job.finish()
        elif link := self._receiving.get(peer.key):
            link.expect(wire.stage_key(stage_id), job)
        else:
            job.cancel("its source has opened no link")
        return job.future

    def cancel(self, stage_id: str) -> None:
        if job := self._jobs.get(stage_id):
            job.cancel()

    def forget(self, peer: Peer) -> None:
        for links in (self._sending, self._receiving):
            if link := links.pop(peer.key, None):
                link.break_off()

    async def close(self) -> None:
        links = list(self._by_name.values())
        for link in links:
            link.break_off()
        for link in links:
            await asyncio.to_thread(link.join, JOIN_S)

    def _job(self, stage_id: str, block_ids: Sequence[int]) -> CopyJob:
        job = self._jobs[stage_id] = CopyJob(block_ids, self._blocks.block_bytes)
        job.future.add_done_callback(lambda _done: self._jobs.pop(stage_id, None))
        return job

    def _link_to(self, peer: Peer) -> SendingLink:
        link = self._sending.get(peer.key)
        if link is None:
            me = self._me()
            name = (
                f"{me.instance_id}/{me.incarnation}>{peer.instance_id}/{peer.incarnation}"
                f"#{next(self._numbers)}"
            )
            link = SendingLink(*self._parts(peer, name, SOURCE), limit=lambda: self.max_bytes_per_s)
            self._sending[peer.key] = self._by_name[name] = link
            self._tell(peer, (OPEN, name.encode()))
            link.start()
        return link

    def _accept(self, peer: Peer, name: str) -> None:
        """The last one that a peer opened counts: it gave up the ones before."""
        if (before := self._receiving.pop(peer.key, None)) is not None:
            before.break_off()
        link = ReceivingLink(*self._parts(peer, name, DESTINATION))
        self._receiving[peer.key] = self._by_name[name] = link
        link.start()

    def _parts(self, peer: Peer, name: str, rank: int) -> tuple[object, ...]:
        def publish(key: str, value: bytes) -> None:
            message = (KEY, name.encode(), key.encode(), value)
            self._loop.call_soon_threadsafe(self._tell, peer, message)

        on_broken = partial(self._on_broken, peer)
        return name, rank, self._device, self._blocks, publish, on_broken

    def _on_broken(self, peer: Peer, link: Link) -> None:
        """On the link's thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._remove, peer, link)

    def _remove(self, peer: Peer, link: Link) -> None:
        self._by_name.pop(link.name, None)
        for links in (self._sending, self._receiving):
            if links.get(peer.key) is link:
                del links[peer.key]
        self._tell(peer, (OVER, link.name.encode()))
