"""What comes next in the restart of an instance: it is emptied, its process ends, another serves.

A process is known by its nonce, which it has before a controller gives it an incarnation.
"""

from dataclasses import dataclass
from enum import StrEnum

from controller.core.emptying.claims import Restart


class RestartStep(StrEnum):
    WAIT = "wait"
    """For the instance to be empty, or for the next process."""
    REPLACE = "replace"
    """The process may be ended; another one is started in its place."""
    DONE = "done"
    FAILED = "failed"
    """The next process cannot start, and is not tried again."""


@dataclass(frozen=True, slots=True)
class InstanceProcess:
    """The instance's last process that the controller heard of."""

    nonce: str
    alive: bool
    serving: bool
    failed: bool


def restart_step(claim: Restart, process: InstanceProcess, *, is_empty: bool) -> RestartStep:
    """The next step of a claim to restart. A process that was replaced for another reason, as
    it died, needs no second restart."""
    if process.nonce != claim.nonce:
        if process.serving:
            return RestartStep.DONE
        return RestartStep.FAILED if process.failed else RestartStep.WAIT
    may_end = is_empty or claim.at_once
    return RestartStep.REPLACE if process.alive and may_end else RestartStep.WAIT
