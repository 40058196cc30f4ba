"""The faults of a process in a move, on vLLM's engines: of the built-in model, and of models with
sliding windows and with states, whose requests have a tail. `make test` has such faults on emulated
engines."""

from typing import Any

import pytest

from tests.faults import answers
from tests.faults.cells import Cell, parameters
from tests.faults.conftest import Shared
from tests.faults.engines import STATES, WINDOWS
from tests.faults.run_cell import CellRun, Sizes, move_there_and_back

SHORT = Sizes(prompt=200, outputs=200, long_outputs=600)
# With states vLLM makes blocks of 128 tokens: with fewer of them no stage comes before the last.
LONG = Sizes(prompt=600, outputs=200, long_outputs=600)
SIZES = {"vllm": SHORT, WINDOWS: SHORT, STATES: LONG}
# Seconds, as in MoveTiming: its defaults, less the long ones.
TIMING = {
    "retry_s": 0.2,
    "answer_timeout_s": 1.0,
    "stage_timeout_s": 1.5,
    "suspended_timeout_s": 1.0,
    "lease_s": 2.0,
    "memory_s": 0.5,
}

pytestmark = pytest.mark.full


def cells() -> list[Any]:
    """What a dead frontend or controller means does not depend on the model."""
    return [
        pytest.param(kind, *each.values, id=f"{kind}-{each.id}", marks=each.marks)
        for kind in SIZES
        for each in parameters()
        if kind == "vllm" or each.values[0].victim in ("source", "destination")
    ]


@pytest.mark.parametrize("shared", SIZES, indirect=True, scope="module")
def test_a_move_there_and_back_without_a_fault(shared: Shared) -> None:
    with shared.lend() as cluster:
        move_there_and_back(cluster, SIZES[cluster.engine], answers.unmoved)


@pytest.mark.parametrize(("shared", "cell"), cells(), indirect=["shared"], scope="module")
def test_a_fault_in_a_move(shared: Shared, cell: Cell) -> None:
    with shared.lend() as cluster:
        CellRun(cluster, cell, SIZES[cluster.engine], answers.unmoved).run()
