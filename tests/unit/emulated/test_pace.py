"""When emulated steps end, and what is reported about their lateness."""

import pytest

from controller.adapters.emulated.emulated_engine import Pace
from tests.unit.emulated.emulated_builders import Clock


class Bed:
    def __init__(self) -> None:
        self.clock = Clock()
        self.pace = Pace(self.clock, self.clock.sleep)

    def step(self, duration_s: float, *, work_s: float = 0.0) -> float:
        """Returns when the step ended."""
        self.pace.begin()
        self.clock.now_s += work_s
        self.pace.end(duration_s)
        return self.clock.now_s

    def wait(self, seconds: float) -> None:
        self.clock.now_s += seconds


def test_what_lies_between_two_steps_comes_off_the_next_wait() -> None:
    bed = Bed()
    began_s = bed.clock.now_s
    for number in range(1, 6):
        assert bed.step(0.04, work_s=0.001) == pytest.approx(began_s + 0.04 * number)
        bed.wait(0.003)
    total = bed.pace.total
    assert total.profile_time_s == pytest.approx(0.2)
    assert total.wall_time_s == pytest.approx(0.2)
    assert total.num_late_steps == 0


def test_a_late_step_is_caught_up_by_the_next() -> None:
    bed = Bed()
    began_s = bed.clock.now_s
    assert bed.step(0.04, work_s=0.046) == pytest.approx(began_s + 0.046)
    assert bed.step(0.04) == pytest.approx(began_s + 0.08)
    assert bed.pace.total.num_late_steps == 1
    assert bed.pace.total.wall_time_s == pytest.approx(0.08)


def test_a_machine_that_is_too_busy_is_told_of() -> None:
    bed = Bed()
    for _ in range(10):
        bed.step(0.04, work_s=0.06)
    total = bed.pace.total
    assert total.wall_time_s / total.profile_time_s == pytest.approx(1.5)
    assert total.num_late_steps == 10


def test_a_long_gap_while_there_is_work_counts() -> None:
    bed = Bed()
    bed.step(0.04)
    bed.wait(0.5)
    bed.step(0.04)
    assert bed.pace.total.wall_time_s == pytest.approx(0.58)


def test_rest_does_not_count() -> None:
    bed = Bed()
    bed.step(0.04)
    bed.pace.rest()
    bed.wait(0.004)
    began_s = bed.clock.now_s
    assert bed.step(0.04) == pytest.approx(began_s + 0.04), "nothing to catch up"
    bed.pace.rest()
    bed.wait(3600.0)
    bed.step(0.04)
    assert bed.pace.total.wall_time_s == pytest.approx(0.12)


def test_a_step_of_no_length_is_not_late() -> None:
    bed = Bed()
    bed.clock.overhead_s = 1e-6
    bed.step(0.0)
    assert bed.pace.total.num_late_steps == 0
