"""What is left of a drain.

A drain is about where requests run, never about whether: whatever a deadline does, requests run on.
`departure_plan` says what would go where, `drain_pace` how long that may take.
"""

from dataclasses import dataclass
from enum import StrEnum


class DrainState(StrEnum):
    DRAINING = "draining"
    DRAINED = "drained"
    """No request is left there, and none comes."""
    RESTARTING = "restarting"
    """Its process was ended, and another one starts."""
    ACTIVE = "active"


@dataclass(frozen=True, slots=True)
class Remainder:
    """What an instance still has by its last status. `num_awaited`: requests that were dispatched
    before the drain and are in no status yet."""

    num_running: int = 0
    num_queued: int = 0
    num_awaited: int = 0
    num_moves_in: int = 0
    num_moves_out: int = 0

    @property
    def num_requests(self) -> int:
        return self.num_running + self.num_queued + self.num_awaited

    @property
    def nothing(self) -> bool:
        return not (self.num_requests or self.num_moves_in or self.num_moves_out)
