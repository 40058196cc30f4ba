"""What is left of a drain.

A drain is about where requests run, never about whether: whatever a deadline does, requests run on.
`departure_plan` says what would go where, `drain_pace` how long that may take.
"""

from dataclasses import dataclass
from enum import StrEnum

from controller.core.operations.cluster_spec import DrainOrder


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


def is_overdue(order: DrainOrder, now_s: float) -> bool:
    """`now_s`: seconds since the epoch."""
    return order.deadline_s is not None and now_s >= order.deadline_s


def why_begun(order: DrainOrder, before: DrainOrder | None) -> str:
    """What the drain is for, in words, and the operator's reason. `before`: the order that `order`
    follows."""
    what = "to be removed" if order.removes else ""
    if order.evacuates:
        what = "to be evacuated"
    if order.restarts:
        what = "to be restarted at once" if order.at_once else "to be restarted"
    if before is not None and before.removes and not order.removes:
        what = "not to be removed any more; it drains on"
    if before is not None and before.restarts and not order.restarts:
        what = "its restart is over; it drains on"
    return ": ".join(words for words in (what, order.reason) if words)
