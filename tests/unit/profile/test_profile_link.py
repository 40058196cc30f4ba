"""The link's measurement with another process (with vLLM's blocks at both ends:
tests/contract/test_vllm_profile.py)."""

import asyncio
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import pytest

from controller.main.profile import engine_process
from controller.main.profile.engine_process import _receive_all
from controller.ports.engine import TransferError
from tests.unit.tcp.instances import ByteBlocks

NUM_BLOCKS = 20
BLOCKS = ByteBlocks(NUM_BLOCKS + 1)


def receives(pipe: Connection, block_bytes: int, num_blocks: int) -> None:
    asyncio.run(_receive_all(pipe, ByteBlocks(num_blocks, block_bytes=block_bytes)))


def ends_at_once(pipe: Connection, _block_bytes: int, _num_blocks: int) -> None:
    pipe.close()


def sleeps(_pipe: Connection, _block_bytes: int, _num_blocks: int) -> None:
    time.sleep(60)


@pytest.mark.process
@pytest.mark.parametrize(("most", "num_copied"), [(7, 7), (64, NUM_BLOCKS), (0, 1)])
def test_stages_are_copied(most: int, num_copied: int, monkeypatch: pytest.MonkeyPatch) -> None:
    size = BLOCKS.block_bytes
    monkeypatch.setattr(engine_process, "STAGE_BYTES", most * size)
    monkeypatch.setattr(engine_process, "receive_all", receives)
    BLOCKS.touched.clear()
    found = engine_process.measure_link(BLOCKS, NUM_BLOCKS)
    assert found.num_bytes == num_copied * size
    assert found.one_block_s > 0
    assert found.bytes_per_s == found.num_bytes / found.stage_s
    gathered = {block for blocks in BLOCKS.touched for block in blocks}
    assert gathered == set(range(1, num_copied + 1)), "the null block is left alone"


@pytest.mark.process
@pytest.mark.parametrize(
    ("does", "why"), [(ends_at_once, "is gone"), (sleeps, "nothing came from the other end")]
)
def test_the_other_process_dies_or_is_silent(
    does: Callable[..., None], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_process, "receive_all", does)
    if does is sleeps:
        monkeypatch.setattr(engine_process, "START_TIMEOUT_S", 0.1)
        monkeypatch.setattr(engine_process, "END_TIMEOUT_S", 0.1)
    with pytest.raises(TransferError, match=why):
        engine_process.measure_link(BLOCKS, NUM_BLOCKS)
