"""The next step of a restart, for each state of the process and the instance."""

import itertools

import pytest

from controller.core.emptying.claims import Restart
from controller.core.emptying.drains import InstanceProcess, RestartStep, restart_step

EMPTIED = Restart("d", 1.0, nonce="old")
AT_ONCE = Restart("d", 1.0, nonce="old", at_once=True)


@pytest.mark.parametrize(
    ("claim", "is_empty", "step"),
    [
        (EMPTIED, False, RestartStep.WAIT),
        (EMPTIED, True, RestartStep.REPLACE),
        (AT_ONCE, False, RestartStep.REPLACE),
        (AT_ONCE, True, RestartStep.REPLACE),
    ],
)
@pytest.mark.parametrize("serving", [False, True])
def test_the_old_process_ends_once_it_may(
    claim: Restart, is_empty: bool, step: RestartStep, serving: bool
) -> None:
    """Also a process that hangs or could not start: it is alive and does not serve."""
    process = InstanceProcess("old", alive=True, serving=serving, failed=not serving)
    assert restart_step(claim, process, is_empty=is_empty) is step


def test_a_process_that_is_gone_is_not_ended_again() -> None:
    gone = InstanceProcess("old", alive=False, serving=False, failed=False)
    for claim, is_empty in itertools.product((EMPTIED, AT_ONCE), (False, True)):
        assert restart_step(claim, gone, is_empty=is_empty) is RestartStep.WAIT


@pytest.mark.parametrize("claim", [EMPTIED, AT_ONCE])
@pytest.mark.parametrize("is_empty", [False, True])
def test_the_next_process_is_waited_for_and_never_ended(claim: Restart, is_empty: bool) -> None:
    """An instance that died while it was emptied has its new process by that."""
    for serving, failed, step in (
        (False, False, RestartStep.WAIT),
        (True, False, RestartStep.DONE),
        (False, True, RestartStep.FAILED),
    ):
        process = InstanceProcess("new", alive=True, serving=serving, failed=failed)
        assert restart_step(claim, process, is_empty=is_empty) is step
