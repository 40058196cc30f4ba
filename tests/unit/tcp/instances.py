"""Instances for the tests of the transfer: bytes for blocks, and a mailbox between them."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence

from controller.adapters.tcp.link_stream import LinkKey, link_id
from controller.adapters.tcp.transfer import TcpKvTransfer
from controller.ports.engine import Frames, Peer, StageCopy, TransferError

PATIENCE_S = 20.0
BLOCK_BYTES = 1000
SLICE_BYTES = 4 * BLOCK_BYTES


class ByteBlocks:
    """KvBlocks over one bytearray. A test that closes the `gate` holds up any thread that
    copies."""

    def __init__(self, num_blocks: int, block_bytes: int = BLOCK_BYTES) -> None:
        self.block_bytes = block_bytes
        self.memory = bytearray(num_blocks * block_bytes)
        self.touched: list[tuple[int, ...]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.missing: int | None = None

    def buffer(self, num_blocks: int) -> bytearray:
        return bytearray(num_blocks * self.block_bytes)

    def gather(self, block_ids: Sequence[int], into: bytearray) -> memoryview:
        self._touch(block_ids)
        filled = self.writable(into, len(block_ids))
        filled[:] = b"".join(self.content([n]) for n in block_ids)
        return filled

    def scatter(self, block_ids: Sequence[int], buffer: bytearray) -> None:
        self._touch(block_ids)
        size = self.block_bytes
        for position, n in enumerate(block_ids):
            self.memory[n * size : (n + 1) * size] = buffer[position * size : (position + 1) * size]

    def writable(self, buffer: bytearray, num_blocks: int) -> memoryview:
        return memoryview(buffer)[: num_blocks * self.block_bytes]

    def content(self, block_ids: Sequence[int]) -> bytes:
        size = self.block_bytes
        return b"".join(bytes(self.memory[n * size : (n + 1) * size]) for n in block_ids)

    def number(self, seed: int = 0) -> None:
        """Fills every block with its own number."""
        size = self.block_bytes
        for n in range(len(self.memory) // size):
            word = b"%d/%d " % (seed, n)
            self.memory[n * size : (n + 1) * size] = (word * (size // len(word) + 1))[:size]

    def _touch(self, block_ids: Sequence[int]) -> None:
        self.touched.append(tuple(block_ids))
        assert self.gate.wait(PATIENCE_S)
        if self.missing is not None:
            raise KeyError(self.missing)


class Instance:
    """One side. Its messages reach the other sides on the next turn of the event loop, or are held
    back."""

    def __init__(
        self,
        name: str,
        incarnation: int = 1,
        *,
        num_blocks: int = 100,
        block_bytes: int = BLOCK_BYTES,
        host: str = "127.0.0.1",
    ) -> None:
        self.peer = Peer(name, incarnation, f"at {name}")
        self.blocks = ByteBlocks(num_blocks, block_bytes=block_bytes)
        self.transfer = TcpKvTransfer(lambda: self.peer, host, SLICE_BYTES)
        self.others: dict[str, Instance] = {}
        self.told: list[tuple[bytes, ...]] = []
        """Every message of this side: a kind, the link's name, and more."""
        self.held: list[tuple[Peer, Frames]] | None = None
        self.transfer.start(self.blocks, self.tell)

    def tell(self, peer: Peer, frames: Frames) -> None:
        self.told.append(tuple(bytes(frame) for frame in frames))
        if (other := self.others.get(peer.instance_id)) is not None:
            asyncio.get_running_loop().call_soon(other.hear, self.peer, frames)

    def hear(self, peer: Peer, frames: Frames) -> None:
        if self.held is None:
            self.transfer.told(peer, [memoryview(frame) for frame in frames])
        else:
            self.held.append((peer, frames))

    def hear_what_was_held(self) -> None:
        held, self.held = self.held, None
        for message in held or ():
            self.hear(*message)

    def said(self, kind: bytes) -> list[tuple[bytes, ...]]:
        return [message for message in self.told if message[0] == kind]


def connect(*instances: Instance) -> None:
    for instance in instances:
        instance.others = {other.peer.instance_id: other for other in instances}


def num_opened(source: Instance) -> int:
    return len(source.said(b"open"))


def last_link(source: Instance, destination: Instance) -> tuple[str, LinkKey]:
    """The name and the key of the link that was opened last."""
    _, name, _, source_secret = source.said(b"open")[-1]
    _, named, _, destination_secret = destination.said(b"here")[-1]
    assert named == name
    return name.decode(), LinkKey(name.decode(), source_secret, destination_secret)


def greeting_of(link: tuple[str, LinkKey]) -> bytes:
    name, key = link
    return link_id(name) + key.proof_of_source()


def link_threads() -> list[str]:
    """Of all instances of this process."""
    return [t.name for t in threading.enumerate() if t.name.startswith("kv i-")]


async def outcome(copy: Awaitable[StageCopy]) -> StageCopy:
    return await asyncio.wait_for(copy, PATIENCE_S)


async def error_of(copy: "asyncio.Future[StageCopy]") -> str:
    try:
        await outcome(copy)
    except TransferError as error:
        return str(error)
    raise AssertionError("the copy went through")


async def until(condition: Callable[[], bool]) -> None:
    """Waits for a condition that no event announces."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.005)


Make = Callable[..., Instance]


def begin(
    source: Instance, destination: Instance, stage_id: str, num_blocks: int, first: int = 0
) -> tuple["asyncio.Future[StageCopy]", "asyncio.Future[StageCopy]"]:
    """A stage of the same blocks on both sides: its send and its receive."""
    places = range(first, first + num_blocks)
    received = destination.transfer.receive(source.peer, stage_id, places)
    return source.transfer.send(destination.peer, stage_id, places), received


async def copy(source: Instance, destination: Instance, stage_id: str, num_blocks: int = 9) -> None:
    """The copy succeeds, and the bytes are right."""
    sent, received = begin(source, destination, stage_id, num_blocks)
    await outcome(sent)
    await outcome(received)
    places = range(num_blocks)
    assert destination.blocks.content(places) == source.blocks.content(places)
