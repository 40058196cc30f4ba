"""How fast the KV link is: stages as a move copies them, between two ends on this machine.

Both ends are in this process and on one engine, whose blocks are free: the source gathers some, and
the destination scatters them into others. Their copies and sockets release the GIL, so two
processes are not faster: in turn, on two busy cores, 0.18, 0.20 and 0.18 GB/s here, and 0.17, 0.13
and 0.17 by benchmarks.transfer. The fastest of the rounds counts: a wait for a core cannot be told
from a copy here, as several threads wait for each other.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial

from controller.adapters.tcp.transfer import TcpKvTransfer
from controller.main.profile.points import LinkFigures
from controller.ports.frames import Frames
from controller.ports.kv_transfer import Peer
from controller.ports.moves import KvBlocks

HOST = "127.0.0.1"
SOURCE, DESTINATION = Peer("source", 1, ""), Peer("destination", 1, "")
STAGE_BYTES = 32 << 20
"""A stage of some 8,000 tokens of the embedded model. On a large model it is a late stage."""
NUM_ROUNDS = 10


def measure_link(blocks: KvBlocks, num_blocks: int) -> LinkFigures:
    """`num_blocks`: of the engine, all free and none of them cached. The first is left alone, as
    vLLM keeps it empty. Raises TransferError."""
    return asyncio.run(_measure(blocks, num_blocks))


async def _measure(blocks: KvBlocks, num_blocks: int) -> LinkFigures:
    num_copied = max(1, min(STAGE_BYTES // blocks.block_bytes, (num_blocks - 1) // 2))
    source, destination = (
        TcpKvTransfer(lambda: SOURCE, HOST),
        TcpKvTransfer(lambda: DESTINATION, HOST),
    )
    source.start(blocks, _to(destination, SOURCE))
    destination.start(blocks, _to(source, DESTINATION))
    here, there = range(1, num_copied + 1), range(num_copied + 1, 2 * num_copied + 1)
    copy = partial(_copy, source, destination)
    try:
        await copy("warm-up", here, there)
        stages, single = [], []
        for number in range(NUM_ROUNDS):
            stages.append(await copy(f"{number}/all", here, there))
            single.append(await copy(f"{number}/one", here[:1], there[:1]))
    finally:
        await asyncio.gather(source.close(), destination.close())
    return LinkFigures(num_copied * blocks.block_bytes, min(stages), min(single))


def _to(transfer: TcpKvTransfer, sender: Peer) -> Callable[[Peer, Frames], None]:
    """Tells it, as another process would: not before the caller is done."""

    def tell(_: Peer, frames: Frames) -> None:
        asyncio.get_running_loop().call_soon(transfer.told, sender, frames)

    return tell


async def _copy(
    source: TcpKvTransfer, destination: TcpKvTransfer, stage_id: str, here: range, there: range
) -> float:
    """Seconds until the destination has all of a stage."""
    received = destination.receive(SOURCE, stage_id, there)
    began_s = time.perf_counter()
    sent = source.send(DESTINATION, stage_id, here)
    await received
    took_s = time.perf_counter() - began_s
    await sent
    return took_s
