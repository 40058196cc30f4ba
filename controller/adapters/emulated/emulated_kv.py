"""The emulated KV blocks and their copies (`controller.ports.engine`). A copy takes as long as the
profile says, but sends only a few bytes. A load from the host cache takes as long as its blocks
would at `HOST_BYTES_PER_S`.

The content of a block is a digest of 16 bytes (see emulated_engine.py). A stage takes as long as
its blocks would take at the profile's copy rate, or at the limit if that is lower. Then the digests
go to the peer in one message, and the stage is over when the peer has answered that it took them.
So a peer that hangs blocks the link, as a real one would. The event loop does all of this."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from controller.core.migration.prefix_fetch import HOST_BYTES_PER_S
from controller.model.profile import LatencyProfile
from controller.ports.engine import Frames, KvBlocks, Peer, StageCopy, TransferError

DIGEST_BYTES = 16
NOTHING = bytes(DIGEST_BYTES)
"""The content of a block that is reserved and not yet filled."""


class EmulatedBlocks:
    """A block gets a number only for a move, and a new number for each move. The engine's thread
    adds and removes blocks. Any thread reads and fills them, each by a single operation on a
    dict."""

    def __init__(self, block_bytes: int) -> None:
        self.block_bytes = block_bytes
        self._contents: dict[int, bytes] = {}
        self._num_made = 0

    def buffer(self, num_blocks: int) -> bytearray:
        return bytearray(num_blocks * DIGEST_BYTES)

    def gather(self, block_ids: Sequence[int], into: bytearray) -> memoryview:
        """Copies the blocks into the buffer. Raises KeyError if a block is not pinned, suspended or
        reserved any more."""
        filled = self.writable(into, len(block_ids))
        filled[:] = b"".join([self._contents[block_id] for block_id in block_ids])
        return filled

    def scatter(self, block_ids: Sequence[int], buffer: bytearray) -> None:
        """Fills the blocks from the buffer. Raises KeyError if a block is not reserved any more."""
        for position, block_id in enumerate(block_ids):
            if block_id not in self._contents:
                raise KeyError(block_id)
            start = position * DIGEST_BYTES
            self._contents[block_id] = bytes(buffer[start : start + DIGEST_BYTES])

    def writable(self, buffer: bytearray, num_blocks: int) -> memoryview:
        return memoryview(buffer)[: num_blocks * DIGEST_BYTES]

    def make(self, contents: Sequence[bytes]) -> tuple[int, ...]:
        first = self._num_made
        self._num_made += len(contents)
        made = range(first, self._num_made)
        self._contents.update(zip(made, contents, strict=True))
        return tuple(made)

    def contents(self, block_ids: Sequence[int]) -> list[bytes]:
        return [self._contents[block_id] for block_id in block_ids]

    def drop(self, block_ids: Sequence[int]) -> None:
        for block_id in block_ids:
            del self._contents[block_id]


# -- their copies ----------------------------------------------------------------------------------

_Link = tuple[str, int]
_HOST: _Link = ("its host cache", 0)
Tell = Callable[[Peer, Frames], None]

STAGE, TAKEN, REFUSED = b"stage", b"taken", b"refused"
SLICE_S = 0.02
"""The copy's time is divided into slices of this length; a new limit applies from the next slice
on."""


@dataclass(slots=True)
class _Copy:
    """One side of a stage under way. `began_s`: at the destination, when it began to expect the
    stage; at the source, when the stage's turn on the link came. `answered`: whether the peer took
    the stage; only the source uses it."""

    link: _Link
    block_ids: Sequence[int]
    future: asyncio.Future[StageCopy]
    began_s: float
    answered: asyncio.Future[bool]
    task: asyncio.Task[None] | None = None


class EmulatedKvTransfer:
    """Copies emulated blocks to other instances, and loads them from the own host cache. `speed`:
    how many times as fast as on a machine of the profile the copies are. The limit is scaled as
    well; it does not hold for loads."""

    def __init__(self, profile: LatencyProfile, speed: float) -> None:
        self.max_bytes_per_s: float | None = None
        self._copy_bytes_per_s = profile.copy_bytes_per_s
        self._speed = speed
        self._sends: dict[str, _Copy] = {}
        self._receives: dict[str, _Copy] = {}
        self._loads: dict[str, _Copy] = {}
        self._turns: dict[_Link, asyncio.Lock] = {}
        self._waiting_since_s: dict[_Link, float] = {}
        """For each link, since when it has waited for the peer to confirm a stage."""

    def start(self, blocks: KvBlocks, tell: Tell) -> None:
        self._blocks = blocks
        self._tell = tell

    def told(self, peer: Peer, frames: Frames) -> None:
        kind, stage, *contents = (bytes(frame) for frame in frames)
        if kind == STAGE:
            self._take(peer, stage, contents[0])
            return
        copy = self._sends.get(stage.decode())
        if copy is not None and copy.link == peer.key and not copy.answered.done():
            copy.answered.set_result(kind == TAKEN)

    def warm_up(self, peer: Peer) -> None:
        """Does nothing: there is no link to open."""

    def send(
        self, peer: Peer, stage_id: str, block_ids: Sequence[int]
    ) -> asyncio.Future[StageCopy]:
        copy = self._begin(self._sends, peer.key, stage_id, block_ids)
        copy.task = asyncio.get_running_loop().create_task(self._run(peer, stage_id, copy))
        return copy.future

    def receive(
        self, peer: Peer, stage_id: str, block_ids: Sequence[int]
    ) -> asyncio.Future[StageCopy]:
        return self._begin(self._receives, peer.key, stage_id, block_ids).future

    def load(
        self, stage_id: str, from_ids: Sequence[int], to_ids: Sequence[int]
    ) -> asyncio.Future[StageCopy]:
        copy = self._begin(self._loads, _HOST, stage_id, to_ids)
        copy.task = asyncio.get_running_loop().create_task(
            self._load(stage_id, copy, tuple(from_ids))
        )
        return copy.future

    def cancel(self, stage_id: str) -> None:
        for copies in (self._sends, self._receives, self._loads):
            self._fail(copies, stage_id, "the copy was cancelled")

    def stalled_s(self, peer: Peer) -> float:
        since_s = self._waiting_since_s.get(peer.key)
        return 0.0 if since_s is None else asyncio.get_running_loop().time() - since_s

    def forget(self, peer: Peer) -> None:
        for copies in (self._sends, self._receives):
            for stage_id in [s for s, copy in copies.items() if copy.link == peer.key]:
                self._fail(copies, stage_id, f"{peer.instance_id} is gone")
        self._turns.pop(peer.key, None)

    async def close(self) -> None:
        under_way = [*self._sends.values(), *self._loads.values()]
        tasks = [copy.task for copy in under_way if copy.task is not None]
        for copies in (self._sends, self._receives, self._loads):
            for stage_id in list(copies):
                self._fail(copies, stage_id, "the transfer is closed")
        await asyncio.gather(*tasks, return_exceptions=True)

    # ------------------------------------------------------------------------------------

    def _begin(
        self, copies: dict[str, _Copy], link: _Link, stage_id: str, block_ids: Sequence[int]
    ) -> _Copy:
        """Notes that a stage is under way. Raises ValueError if it is already under way."""
        if stage_id in copies:
            raise ValueError(f"stage {stage_id} is under way already")
        loop = asyncio.get_running_loop()
        copy = _Copy(
            link, tuple(block_ids), loop.create_future(), loop.time(), loop.create_future()
        )
        copies[stage_id] = copy
        return copy

    async def _run(self, peer: Peer, stage_id: str, copy: _Copy) -> None:
        """Sends the stage once its turn on the link has come."""
        async with self._turns.setdefault(copy.link, asyncio.Lock()):
            copy.began_s = asyncio.get_running_loop().time()
            await self._wait_for_the_copy(len(copy.block_ids), self._link_bytes_per_s)
            buffer = self._blocks.buffer(len(copy.block_ids))
            try:
                contents = bytes(self._blocks.gather(copy.block_ids, buffer))
            except KeyError as error:
                self._fail(self._sends, stage_id, f"block {error} was let go before its copy")
                return
            self._tell(peer, [STAGE, stage_id.encode(), contents])
            self._waiting_since_s[copy.link] = asyncio.get_running_loop().time()
            try:
                taken = await copy.answered
            finally:
                self._waiting_since_s.pop(copy.link, None)
        if taken:
            self._succeed(self._sends, stage_id)
        else:
            self._fail(self._sends, stage_id, f"{peer.instance_id} does not expect the stage")

    async def _load(self, stage_id: str, copy: _Copy, from_ids: Sequence[int]) -> None:
        async with self._turns.setdefault(copy.link, asyncio.Lock()):
            copy.began_s = asyncio.get_running_loop().time()
            await self._wait_for_the_copy(len(from_ids), lambda: HOST_BYTES_PER_S)
            buffer = self._blocks.buffer(len(from_ids))
            try:
                self._blocks.gather(from_ids, buffer)
                self._blocks.scatter(copy.block_ids, buffer)
            except KeyError as error:
                self._fail(self._loads, stage_id, f"block {error} was let go before its copy")
                return
        self._succeed(self._loads, stage_id)

    def _link_bytes_per_s(self) -> float:
        limit = self.max_bytes_per_s
        return self._copy_bytes_per_s if limit is None else min(self._copy_bytes_per_s, limit)

    async def _wait_for_the_copy(self, num_blocks: int, rate: Callable[[], float]) -> None:
        """`rate`: the bytes per second of the next slice, at the speed of the profile."""
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        num_bytes: float = num_blocks * self._blocks.block_bytes
        while num_bytes > 0:
            bytes_per_s = rate()
            slice_bytes = min(num_bytes, bytes_per_s * self._speed * SLICE_S)
            num_bytes -= slice_bytes
            # Each slice ends at a planned time of the clock, so that delays do not add up.
            due_s += slice_bytes / (bytes_per_s * self._speed)
            await asyncio.sleep(due_s - loop.time())

    def _take(self, peer: Peer, stage: bytes, contents: bytes) -> None:
        """Writes a stage's contents into their blocks, if the stage is still expected."""
        stage_id = stage.decode()
        copy = self._receives.get(stage_id)
        if copy is None or copy.link != peer.key:
            self._tell(peer, [REFUSED, stage])
            return
        buffer = self._blocks.buffer(len(copy.block_ids))
        place = self._blocks.writable(buffer, len(copy.block_ids))
        if len(contents) > len(place):
            self._tell(peer, [REFUSED, stage])
            self._fail(self._receives, stage_id, "the stage has more blocks than expected")
            return
        place[: len(contents)] = contents
        copy.block_ids = copy.block_ids[: len(contents) // DIGEST_BYTES]
        try:
            self._blocks.scatter(copy.block_ids, buffer)
        except KeyError as error:
            self._tell(peer, [REFUSED, stage])
            self._fail(self._receives, stage_id, f"block {error} was let go before its copy")
            return
        self._tell(peer, [TAKEN, stage])
        self._succeed(self._receives, stage_id)

    def _succeed(self, copies: dict[str, _Copy], stage_id: str) -> None:
        copy = copies.pop(stage_id)
        took_s = asyncio.get_running_loop().time() - copy.began_s
        num_blocks = len(copy.block_ids)
        if not copy.future.done():
            copy.future.set_result(
                StageCopy(num_blocks, num_blocks * self._blocks.block_bytes, took_s)
            )

    def _fail(self, copies: dict[str, _Copy], stage_id: str, why: str) -> None:
        copy = copies.pop(stage_id, None)
        if copy is None:
            return
        if copy.task is not None:
            copy.task.cancel()
        if not copy.future.done():
            copy.future.set_exception(TransferError(why))
