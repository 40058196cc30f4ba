"""How fast the KV link is: stages as a move copies them, to another process of this machine.

The source gathers blocks of the engine, all of them free; the other process has blocks in main
memory, and nothing else. Within one process a copy was a fifth faster (1.5 GB/s instead of 1.2) and
one block took half as long, as nobody had to be woken. The fastest of the rounds counts: a wait for
a core cannot be told from a copy here, as several threads wait for each other.
"""

import asyncio
import contextlib
import multiprocessing
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from controller.adapters.tcp.transfer import TcpKvTransfer
from controller.main.profile.points import LinkFigures
from controller.ports.engine import KvBlocks
from controller.ports.kv_transfer import Peer, TransferError

HOST = "127.0.0.1"
SOURCE, DESTINATION = Peer("source", 1, ""), Peer("destination", 1, "")
TOLD, READY, EXPECT, EXPECTING, RECEIVED, FAILED = (
    "told",
    "ready",
    "expect",
    "expecting",
    "received",
    "failed",
)


STAGE_BYTES = 32 << 20
"""A stage of some 8,000 tokens of the embedded model. On a large model it is a late stage."""
NUM_ROUNDS = 10
START_TIMEOUT_S = 120.0
"""The other process imports torch."""
COPY_TIMEOUT_S = 60.0
END_TIMEOUT_S = 20.0


def measure_link(blocks: KvBlocks, num_blocks: int) -> LinkFigures:
    """`num_blocks`: of the engine, without the first, which vLLM keeps empty. Raises
    TransferError."""
    num_copied = max(1, min(STAGE_BYTES // blocks.block_bytes, num_blocks))
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=receive_all, args=(there, blocks.block_bytes, num_copied), daemon=True
    )
    process.start()
    there.close()
    try:
        return asyncio.run(_measure(here, blocks, num_copied))
    finally:
        here.close()
        process.join(END_TIMEOUT_S)
        process.kill()


async def _measure(pipe: Connection, blocks: KvBlocks, num_copied: int) -> LinkFigures:
    end = LinkEnd(SOURCE, DESTINATION, pipe, blocks)
    try:
        await end.hear(START_TIMEOUT_S)  # it is ready
        await _copy(end, "warm-up", num_copied)
        stages, single = [], []
        for number in range(NUM_ROUNDS):
            stages.append(await _copy(end, f"{number}/all", num_copied))
            single.append(await _copy(end, f"{number}/one", 1))
    finally:
        await end.close()
    return LinkFigures(num_copied * blocks.block_bytes, min(stages), min(single))


async def _copy(end: "LinkEnd", stage_id: str, num_blocks: int) -> float:
    """Seconds until the other process said that it has all of a stage."""
    end.say(EXPECT, (stage_id, num_blocks))
    await end.hear(COPY_TIMEOUT_S)  # it expects the stage
    began_s = time.perf_counter()
    await end.transfer.send(DESTINATION, stage_id, range(1, num_blocks + 1))
    kind, why = await end.hear(COPY_TIMEOUT_S)
    if kind == FAILED:
        raise TransferError(f"the other process did not get a stage: {why}")
    return time.perf_counter() - began_s


class LinkEnd:
    """One end of a link between two processes. It is made on an event loop and closed there.

    TOLD carries the transfer's own messages, which instances send by their mailboxes. All other
    messages are for whoever waits for them."""

    def __init__(self, me: Peer, other: Peer, pipe: Connection, blocks: KvBlocks) -> None:
        self.transfer = TcpKvTransfer(lambda: me, HOST)
        self.transfer.start(blocks, self._tell)
        self._other = other
        self._pipe = pipe
        self._heard: asyncio.Queue[tuple[str, Any] | None] = asyncio.Queue()
        asyncio.get_running_loop().add_reader(pipe.fileno(), self._read)

    def say(self, kind: str, content: Any = None) -> None:
        with contextlib.suppress(OSError):  # the other end is gone, which `hear` says
            self._pipe.send((kind, content))

    async def hear(self, timeout_s: float | None = None) -> tuple[str, Any]:
        """Raises TransferError if the other end is gone, or silent for so long."""
        try:
            found = await asyncio.wait_for(self._heard.get(), timeout_s)
        except TimeoutError:
            raise TransferError(f"nothing came from the other end in {timeout_s:.0f} s") from None
        if found is None:
            raise TransferError("the process at the other end is gone")
        return found

    async def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pipe.fileno())
        await self.transfer.close()

    def _tell(self, _: Peer, frames: Sequence[Any]) -> None:
        self.say(TOLD, [bytes(frame) for frame in frames])

    def _read(self) -> None:
        try:
            while self._pipe.poll():
                kind, content = self._pipe.recv()
                if kind == TOLD:
                    self.transfer.told(self._other, content)
                else:
                    self._heard.put_nowait((kind, content))
        except (EOFError, OSError):
            asyncio.get_running_loop().remove_reader(self._pipe.fileno())
            self._heard.put_nowait(None)


def receive_all(pipe: Connection, block_bytes: int, num_blocks: int) -> None:
    """The process at the destination: it takes each stage that the source announces, until the
    source is gone."""
    from controller.adapters.vllm.worker_side import spare_blocks

    asyncio.run(_receive_all(pipe, spare_blocks(block_bytes, num_blocks)))


async def _receive_all(pipe: Connection, blocks: KvBlocks) -> None:
    end = LinkEnd(DESTINATION, SOURCE, pipe, blocks)
    end.say(READY)
    with contextlib.suppress(TransferError):
        while True:
            _, (stage_id, num_blocks) = await end.hear()
            copy = end.transfer.receive(SOURCE, stage_id, range(num_blocks))
            end.say(EXPECTING)
            try:
                await copy
            except TransferError as error:
                end.say(FAILED, str(error))
            else:
                end.say(RECEIVED)
    await end.close()
