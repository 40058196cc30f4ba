import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.core.load.freeness import (
    headroom_blocks,
    instance_virtual_usage,
    total_headroom_blocks,
)
from controller.core.load.snapshot import (
    DEFAULT_LEVELS,
    HIGH,
    NORMAL,
    InstanceSnapshot,
    Level,
)
from tests.unit.core.core_builders import (
    THREE_LEVELS,
    RequestSnapshot,
    queued,
    request_lists,
    running,
    snapshot_of,
    snapshots,
)
from tests.unit.core.usage_oracle import headroom_share_blocks, request_virtual_usage

URGENT = THREE_LEVELS[2]


def test_headroom_of_the_papers_a10() -> None:
    """13,616 tokens of KV memory and a target load of 1,600 leave 12,016 tokens of headroom."""
    a10 = snapshot_of(total_blocks=13_616 // 16)
    assert headroom_blocks(HIGH, a10) * 16 == 12_016


@pytest.mark.parametrize(
    ("target_tokens", "watermark", "expected"),
    [
        (None, 0, 0),
        (0, 0, 100),
        (1, 0, 99),
        (16, 0, 99),
        (17, 0, 98),
        (1600, 0, 0),
        (9999, 0, 0),
        (160, 10, 80),
    ],
)
def test_headroom_is_what_the_target_load_leaves(
    target_tokens: int | None, watermark: int, expected: int
) -> None:
    snapshot = snapshot_of(total_blocks=100, watermark_blocks=watermark)
    assert headroom_blocks(Level("x", 1, target_tokens), snapshot) == expected


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([], 0),
        ([0, 0], 0),
        ([1], 900),
        ([0, 1, 1, 1], 900),
        ([2], 990),
        ([1, 2], 1000),
        ([7], 0),
    ],
)
def test_total_headroom_counts_levels_not_requests_and_stops_at_m(
    ranks: list[int], expected: int
) -> None:
    requests = [running(f"r{i}", 1, rank) for i, rank in enumerate(ranks)]
    snapshot = snapshot_of(requests, total_blocks=1000)
    assert total_headroom_blocks(snapshot, THREE_LEVELS) == expected


def test_queued_requests_bring_no_headroom() -> None:
    snapshot = snapshot_of([queued("q", 5, rank=1)], total_blocks=1000)
    assert total_headroom_blocks(snapshot, DEFAULT_LEVELS) == 0
    assert instance_virtual_usage(snapshot, DEFAULT_LEVELS) == 5


def test_requests_of_a_level_share_its_headroom() -> None:
    snapshot = snapshot_of([running(f"r{i}", 1, rank=1) for i in range(4)], total_blocks=1000)
    assert headroom_share_blocks(1, snapshot, DEFAULT_LEVELS) == 900 / 4
    assert headroom_share_blocks(0, snapshot, DEFAULT_LEVELS) == 0
    assert headroom_share_blocks(7, snapshot, DEFAULT_LEVELS) == 0


def test_the_rules_one_by_one() -> None:
    decoding = running("decoding", 7)
    prefilling = RequestSnapshot("prefilling", 1, 100, 3, running=True, in_prefill=True)
    head, behind = queued("head", 11), queued("behind", 13)
    snapshot = snapshot_of([decoding, prefilling, head, behind], total_blocks=1000)
    usage = {
        r.request_id: request_virtual_usage(r, snapshot, DEFAULT_LEVELS)
        for r in (decoding, prefilling, head, behind)
    }
    assert usage == {"decoding": 7, "prefilling": 3 + 4 + 900, "head": 11, "behind": 0}
    assert instance_virtual_usage(snapshot, DEFAULT_LEVELS) == 7 + 907 + 11


def test_a_draining_instance_is_full_beyond_measure() -> None:
    assert instance_virtual_usage(snapshot_of(draining=True), DEFAULT_LEVELS) == math.inf


def test_a_shared_block_counts_once() -> None:
    requests = [running("x", 10), running("y", 10)]
    apart = snapshot_of(requests)
    sharing = replace(apart, num_free_blocks=apart.num_free_blocks + 4)
    of_requests = sum(request_virtual_usage(r, sharing, DEFAULT_LEVELS) for r in requests)
    assert of_requests == 20
    assert instance_virtual_usage(sharing, DEFAULT_LEVELS) == 16


@given(request_lists(), st.integers(1, 2000), st.booleans())
def test_requests_add_up_to_the_instance(
    requests: list[RequestSnapshot], total_blocks: int, with_urgent: bool
) -> None:
    levels = THREE_LEVELS if with_urgent else DEFAULT_LEVELS
    snapshot = snapshot_of(requests, total_blocks=total_blocks)
    of_requests = sum(request_virtual_usage(r, snapshot, levels) for r in requests)
    shares = sum(headroom_share_blocks(r.rank, snapshot, levels) for r in requests if r.running)
    over_m = max(0.0, shares - snapshot.capacity_blocks)
    assert instance_virtual_usage(snapshot, levels) == pytest.approx(of_requests - over_m)
    if not with_urgent:
        assert over_m == pytest.approx(0), "one level alone never exceeds M"


@given(snapshots())
def test_headroom_is_at_most_m(snapshot: InstanceSnapshot) -> None:
    assert 0 <= total_headroom_blocks(snapshot, THREE_LEVELS) <= snapshot.capacity_blocks
    assert headroom_blocks(NORMAL, snapshot) == 0
    assert headroom_blocks(HIGH, snapshot) <= headroom_blocks(URGENT, snapshot)
