import math
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from controller.core.load.freeness import (
    batch_size,
    dispatch_freeness,
    dispatch_headroom_blocks,
    freeness,
)
from controller.core.load.snapshot import (
    DEFAULT_LEVELS,
    HIGH,
    NORMAL,
    InstanceSnapshot,
    Level,
    Unreported,
)
from tests.unit.core.core_builders import (
    THREE_LEVELS,
    RequestSnapshot,
    queued,
    running,
    snapshot_of,
    snapshots,
)

URGENT = THREE_LEVELS[2]
UNREPORTED = st.builds(
    Unreported, num_requests=st.integers(0, 5), demand_blocks=st.integers(0, 200)
)
LEVEL = st.sampled_from([*THREE_LEVELS, Level("unknown", 7)])


@pytest.mark.parametrize(
    ("num_running", "num_queued", "expected"),
    [(0, 0, 1), (1, 0, 1), (3, 0, 3), (0, 1, 1), (0, 9, 1), (3, 1, 4), (3, 9, 4)],
)
def test_batch_size(num_running: int, num_queued: int, expected: int) -> None:
    requests = [running(f"r{i}", 1) for i in range(num_running)]
    requests += [queued(f"q{i}", 1) for i in range(num_queued)]
    assert batch_size(snapshot_of(requests)) == expected


def test_an_idle_instance_is_as_free_as_its_memory() -> None:
    idle = snapshot_of(total_blocks=100, watermark_blocks=10)
    assert freeness(idle, DEFAULT_LEVELS) == 16 * 90
    assert dispatch_freeness(idle, NORMAL, DEFAULT_LEVELS) == 16 * 90


def test_steps_left_to_the_batch() -> None:
    snapshot = snapshot_of([running("x", 20), running("y", 40)], total_blocks=100)
    assert freeness(snapshot, DEFAULT_LEVELS) == 16 * 40 / 2


def test_only_the_head_counts_for_migration_and_the_whole_queue_for_dispatch() -> None:
    snapshot = snapshot_of(
        [running("x", 50), queued("head", 20), queued("behind", 15)], total_blocks=100
    )
    assert freeness(snapshot, DEFAULT_LEVELS) == 16 * (100 - 50 - 20) / 2
    assert dispatch_freeness(snapshot, NORMAL, DEFAULT_LEVELS) == 16 * (100 - 50 - 35) / 3


def test_what_a_prefill_still_takes_counts() -> None:
    prefilling = RequestSnapshot("r", 0, 30 * 16, 10, running=True, in_prefill=True)
    snapshot = snapshot_of([prefilling], total_blocks=100)
    assert freeness(snapshot, DEFAULT_LEVELS) == 16 * 70
    assert dispatch_freeness(snapshot, NORMAL, DEFAULT_LEVELS) == 16 * 70


def test_what_is_on_its_way_counts_for_dispatch() -> None:
    snapshot = snapshot_of([running("x", 50)], total_blocks=100)
    seen = dispatch_freeness(snapshot, NORMAL, DEFAULT_LEVELS, Unreported(2, 20))
    assert seen == 16 * (100 - 50 - 20) / 3


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
def test_headroom_that_a_newcomer_meets_or_brings(
    ranks_running: list[int], level: Level, expected: int
) -> None:
    requests = [running(f"r{i}", 1, rank) for i, rank in enumerate(ranks_running)]
    snapshot = snapshot_of(requests, total_blocks=1000)
    assert dispatch_headroom_blocks(snapshot, level, THREE_LEVELS) == expected


def test_a_queued_request_does_not_make_its_level_present() -> None:
    snapshot = snapshot_of([queued("q", 1, rank=1)], total_blocks=1000)
    assert dispatch_headroom_blocks(snapshot, HIGH, DEFAULT_LEVELS) == 900
    assert dispatch_headroom_blocks(snapshot, NORMAL, DEFAULT_LEVELS) == 0


def test_high_requests_gather_and_normal_ones_keep_away() -> None:
    with_high = snapshot_of([running("x", 10, rank=1)], total_blocks=1000)
    without = snapshot_of([running("x", 10)], total_blocks=1000)
    for level, prefers_high in ((HIGH, True), (NORMAL, False)):
        at_high = dispatch_freeness(with_high, level, DEFAULT_LEVELS)
        elsewhere = dispatch_freeness(without, level, DEFAULT_LEVELS)
        assert (at_high > elsewhere) is prefers_high


@given(snapshots(), LEVEL, UNREPORTED)
def test_finite_except_when_draining(
    snapshot: InstanceSnapshot, level: Level, unreported: Unreported
) -> None:
    assert math.isfinite(freeness(snapshot, THREE_LEVELS))
    assert math.isfinite(dispatch_freeness(snapshot, level, THREE_LEVELS, unreported))
    draining = replace(snapshot, draining=True)
    assert freeness(draining, THREE_LEVELS) == -math.inf
    assert dispatch_freeness(draining, level, THREE_LEVELS, unreported) == -math.inf


@given(snapshots(), LEVEL, UNREPORTED, st.integers(0, 50), st.data())
def test_more_usage_by_the_same_requests_never_raises_freeness(
    snapshot: InstanceSnapshot,
    level: Level,
    unreported: Unreported,
    more: int,
    data: st.DataObject,
) -> None:
    levels = THREE_LEVELS
    busier, busier_unreported = snapshot, unreported
    head = snapshot.queue_head
    match data.draw(st.sampled_from(["used", "fill", "queue", "unreported", "headroom"])):
        case "used":
            busier = replace(snapshot, num_free_blocks=snapshot.num_free_blocks - more)
        case "fill":
            busier = replace(snapshot, fill_blocks=snapshot.fill_blocks + more)
        case "queue":
            assume(head is not None)
            assert head is not None
            busier = replace(
                snapshot,
                queued_demand_blocks=snapshot.queued_demand_blocks + more,
                queue_head=replace(head, demand_blocks=head.demand_blocks + more),
            )
        case "unreported":
            busier_unreported = replace(unreported, demand_blocks=unreported.demand_blocks + more)
        case "headroom":
            target = max(0, 1600 - 16 * more)
            levels = (NORMAL, replace(HIGH, target_load_tokens=target), URGENT)
    asked = levels[1] if level is THREE_LEVELS[1] else level
    assert freeness(busier, levels) <= freeness(snapshot, THREE_LEVELS)
    assert dispatch_freeness(busier, asked, levels, busier_unreported) <= dispatch_freeness(
        snapshot, level, THREE_LEVELS, unreported
    )


@given(snapshots(), LEVEL, UNREPORTED, st.integers(0, 50))
def test_another_request_never_raises_freeness_while_there_is_room(
    snapshot: InstanceSnapshot, level: Level, unreported: Unreported, demand: int
) -> None:
    before = dispatch_freeness(snapshot, level, THREE_LEVELS, unreported)
    assume(before >= 0)
    after = Unreported(unreported.num_requests + 1, unreported.demand_blocks + demand)
    assert dispatch_freeness(snapshot, level, THREE_LEVELS, after) <= before
