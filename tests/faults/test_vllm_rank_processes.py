"""The fault of one worker process in a move between engines with two of them: it is killed or
stopped in each phase of a move, at the source or at the destination. A worker that dies ends its
instance. A worker that is stopped lets the engine hang, while the event loop of its instance goes
on."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.faults import answers
from tests.faults.cells import Cell
from tests.faults.children import wait_for
from tests.faults.cluster import Client
from tests.faults.conftest import Shared
from tests.faults.run_cell import MEMBERS, CellRun, Sizes, move_there_and_back

pytestmark = pytest.mark.full

ENGINE = "ranks"
SIZES = Sizes(prompt=200, outputs=150, long_outputs=400)
# Longer than those of engines of one process: two ranks wait for each other on busy cores.
TIMING = {
    "retry_s": 0.2,
    "answer_timeout_s": 2.0,
    "stage_timeout_s": 3.0,
    "suspended_timeout_s": 2.0,
    "lease_s": 6.0,
    "memory_s": 0.5,
}
TABLE = """
copying      P K  K-freed  K-failed
suspended    P R  R-freed  R-failed
committing   M R  M-moved  R-failed
migrated     M P  M-moved  M-went_on
"""
"""A state of the source, and the outcomes (cells.py) if a worker of the source or of the
destination is killed, then if it is stopped."""


def cells() -> list[Any]:
    found = []
    for line in TABLE.strip().splitlines():
        state, *outcomes = line.split()
        faults = [(v, s) for s in ("SIGKILL", "SIGSTOP") for v in ("source", "destination")]
        for fault, outcome in zip(faults, outcomes, strict=True):
            cell = Cell("source", state, *fault, *outcome.split("-"))
            found.append(pytest.param(cell, id=cell.name))
    return found


@dataclass(frozen=True)
class Worker:
    pid: int

    @property
    def state(self) -> str:
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except FileNotFoundError:
            return "gone"
        return stat.rpartition(")")[2].split()[0]

    @property
    def ended(self) -> bool:
        return self.state in ("Z", "gone")

    def signal(self, name: str) -> None:
        os.kill(self.pid, signal.Signals[name])
        self.wait_signalled(name)

    def wait_signalled(self, name: str) -> None:
        if name == "SIGKILL":
            wait_for(lambda: self.ended, "a worker to die")
        elif name == "SIGSTOP":
            wait_for(lambda: self.state == "T", "a worker to stop")


class WorkerRun(CellRun):
    def run(self) -> None:
        self.cluster.mend()
        instance_id = MEMBERS[self.cell.victim]
        self.workers = [Worker(pid) for pid in self.cluster.report(instance_id)["workers"]]
        super().run()

    def _strike(self) -> Client:
        moving = super()._strike()
        if self.cell.signal == "SIGKILL":
            instance = self.cluster.children[MEMBERS[self.cell.victim]]
            wait_for(lambda: instance.dead, f"{instance.member_id} to end without its worker")
            wait_for(lambda: all(w.ended for w in self.workers), "its other worker to end")
        return moving

    @property
    def _is_itself(self) -> bool:
        return False

    @property
    def _may_err(self) -> str:
        return MEMBERS[self.cell.victim] if self.cell.signal == "SIGKILL" else ""

    @property
    def _victim(self) -> Worker:
        return self.workers[1]


def test_a_move_there_and_back_without_a_fault(shared: Shared) -> None:
    with shared.lend() as cluster:
        move_there_and_back(cluster, SIZES, answers.unmoved)


@pytest.mark.parametrize("cell", cells())
def test_a_fault_of_a_worker_in_a_move(shared: Shared, cell: Cell) -> None:
    with shared.lend() as cluster:
        WorkerRun(cluster, cell, SIZES, answers.unmoved).run()
