"""Which instance steps slowly."""

from controller.core.fleet.slowness import Slowness

WINDOW_S, FACTOR = 10.0, 3.0
STEP_S = 0.04


def watched(last_s: float = 12.0, **step_times_s: float) -> Slowness:
    """Sampled ten times a second from 0 s on."""
    slowness = Slowness()
    for turn in range(int(10 * last_s) + 1):
        found = {(name, 1): step_s for name, step_s in step_times_s.items()}
        slowness.add(turn / 10, found, WINDOW_S)
    return slowness


def test_the_one_far_behind_the_others() -> None:
    slow = watched(a=STEP_S, b=1.5 * STEP_S, c=6 * STEP_S).slowest(12.0, WINDOW_S, FACTOR)
    assert slow is not None
    assert (slow.instance_id, slow.incarnation, round(slow.factor, 1)) == ("c", 1, 4.8)


def test_a_difference_of_load_is_none() -> None:
    assert watched(a=STEP_S, b=STEP_S, c=2.5 * STEP_S).slowest(12.0, WINDOW_S, FACTOR) is None


def test_of_two_nobody_knows_which_is_the_exception() -> None:
    assert watched(a=STEP_S, b=9 * STEP_S).slowest(12.0, WINDOW_S, FACTOR) is None


def test_for_the_whole_window_or_not_at_all() -> None:
    found = watched(last_s=8.0, a=STEP_S, b=STEP_S, c=9 * STEP_S)
    assert found.slowest(8.0, WINDOW_S, FACTOR) is None


def test_long_prompts_now_and_then_are_no_slowness() -> None:
    slowness = Slowness()
    for turn in range(121):
        prefill = 0.5 if turn % 3 == 0 else STEP_S
        slowness.add(turn / 10, {("a", 1): STEP_S, ("b", 1): STEP_S, ("c", 1): prefill}, WINDOW_S)
    assert slowness.slowest(12.0, WINDOW_S, FACTOR) is None


def test_one_that_rested_begins_anew() -> None:
    slowness = watched(a=STEP_S, b=STEP_S, c=9 * STEP_S)
    slowness.add(12.1, {("a", 1): STEP_S, ("b", 1): STEP_S}, WINDOW_S)
    slowness.add(12.2, {(name, 1): 9 * STEP_S for name in "abc"}, WINDOW_S)
    assert slowness.slowest(12.2, WINDOW_S, FACTOR) is None
