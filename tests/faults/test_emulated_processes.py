"""The faults of a process in a move, on emulated engines: each place of a move and each fault of
each role in `make test`, all cells in `make test-full`."""

import pytest

from tests.faults import answers
from tests.faults.cells import Cell, parameters
from tests.faults.cluster import INSTANCES
from tests.faults.conftest import Shared
from tests.faults.run_cell import CellRun, Sizes, check_whole, move_there_and_back

ENGINE = "emulated"
SIZES = Sizes(prompt=200, outputs=120, long_outputs=300)
# Seconds, as in MoveTiming: long against what a busy machine takes, short against its defaults.
TIMING = {
    "retry_s": 0.1,
    "answer_timeout_s": 0.8,
    "stage_timeout_s": 1.0,
    "suspended_timeout_s": 0.8,
    "lease_s": 1.4,
    "memory_s": 0.4,
}
ORDINARY = (
    "controller-SIGKILL-source-pre_allocating",
    "destination-SIGSTOP-destination-reserving",
    "frontend-SIGSTOP-source-copying",
    "frontend-SIGKILL-destination-receiving",
    "destination-SIGSTOP-destination-holding",
    "destination-SIGKILL-source-suspended",
    "source-SIGSTOP-source-committing",
    "source-SIGKILL-destination-applying",
    "controller-SIGSTOP-source-fencing",
    "destination-SIGKILL-destination-committed",
    "source-SIGSTOP-source-migrated",
)


def test_a_move_there_and_back_without_a_fault(shared: Shared) -> None:
    with shared.lend() as cluster:
        move_there_and_back(cluster, SIZES, answers.emulated)


@pytest.mark.parametrize("cell", parameters(ORDINARY))
def test_a_fault_in_a_move(shared: Shared, cell: Cell) -> None:
    with shared.lend() as cluster:
        CellRun(cluster, cell, SIZES, answers.emulated).run()


def test_an_engine_that_hangs_under_a_living_loop_is_fenced_by_the_next_controller(
    shared: Shared,
) -> None:
    """It hangs before the controller is killed, so that the next one has only its Hellos."""
    with shared.lend() as cluster:
        cluster.mend()
        hung, other = INSTANCES
        client = cluster.submit("f-0", "in-a-hung-engine", hung, SIZES.prompt, SIZES.long_outputs)
        client.wait_tokens(3)
        cluster.children[hung].tell("hang")
        cluster.children[hung].wait_heard("hangs")
        cluster.controller.signal("SIGKILL")
        cluster.start("controller").wait_heard("serving")
        cluster.controller.tell("fence_after", seconds=1.0)
        assert check_whole(cluster, client, answers.emulated)[-1] == other
        assert client.events("replayed")
        cluster.controller.tell("fence_after", seconds=30.0)
        cluster.children[hung].tell("wake")
        cluster.wait_quiet(*INSTANCES)
        assert not (errors := cluster.new_errors()), errors
