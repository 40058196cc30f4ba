"""What is left of a drain.

A drain is about where requests run, never about whether: whatever a deadline does, requests run
on. What would go where is in `departure_plan`, how long it may take in `drain_pace`.
"""

from dataclasses import dataclass
from enum import StrEnum

from controller.core.operations.cluster_spec import DrainOrder


class DrainState(StrEnum):
    DRAINING = "draining"
    DRAINED = "drained"
    """Nothing is left there, and nothing comes."""
    ACTIVE = "active"


@dataclass(frozen=True, slots=True)
class Remainder:
    """What an instance still has, as it said last. `num_awaited`: dispatched before the drain, and
    in no status yet."""

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


def is_overdue(order: DrainOrder, now_s: float) -> bool:
    """`now_s`: seconds since the epoch."""
    return order.deadline_s is not None and now_s >= order.deadline_s
