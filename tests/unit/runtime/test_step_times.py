"""How long an engine's steps took: each step, and all steps with the time between them."""

import pytest

from controller.runtime.instance.engine_thread import StepTimes


def test_what_lies_between_two_steps_counts() -> None:
    took = StepTimes()
    took.step(1.0, 1.5)
    took.step(1.75, 2.0)
    assert (took.num_steps, took.step_time_s) == (2, 0.25)
    assert took.busy_s == pytest.approx(1.0)


def test_a_rest_does_not() -> None:
    took = StepTimes()
    took.step(1.0, 1.5)
    took.rest()
    took.step(7.0, 7.25)
    assert took.busy_s == pytest.approx(0.75)
