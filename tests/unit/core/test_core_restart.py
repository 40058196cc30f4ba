"""The next step of a restart, for each state of the process and the instance."""

import pytest

from controller.core.emptying.claims import Restart
from controller.core.emptying.drains import InstanceProcess, RestartStep, restart_step

EMPTIED = Restart("d", 1.0, nonce="old")
AT_ONCE = Restart("d", 1.0, nonce="old", at_once=True)
WAIT, REPLACE = RestartStep.WAIT, RestartStep.REPLACE


@pytest.mark.parametrize(
    ("nonce", "alive", "serving", "failed", "step", "step_at_once"),
    [
        ("old", True, True, False, WAIT, REPLACE),
        # A process that hangs or could not start is alive and does not serve.
        ("old", True, False, True, WAIT, REPLACE),
        ("old", False, False, False, WAIT, WAIT),
        # An instance that died while it was emptied has its new process by that.
        ("new", True, False, False, WAIT, WAIT),
        ("new", True, True, False, RestartStep.DONE, RestartStep.DONE),
        ("new", True, False, True, RestartStep.FAILED, RestartStep.FAILED),
    ],
)
def test_the_old_process_ends_once_it_may_and_the_next_one_never(
    nonce, alive, serving, failed, step, step_at_once
) -> None:
    process = InstanceProcess(nonce, alive=alive, serving=serving, failed=failed)
    assert restart_step(EMPTIED, process, is_empty=False) is step
    assert restart_step(EMPTIED, process, is_empty=True) is step_at_once
    for is_empty in (False, True):
        assert restart_step(AT_ONCE, process, is_empty=is_empty) is step_at_once
