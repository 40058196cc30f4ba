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


@pytest.mark.parametrize(
    ("steps", "wall_time_s", "num_late"),
    [
        ([(0.0, 0.046), (0.0, 0.0)], 0.08, 1),  # caught up by the next
        ([(0.0, 0.06)] * 10, 0.6, 10),  # a machine that is too busy
        ([(0.0, 0.0), (0.5, 0.0)], 0.58, 0),  # a long gap while there is work
    ],
)
def test_what_is_late_is_told(
    steps: list[tuple[float, float]], wall_time_s: float, num_late: int
) -> None:
    """Of steps of 40 ms: the time before each, and its work."""
    bed = Bed()
    for gap_s, work_s in steps:
        bed.wait(gap_s)
        bed.step(0.04, work_s=work_s)
    assert bed.pace.total.wall_time_s == pytest.approx(wall_time_s)
    assert bed.pace.total.num_late_steps == num_late


def test_rest_does_not_count() -> None:
    bed = Bed()
    bed.clock.overhead_s = 1e-6
    bed.step(0.0)
    assert bed.pace.total.num_late_steps == 0, "a step of no length is not late"
    bed.clock.overhead_s = 0.0
    bed.step(0.04)
    bed.pace.rest()
    bed.wait(0.004)
    began_s = bed.clock.now_s
    assert bed.step(0.04) == pytest.approx(began_s + 0.04), "nothing to catch up"
    bed.pace.rest()
    bed.wait(3600.0)
    bed.step(0.04)
    assert bed.pace.total.wall_time_s == pytest.approx(0.12, abs=1e-4)
