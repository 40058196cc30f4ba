"""What a check of auto-scaling looks at, and what would be with another number of instances.

F_scale is the freeness of the cluster as one pool, over the schedulable instances:

    F_scale = bs * sum(M - used - fill - demand of all queued) / max(1, sum(running + queued))

No headroom is taken off: it is the freeness for normal requests. What is held at the controller is
queued too.

The latencies of the next minute go by a request's share of an instance. With R running requests on
S instances that serve, and N instances,

    growth(N)  = max(1, R / N) / max(1, R / S)
    TPOT(N)    = P99 of the last minute * growth(N)
    TTFT(N)    = the larger of max(P99 of the last minute, the longest wait so far) * growth(N)
                 and waiting requests / (first tokens per second of the last minute * N / S)

That takes all of a step's time for proportional to the batch. A step has a fixed part too, so that
TPOT grows by less than this when an instance goes, which is the safe side; and falls by less when
one comes, so that one more decision may follow. A request that has an instance for itself gains
nothing by another one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from controller.core.load.snapshot import InstanceSnapshot
from controller.core.settings import AutoscaleConfig

WINDOW_S = 60.0


class Target(StrEnum):
    TTFT = "ttft"
    TPOT = "tpot"


@dataclass(frozen=True, slots=True)
class RecentLatencies:
    """What clients saw in the last minute. None: nobody saw one."""

    ttft_p99_s: float | None = None
    tpot_p99_s: float | None = None
    num_first_tokens: int = 0
    longest_wait_s: float = 0.0
    """Of the requests that wait now."""
    settled: bool = True
    """Whether as many instances served in all of that minute as now: else its percentiles tell of
    another cluster."""


@dataclass(frozen=True, slots=True)
class Crowd:
    """The requests, and the instances that serve."""

    num_running: int
    num_waiting: int
    num_serving: int


@dataclass(frozen=True, slots=True)
class Estimate:
    ttft_s: float | None = None
    tpot_s: float | None = None

    def of(self, target: Target) -> float | None:
        return self.ttft_s if target is Target.TTFT else self.tpot_s


NOTHING_KNOWN = Estimate()


def estimate(recent: RecentLatencies, crowd: Crowd, num_instances: int) -> Estimate:
    """The P99 of the next minute with `num_instances`; None where nothing is known. It does not
    rise with the number of instances, nor fall with a latency, a wait or the waiting requests."""
    if not crowd.num_serving or num_instances < 1:
        return NOTHING_KNOWN
    share = max(1.0, crowd.num_running / crowd.num_serving)
    growth = max(1.0, crowd.num_running / num_instances) / share
    ttft_p99_s = recent.ttft_p99_s if recent.settled else None
    tpot_p99_s = recent.tpot_p99_s if recent.settled else None
    known = [] if ttft_p99_s is None else [ttft_p99_s * growth]
    if crowd.num_waiting:
        known.append(recent.longest_wait_s * growth)
        if recent.num_first_tokens:
            per_s = recent.num_first_tokens / WINDOW_S * num_instances / crowd.num_serving
            known.append(crowd.num_waiting / per_s)
    return Estimate(max(known, default=None), None if tpot_p99_s is None else tpot_p99_s * growth)


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


TARGET_MARGIN = 0.8
"""One instance less only if with it each estimate is at most this share of its target: an estimate
that is nearer would soon call for it again."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """A target that is not set, or of whose latency nothing is known, is not missed."""

    config: AutoscaleConfig
    load: ClusterLoad

    def estimate(self, num_more: int) -> Estimate:
        """For the next minute, once all that start serve, and so many instances besides."""
        return self._with(len(self.load.schedulable) + self.load.num_starting + num_more)

    def estimate_less(self) -> Estimate:
        """With one instance less than serve now."""
        return self._with(len(self.load.schedulable) - 1)

    def missed(self, num_more: int = 0) -> Target | None:
        return self._above(self.estimate(num_more), 1.0)

    def helps(self, num_more: int = 0) -> bool:
        """Whether a target is missed with so many more, and by less with one more yet."""
        found = self.estimate(num_more)
        further = self.estimate(num_more + 1)
        return any(
            _is_less(further.of(target), found.of(target))
            for target in Target
            if self._misses(found, target, 1.0)
        )

    def missed_with_one_less(self) -> Target | None:
        """The target that would not hold with its margin. While the last minute tells of another
        number of instances, that is any."""
        targets = [target for target in Target if self._of(target) is not None]
        if targets and self.load.recent is not None and not self.load.recent.settled:
            return targets[0]
        return self._above(self.estimate_less(), TARGET_MARGIN)

    def _with(self, num_instances: int) -> Estimate:
        if self.load.recent is None:
            return NOTHING_KNOWN
        return estimate(self.load.recent, self.load.crowd, num_instances)

    def _above(self, found: Estimate, margin: float) -> Target | None:
        return next((each for each in Target if self._misses(found, each, margin)), None)

    def _misses(self, found: Estimate, target: Target, margin: float) -> bool:
        wanted_s, found_s = self._of(target), found.of(target)
        return wanted_s is not None and found_s is not None and found_s > margin * wanted_s

    def _of(self, target: Target) -> float | None:
        config = self.config
        return config.target_ttft_s if target is Target.TTFT else config.target_tpot_s


def _is_less(one_s: float | None, other_s: float | None) -> bool:
    return one_s is not None and other_s is not None and one_s < other_s
