"""What the watch over the instances takes from statuses, and how an instance measures its CPU time
and how long its engine's steps took: each step, and all steps with the time between them."""

from dataclasses import replace

import pytest

from controller.core.load.snapshot import InstanceSnapshot
from controller.runtime.controller.cluster import idle_cores
from controller.runtime.instance.engine_thread import ProcessCpu, StepTimes
from controller.runtime.messages.members import StatusPushed

IDLE = InstanceSnapshot("i-0", 1, 16, 100, 100)


def status(
    cpu_cores: float | None = 1.1, snapshot: InstanceSnapshot = IDLE, num_moves_in: int = 0
) -> StatusPushed:
    return StatusPushed(snapshot, 0, 1, 0.01, num_moves_in=num_moves_in, cpu_cores=cpu_cores)


@pytest.mark.parametrize(
    ("found", "cores"),
    [
        (status(), 1.1),
        (status(None), 0.0),
        (status(snapshot=replace(IDLE, num_running=1)), None),
        (status(num_moves_in=1), None),
    ],
)
def test_the_cores_of_one_that_has_nothing_to_do(found: StatusPushed, cores: float | None) -> None:
    assert idle_cores(found) == cores


def test_cores_are_measured_over_a_second() -> None:
    cpu_s, now_s = [5.0], [100.0]
    cpu = ProcessCpu(lambda: cpu_s[0], lambda: now_s[0])
    assert cpu.cores() is None
    cpu_s[0], now_s[0] = 5.5, 100.5
    assert cpu.cores() is None
    cpu_s[0], now_s[0] = 7.0, 101.0
    assert cpu.cores() == 2.0
    cpu_s[0], now_s[0] = 7.0, 101.9
    assert cpu.cores() == 2.0, "the last that is over"
    now_s[0] = 105.0
    assert cpu.cores() == 0.0


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
