"""Freeness, virtual usage and headroom: how free an instance is, by the rules of the paper."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    InstanceSnapshot,
    Level,
    Unreported,
    blocks_for,
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

# -- virtual usage request by request, as in the paper; an instance's usage must be the sum ------


def headroom_share_blocks(rank: int, snapshot: InstanceSnapshot, levels: Sequence[Level]) -> float:
    """h(p) / num_running(p): what each running request of `rank` carries (GetHeadroom).

    0 for a rank that `levels` does not name.
    """
    for level in levels:
        if level.rank == rank:
            num_sharing = max(1, snapshot.num_running_by_rank.get(rank, 0))
            return headroom_blocks(level, snapshot) / num_sharing
    return 0.0


def request_virtual_usage(
    request: RequestSnapshot, snapshot: InstanceSnapshot, levels: Sequence[Level]
) -> float:
    """V(r) of a real request on the instance that `snapshot` describes (CalcVirtualUsage)."""
    demand = blocks_for(request.num_tokens, snapshot.block_size)
    if request.running:
        fill = max(0, demand - request.num_held_blocks) if request.in_prefill else 0
        share = headroom_share_blocks(request.rank, snapshot, levels)
        return request.num_held_blocks + fill + share
    head = snapshot.queue_head
    return float(demand) if head is not None and head.request_id == request.request_id else 0.0


URGENT = THREE_LEVELS[2]
UNREPORTED = st.builds(
    Unreported, num_requests=st.integers(0, 5), demand_blocks=st.integers(0, 200)
)
LEVEL = st.sampled_from([*THREE_LEVELS, Level("unknown", 7)])


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


@pytest.mark.parametrize(
    ("ranks_running", "level", "expected"),
    [
        ([], NORMAL, 0),
        ([0], NORMAL, 0),
        ([1], NORMAL, 900),
        ([], HIGH, 900),
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


@given(snapshots(), LEVEL, UNREPORTED)
def test_finite_except_when_draining(snapshot, level, unreported) -> None:
    assert math.isfinite(freeness(snapshot, THREE_LEVELS))
    assert math.isfinite(dispatch_freeness(snapshot, level, THREE_LEVELS, unreported))
    draining = replace(snapshot, draining=True)
    assert freeness(draining, THREE_LEVELS) == -math.inf
    assert dispatch_freeness(draining, level, THREE_LEVELS, unreported) == -math.inf


# -- virtual usage and headroom --------------------------------------------------------------


@pytest.mark.parametrize(
    ("target_tokens", "total", "watermark", "expected"),
    [
        (None, 100, 0, 0),
        (0, 100, 0, 100),
        (1, 100, 0, 99),
        (16, 100, 0, 99),
        (17, 100, 0, 98),
        (1600, 100, 0, 0),
        (9999, 100, 0, 0),
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
    """A block that is shared counts once."""
    prefilling = RequestSnapshot("prefilling", 1, 100, 3, running=True, in_prefill=True)
    requests = [running("decoding", 7), prefilling, queued("head", 11), queued("behind", 13)]
    snapshot = snapshot_of(requests, total_blocks=1000)
    assert instance_virtual_usage(snapshot, DEFAULT_LEVELS) == 7 + (3 + 4 + 900) + 11
    sharing = replace(snapshot, num_free_blocks=snapshot.num_free_blocks + 4)
    assert instance_virtual_usage(sharing, DEFAULT_LEVELS) == 7 + (3 + 4 + 900) + 11 - 4
    assert instance_virtual_usage(replace(snapshot, draining=True), DEFAULT_LEVELS) == math.inf


@given(request_lists(), st.integers(1, 2000), st.booleans())
def test_requests_add_up_to_the_instance(requests, total_blocks, with_urgent) -> None:
    levels = THREE_LEVELS if with_urgent else DEFAULT_LEVELS
    snapshot = snapshot_of(requests, total_blocks=total_blocks)
    of_requests = sum(request_virtual_usage(r, snapshot, levels) for r in requests)
    shares = sum(headroom_share_blocks(r.rank, snapshot, levels) for r in requests if r.running)
    over_m = max(0.0, shares - snapshot.capacity_blocks)
    assert instance_virtual_usage(snapshot, levels) == pytest.approx(of_requests - over_m)
    assert 0 <= total_headroom_blocks(snapshot, levels) <= snapshot.capacity_blocks
    if not with_urgent:
        assert over_m == pytest.approx(0), "one level alone never exceeds M"
