"""The digest of a move's blocks, stage by stage."""

import asyncio
from itertools import pairwise

import pytest

from controller.runtime.instance import move_ends
from controller.runtime.instance.move_ends import KvDigest
from tests.unit.runtime.fake_engine import FakeBlocks

NUM_BLOCKS = 12


def numbered() -> FakeBlocks:
    blocks = FakeBlocks(NUM_BLOCKS)
    blocks.memory[:] = bytes(position % 251 for position in range(len(blocks.memory)))
    return blocks


async def digest_of(blocks: FakeBlocks, *stages: range) -> bytes:
    digest = KvDigest(blocks)
    for stage in stages:
        digest.add(stage)
    return await digest.add(())


@pytest.mark.parametrize("cuts", [[0, 12], [0, 1, 12], [0, 6, 11, 12], [0, 5, 5, 12]])
async def test_it_is_the_same_however_the_blocks_are_cut_into_stages(
    cuts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = await digest_of(numbered(), range(NUM_BLOCKS))
    monkeypatch.setattr(move_ends, "SLICE_BYTES", 3 * FakeBlocks.block_bytes)
    assert await digest_of(numbered(), *(range(a, b) for a, b in pairwise(cuts))) == whole


async def test_each_bit_and_the_order_of_the_blocks_count() -> None:
    blocks, whole = numbered(), await digest_of(numbered(), range(NUM_BLOCKS))
    assert await digest_of(blocks, range(6, NUM_BLOCKS), range(6)) != whole
    blocks.memory[-1] ^= 1
    assert await digest_of(blocks, range(NUM_BLOCKS)) != whole


async def test_after_a_stage_that_could_not_be_read_there_is_no_digest() -> None:
    complaints: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: complaints.append(what))
    blocks = numbered()
    digest = KvDigest(blocks)
    await digest.add(range(3))
    gather, blocks.gather = blocks.gather, None
    failed = digest.add(range(3, 6))
    with pytest.raises(TypeError):
        await failed
    blocks.gather = gather
    with pytest.raises(TypeError):
        await digest.add(range(6, 9))
    digest.add(range(9, 12))  # nobody waits for this one
    await asyncio.sleep(0)
    assert complaints == []
