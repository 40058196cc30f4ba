"""Every cell of the migration fault table that a fault of a process makes, on emulated engines."""

from collections.abc import Callable

import pytest

from tests.faults import answers
from tests.faults.cells import CELLS, QUEUED_CELLS, Cell
from tests.faults.conftest import Shared
from tests.faults.run_cell import CellRun, Sizes, move_there_and_back

SIZES = Sizes(prompt=200, queued=640, blocker=690, outputs=120, long_outputs=300)
# Seconds, as in MoveTiming: long against what a busy machine takes, short against its defaults.
TIMING = {
    "retry_s": 0.1,
    "answer_timeout_s": 0.8,
    "stage_timeout_s": 1.0,
    "suspended_timeout_s": 0.8,
    "lease_s": 1.4,
    "memory_s": 0.4,
}


@pytest.fixture(scope="module")
def shared(share: Callable[..., Shared]) -> Shared:
    return share("emulated", TIMING)


def test_a_move_there_and_back_without_a_fault(shared: Shared) -> None:
    with shared.lend() as cluster:
        move_there_and_back(cluster, SIZES, answers.emulated)


@pytest.mark.parametrize("cell", [*CELLS, *QUEUED_CELLS], ids=lambda cell: cell.name)
def test_a_fault_in_a_move(shared: Shared, cell: Cell) -> None:
    with shared.lend() as cluster:
        CellRun(cluster, cell, SIZES, answers.emulated).run()
