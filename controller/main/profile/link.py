"""How fast the KV link is: stages as a move copies them, to another process of this machine.

The source gathers blocks of the engine, all of them free; the other process has blocks in main
memory, and nothing else. Within one process a copy was a fifth faster (1.5 GB/s instead of 1.2) and
one block took half as long, as nobody had to be woken. The fastest of the rounds counts: a wait for
a core cannot be told from a copy here, as several threads wait for each other.
"""

import asyncio
import multiprocessing
import time
from multiprocessing.connection import Connection

from controller.main.profile.link_end import (
    DESTINATION,
    EXPECT,
    FAILED,
    SOURCE,
    LinkEnd,
    receive_all,
)
from controller.main.profile.points import LinkFigures
from controller.ports.engine import KvBlocks
from controller.ports.kv_transfer import TransferError

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


async def _copy(end: LinkEnd, stage_id: str, num_blocks: int) -> float:
    """Seconds until the other process said that it has all of a stage."""
    end.say(EXPECT, (stage_id, num_blocks))
    await end.hear(COPY_TIMEOUT_S)  # it expects the stage
    began_s = time.perf_counter()
    await end.transfer.send(DESTINATION, stage_id, range(1, num_blocks + 1))
    kind, why = await end.hear(COPY_TIMEOUT_S)
    if kind == FAILED:
        raise TransferError(f"the other process did not get a stage: {why}")
    return time.perf_counter() - began_s
