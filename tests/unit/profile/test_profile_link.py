"""The link's measurement copies what it says it does."""

import pytest

from controller.main.profile import link
from tests.unit.tcp.instances import ByteBlocks


@pytest.mark.parametrize(("num_blocks", "num_copied"), [(20, 9), (3, 1), (200, 64)])
def test_a_stage_is_copied(
    num_blocks: int, num_copied: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = ByteBlocks(num_blocks)
    size = blocks.block_bytes
    monkeypatch.setattr(link, "STAGE_BYTES", 64 * size)
    content = b"".join(bytes([n % 251]) * size for n in range(num_blocks))
    blocks.memory[:] = content
    found = link.measure_link(blocks, num_blocks)
    assert found.num_bytes == num_copied * size
    assert found.one_block_s > 0
    assert found.bytes_per_s == found.num_bytes / found.stage_s
    source = content[size : (num_copied + 1) * size]
    assert blocks.memory[(num_copied + 1) * size : (2 * num_copied + 1) * size] == source
    assert blocks.memory[:size] == content[:size], "the null block is left alone"
