"""Runs in several processes: their order, their failures, their end."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

import psutil
import pytest

from controller.api.errors import LlumctlError, UsageError
from controller.sim.run import Load, Run, carry_out
from controller.sim.setup import ClusterSetup, sim_policy
from llumctl.lab.simulation_workers import Progress, Workers
from tests.unit.fake_controller import until
from tests.unit.sim.runs import SMALL
from tools.cluster import hear_interrupts

LONG = Run(Load("40,20", 4.0, 200_000), ClusterSetup(SMALL, sim_policy("llumnix"), 1))


def short(num: int) -> list[Run]:
    """Of different lengths, so that a later one ends first."""
    setup = replace(LONG.setup, num_instances=2)
    loads = [Load("40,20", 4.0, 420), Load("40,20", 4.0, 20)]
    return [Run(loads[seed % 2], setup, seed) for seed in range(1, num + 1)]


def children() -> list[psutil.Process]:
    return [
        child
        for child in psutil.Process().children(recursive=True)
        if "multiprocessing.spawn" in " ".join(child.cmdline())
    ]


@pytest.mark.process
def test_results_are_in_the_order_of_the_runs_and_the_same_as_here() -> None:
    runs, told = short(5), list[Progress]()
    with Workers(2) as workers:
        assert workers.run(runs, told.append) == [carry_out(run) for run in runs]
        assert [each.run for each in workers.run(runs[:3])] == runs[:3]
        assert len(children()) == 2
    assert children() == []
    assert told[-1] == Progress(5, 5, 1.0)
    assert [each.share for each in told] == sorted(each.share for each in told)


@pytest.mark.process
def test_a_run_that_cannot_be_carried_out_ends_the_others() -> None:
    runs = [LONG, replace(LONG, load=Load("nowhere.csv"))]
    with Workers(2) as workers:
        with pytest.raises(UsageError, match=r"nowhere\.csv"):
            workers.run(runs)
        assert children() == []
        assert len(workers.run(short(2))) == 2  # the next ones get fresh processes


@pytest.mark.process
def test_a_worker_that_dies_is_told() -> None:
    def kill_one(_: Progress) -> None:
        for child in children()[:1]:
            child.kill()

    with Workers(2) as workers, pytest.raises(LlumctlError, match=r"ended by signal 9.*memory"):
        workers.run([LONG, LONG], kill_one)
    assert children() == []


def test_one_run_needs_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multiprocessing.get_context", None)
    runs, told = short(2), list[Progress]()
    with Workers(1) as workers:
        assert [each.run for each in workers.run(runs, told.append)] == runs
        with pytest.raises(UsageError, match="did you mean M-M"):
            workers.run([replace(LONG, load=Load("M_M", 1.0))])
    with Workers(4) as workers:
        assert [each.run for each in workers.run(runs[:1])] == runs[:1]
    assert told[-1] == Progress(2, 2, 1.0)


def _working(process: "subprocess.Popen[str]") -> Sequence[psutil.Process]:
    """The workers, as soon as they simulate."""
    found: list[psutil.Process] = []

    def ready() -> bool:
        found[:] = [
            child
            for child in psutil.Process(process.pid).children(recursive=True)
            if "spawn_main" in " ".join(child.cmdline()) and child.cpu_times().user > 0.5
        ]
        return len(found) == 2

    until(ready)
    return found


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_worker_outlives_an_interrupt_or_a_parent_that_was_killed(number: int) -> None:
    load = ("--requests", "1000000", "--rate", "4", "-w", "40,20", "-n", "2", "--seeds", "4")
    process = subprocess.Popen(
        [sys.executable, "-m", "llumctl", "simulate", *load, "--jobs", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=hear_interrupts,
    )
    found = _working(process)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does: to all of them
    else:
        process.kill()
    until(lambda: not any(child.is_running() for child in found))
    out, err = process.communicate(timeout=60)
    if number == signal.SIGINT:
        assert (process.returncode, out, err.strip()) == (130, "", "")
