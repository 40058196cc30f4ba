"""What a check of auto-scaling looks at, and F_scale: the freeness of the cluster as one pool.

    F_scale = bs * sum(M - used - fill - demand of all queued) / max(1, sum(running + queued))

over the schedulable instances. No headroom is taken off: it is the freeness for normal requests.
What is held at the controller is queued too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from controller.core.autoscale.estimate import Crowd, RecentLatencies
from controller.core.load.snapshot import InstanceSnapshot


@dataclass(frozen=True, slots=True)
class ClusterLoad:
    """An instance that failed to start for good stands nowhere here."""

    schedulable: Sequence[InstanceSnapshot]
    block_size: int
    new_capacity_blocks: int
    """M of an instance that starts."""
    num_held: int = 0
    """Requests that wait at the controller."""
    held_demand_blocks: int = 0
    num_starting: int = 0
    """Instances that are planned or loading: they count as empty ones."""
    num_unavailable: int = 0
    """Instances that stall, or that an operator drains without removing them: they keep their
    place below the maximum and count for nothing else."""
    action_pending: bool = False
    """Whether an earlier decision, or a scale of an operator, is not carried out yet: what it
    launched neither serves nor failed, or what it drained is still there."""
    leaving_id: str | None = None
    """The instance that an earlier decision drains, if that is all that is pending: it is none of
    the schedulable ones, and may still be kept."""
    last_failed_start_s: float | None = None
    """When an instance last failed to start for good, by the clock of the checks."""
    recent: RecentLatencies | None = None
    """What clients saw lately, where that is known: targets go by it."""

    @property
    def crowd(self) -> Crowd:
        num_running = sum(each.num_running for each in self.schedulable)
        return Crowd(num_running, self.num_requests - num_running, len(self.schedulable))

    @property
    def num_requests(self) -> int:
        return self.num_held + sum(each.num_running + each.num_queued for each in self.schedulable)

    @property
    def free_blocks(self) -> int:
        """What is unclaimed in all; negative if more is wanted than there is."""
        return sum(each.unclaimed_blocks for each in self.schedulable) - self.held_demand_blocks

    def freeness(self, more_blocks: int = 0) -> float:
        """F_scale in decode steps, if the cluster had `more_blocks` (negative: fewer)."""
        return self.block_size * (self.free_blocks + more_blocks) / max(1, self.num_requests)

    def freeness_started(self, num_more: int = 0) -> float:
        """F_scale once all that start serve, and `num_more` instances besides."""
        return self.freeness((self.num_starting + num_more) * self.new_capacity_blocks)
