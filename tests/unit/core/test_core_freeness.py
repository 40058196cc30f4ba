"""Freeness, virtual usage and headroom: how free an instance is, by the rules of the paper."""

import math
from dataclasses import replace

import pytest

from controller.core.load.freeness import (
    dispatch_freeness,
    dispatch_headroom_blocks,
    freeness,
    headroom_blocks,
    instance_virtual_usage,
    total_headroom_blocks,
)
from controller.core.load.snapshot import (
    DEFAULT_LEVELS,
    HIGH,
    NORMAL,
    Level,
    Unreported,
)
from tests.unit.core.core_builders import (
    THREE_LEVELS,
    RequestSnapshot,
    queued,
    running,
    snapshot_of,
)

URGENT = THREE_LEVELS[2]
X, PREFILLING = running("x", 50), RequestSnapshot("r", 0, 480, 10, running=True, in_prefill=True)


@pytest.mark.parametrize(
    ("requests", "watermark", "unreported", "for_moves", "for_dispatch"),
    [
        ([], 10, Unreported(), 16 * 90, 16 * 90),
        ([running("x", 20), running("y", 40)], 0, Unreported(), 16 * 40 / 2, 16 * 40 / 2),
        ([X, queued("head", 20), queued("q", 15)], 0, Unreported(), 16 * 30 / 2, 16 * 15 / 3),
        ([PREFILLING], 0, Unreported(), 16 * 70, 16 * 70),
        ([X], 0, Unreported(2, 20), 16 * 50, 16 * 30 / 3),
    ],
    ids=["idle", "steps left to the batch", "head or queue", "a prefill to its end", "on its way"],
)
def test_freeness(requests, watermark, unreported, for_moves, for_dispatch) -> None:
    snapshot = snapshot_of(requests, watermark_blocks=watermark)
    assert freeness(snapshot, DEFAULT_LEVELS) == for_moves
    assert dispatch_freeness(snapshot, NORMAL, DEFAULT_LEVELS, unreported) == for_dispatch
    draining = replace(snapshot, draining=True)
    assert freeness(draining, DEFAULT_LEVELS) == -math.inf
    assert dispatch_freeness(draining, NORMAL, DEFAULT_LEVELS, unreported) == -math.inf


@pytest.mark.parametrize(
    ("ranks_running", "level", "expected"),
    [
        ([], NORMAL, 0),
        ([0], NORMAL, 0),
        ([1], NORMAL, 900),
        ([0], HIGH, 900),
        ([1], HIGH, 0),
        ([0, 1, 1], HIGH, 0),
        ([2], HIGH, 1000),
        ([1, 2], NORMAL, 1000),
        ([1, 2], HIGH, 990),
        ([1, 2], URGENT, 900),
        ([7], NORMAL, 0),
        ([1], Level("unknown", 7), 900),
    ],
)
def test_headroom_that_a_newcomer_meets_or_brings(ranks_running, level, expected) -> None:
    """A queued request does not make its level present."""
    requests = [running(f"r{i}", 1, rank) for i, rank in enumerate(ranks_running)]
    snapshot = snapshot_of([*requests, queued("q", 1, rank=1)], total_blocks=1000)
    assert dispatch_headroom_blocks(snapshot, level, THREE_LEVELS) == expected


# -- virtual usage and headroom --------------------------------------------------------------


@pytest.mark.parametrize(
    ("target_tokens", "total", "watermark", "expected"),
    [
        (None, 100, 0, 0),
        (1, 100, 0, 99),
        (17, 100, 0, 98),
        (1600, 100, 0, 0),
        (160, 100, 10, 80),
        # The paper's A10: 13,616 tokens of KV memory leave 12,016 tokens of headroom.
        (HIGH.target_load_tokens, 13_616 // 16, 0, 12_016 // 16),
    ],
)
def test_headroom_is_what_the_target_load_leaves(target_tokens, total, watermark, expected) -> None:
    snapshot = snapshot_of(total_blocks=total, watermark_blocks=watermark)
    assert headroom_blocks(Level("x", 1, target_tokens), snapshot) == expected


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [([0, 0], 0), ([0, 1, 1, 1], 900), ([2], 990), ([1, 2], 1000), ([7], 0)],
)
def test_total_headroom_counts_levels_not_requests_and_stops_at_m(ranks, expected) -> None:
    """Queued requests bring none."""
    requests = [running(f"r{i}", 1, rank) for i, rank in enumerate(ranks)]
    snapshot = snapshot_of([*requests, queued("q", 5, rank=2)], total_blocks=1000)
    assert total_headroom_blocks(snapshot, THREE_LEVELS) == expected


def test_the_usage_of_a_batch_and_its_head() -> None:
    """A level's headroom counts once, however many requests share it; so does a shared block."""
    prefilling = RequestSnapshot("prefilling", 1, 100, 3, running=True, in_prefill=True)
    requests = [running("decoding", 7), prefilling, queued("head", 11), queued("behind", 13)]
    snapshot = snapshot_of(requests, total_blocks=1000)
    assert instance_virtual_usage(snapshot, DEFAULT_LEVELS) == 7 + (3 + 4 + 900) + 11
    two_high = snapshot_of([*requests, running("high", 5, rank=1)], total_blocks=1000)
    assert instance_virtual_usage(two_high, DEFAULT_LEVELS) == 7 + 5 + (3 + 4 + 900) + 11
    sharing = replace(snapshot, num_free_blocks=snapshot.num_free_blocks + 4)
    assert instance_virtual_usage(sharing, DEFAULT_LEVELS) == 7 + (3 + 4 + 900) + 11 - 4
    assert instance_virtual_usage(replace(snapshot, draining=True), DEFAULT_LEVELS) == math.inf
    over_m = snapshot_of([running("r", 5, rank=1), running("s", 6, rank=2)], total_blocks=1000)
    assert instance_virtual_usage(over_m, THREE_LEVELS) == 11 + 1000, "900 and 990, at most M"
