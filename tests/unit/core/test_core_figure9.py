"""The four cases of the paper's figure 9, with numbers of our own: each is a load balance."""

import math

from controller.core.load.freeness import freeness, instance_virtual_usage
from controller.core.load.snapshot import DEFAULT_LEVELS, InstanceSnapshot, Level
from tests.unit.core.core_builders import RequestSnapshot, queued, running, snapshot_of

T_SOURCE = T_DESTINATION = 48.0


def _instance(*requests: RequestSnapshot, draining: bool = False) -> InstanceSnapshot:
    return snapshot_of(requests, total_blocks=20, draining=draining)


def _freeness(snapshot: InstanceSnapshot) -> float:
    return freeness(snapshot, DEFAULT_LEVELS)


def test_a_load_balancing_moves_from_the_fuller_to_the_emptier() -> None:
    x, y, z = running("x", 6), running("y", 6), running("z", 4)
    left, right = _instance(x, y, z), _instance(running("w", 4))
    assert _freeness(left) == 16 * 4 / 3 < T_SOURCE
    assert _freeness(right) == 16 * 16 > T_DESTINATION
    after_left, after_right = _instance(x, y), _instance(running("w", 4), z)
    assert _freeness(after_left) >= T_SOURCE
    assert _freeness(after_right) > T_DESTINATION
    assert abs(_freeness(after_left) - _freeness(after_right)) < abs(
        _freeness(left) - _freeness(right)
    )


def test_b_a_queue_head_that_does_not_fit_makes_room_for_itself() -> None:
    """Each instance has 4 and 10 blocks free; the head needs 8. Moving `y` lets it in."""
    x, y, head = running("x", 12), running("y", 4), queued("head", 8)
    left, right = _instance(x, y, head), _instance(running("w", 10))
    assert _freeness(_instance(x, y)) == 16 * 4 / 2, "without the rule it looks half free"
    assert instance_virtual_usage(left, DEFAULT_LEVELS) == 24
    assert _freeness(left) == 16 * -4 / 3, "with the rule it is over its memory"
    assert _freeness(right) > T_DESTINATION
    moved = _instance(x, head)
    assert instance_virtual_usage(moved, DEFAULT_LEVELS) <= moved.capacity_blocks
    assert moved.num_free_blocks >= 8, "the head starts"


def test_b_requests_behind_the_head_do_not_count() -> None:
    head = queued("head", 8)
    alone, followed = _instance(head), _instance(head, queued("next", 19))
    assert _freeness(alone) == _freeness(followed)


def test_c_headroom_drives_the_neighbours_of_a_high_request_away() -> None:
    """A target load of 8 blocks: the instance is full, virtually, as soon as it holds more."""
    levels = (Level("normal", 0), Level("high", 1, target_load_tokens=8 * 16))
    high, x, y = running("high", 4, rank=1), running("x", 4), running("y", 4)
    crowded = _instance(high, x, y)
    plain = _instance(running("high", 4), x, y)
    assert freeness(plain, levels) == 16 * 8 / 3
    assert freeness(crowded, levels) == 16 * (20 - 12 - 12) / 3 < 0
    assert freeness(_instance(high, x), levels) == 0, "exactly the target load"
    assert freeness(_instance(high), levels) == 16 * 4 >= T_SOURCE


def test_c_two_high_requests_share_one_headroom() -> None:
    levels = (Level("normal", 0), Level("high", 1, target_load_tokens=8 * 16))
    one = _instance(running("h1", 4, rank=1))
    two = _instance(running("h1", 2, rank=1), running("h2", 2, rank=1))
    assert instance_virtual_usage(one, levels) == instance_virtual_usage(two, levels) == 16


def test_d_draining_makes_an_instance_the_first_source_until_it_is_empty() -> None:
    crowded = _instance(*(running(f"r{i}", 4) for i in range(5)), queued("head", 20))
    for leaving in (_instance(running("x", 1), draining=True), _instance(draining=True)):
        assert instance_virtual_usage(leaving, DEFAULT_LEVELS) == math.inf
        assert _freeness(leaving) == -math.inf < _freeness(crowded)
