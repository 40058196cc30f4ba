"""Which points are measured."""

from dataclasses import replace

from controller.main.profile.engine_process import chunks_of, grid_of, next_batch
from tests.unit.profile.profile_points import SIZES


def test_lengths_double_and_contexts_grow_eightfold_within_the_cache() -> None:
    grid = grid_of(SIZES)
    assert grid.lengths == (64, 128, 256, 512, 1024, 2048, 4096, 8191)
    assert grid.contexts == (64, 512, 4096)
    grid = grid_of(replace(SIZES, num_total_blocks=72))  # 64 but for the watermark: 1,024 tokens
    assert grid.lengths == (32, 64, 128, 256, 512, 1023)
    assert grid.contexts == (32, 256)
    assert chunks_of(6000, 2560) == ((2560, 0), (2560, 2560), (880, 5120)), "as vLLM cuts it"


def test_a_batch_grows_to_what_fits() -> None:
    assert next_batch(SIZES, [72] * 32, 64, 64) == 64
    assert next_batch(SIZES, [72] * 64, 64, 128) is None  # max_num_running
    assert next_batch(SIZES, [], 8190, 1) is None  # no room to decode
    found = next_batch(SIZES, [4110, 4110], 4096, 4)
    assert found == 3  # of 843 blocks each takes 259
    assert next_batch(SIZES, [4110] * 3, 4096, 4) is None
