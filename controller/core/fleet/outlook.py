"""What a check of auto-scaling looks at: the load, the load with a different number of instances,
and how the starts of the planned instances go.

F_scale is the freeness of the cluster as one pool, over the schedulable instances:

    F_scale = bs * sum(M - used - fill - demand of all queued) / max(1, sum(running + queued))

No headroom is subtracted, as this is the freeness for normal requests. Requests that wait at the
controller count as queued.

F_scale counts memory. Where computing is short, memory may be free all the time, so the backlog
counts too: the time that an instance needs, on average, to compute the prompts that have come.

The latencies of the next minute are estimated from a request's share of an instance. With R running
requests on S instances that serve, and N instances,

    growth(N)  = max(1, R / N) / max(1, R / S)
    TPOT(N)    = P99 of the last minute * growth(N)
    TTFT(N)    = the larger of max(P99 of the last minute, the longest wait so far) * growth(N)
                 and waiting requests / (first tokens per second of the last minute * N / S)

This assumes that the whole time of a step is proportional to the batch. A step also has a fixed
part. So when an instance is removed, TPOT grows by less than the estimate, which is the safe side.
When one is added, TPOT falls by less, so that one more decision may follow. A request that has an
instance to itself gains nothing from another one.
"""

from collections import deque
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from controller.core.load.snapshot import InstanceSnapshot
from controller.core.settings import AutoscaleConfig

WINDOW_S = 60.0


class Target(StrEnum):
    TTFT = "ttft"
    TPOT = "tpot"


@dataclass(frozen=True, slots=True)
class RecentLatencies:
    """The latencies that clients saw in the last minute. None stands for a latency of which there
    was none."""

    ttft_p99_s: float | None = None
    tpot_p99_s: float | None = None
    num_first_tokens: int = 0
    longest_wait_s: float = 0.0
    """The longest wait so far among the requests that wait now."""
    settled: bool = True
    """Whether the same number of instances as now served throughout that minute. If not, the
    percentiles describe a different cluster."""


@dataclass(frozen=True, slots=True)
class Crowd:
    """How many requests there are, and how many instances serve."""

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
    """The load of the cluster. Instances that failed to start for good are in none of the
    fields."""

    schedulable: Sequence[InstanceSnapshot]
    block_size: int
    new_capacity_blocks: int
    """M of an instance that is starting."""
    num_waiting: int = 0
    """Requests that wait at the controller."""
    waiting_demand_blocks: int = 0
    waiting_work_s: float = 0.0
    """How long one instance would compute the prompts of the requests that wait at the
    controller."""
    num_starting: int = 0
    """Instances that are planned or loading; they count as empty."""
    num_unavailable: int = 0
    """Instances that stall, or that an operator drains without removing them. They only count
    towards the maximum."""
    action_pending: bool = False
    """Whether an earlier decision or an operator's scale is not carried out yet: a launched
    instance has neither served nor failed, or a drained instance still exists."""
    leaving_id: str | None = None
    """The instance that an earlier decision drains, if nothing else is pending. It is not
    schedulable, but it may still be made to stay."""
    last_failed_start_s: float | None = None
    """When an instance last failed to start for good, by the clock of the checks."""
    recent: RecentLatencies | None = None
    """The latencies of clients lately, where they are known; they are compared with the targets."""

    @property
    def crowd(self) -> Crowd:
        num_running = sum(each.num_running for each in self.schedulable)
        return Crowd(num_running, self.num_requests - num_running, len(self.schedulable))

    @property
    def num_requests(self) -> int:
        on_instances = sum(each.num_running + each.num_queued for each in self.schedulable)
        return self.num_waiting + on_instances

    @property
    def free_blocks(self) -> int:
        """The blocks that no request claims, of all instances; negative if requests want more
        blocks than there are."""
        return sum(each.unclaimed_blocks for each in self.schedulable) - self.waiting_demand_blocks

    def freeness(self, more_blocks: int = 0) -> float:
        """F_scale in decode steps, if the cluster had `more_blocks` (negative: fewer)."""
        return self.block_size * (self.free_blocks + more_blocks) / max(1, self.num_requests)

    def freeness_started(self, num_more: int = 0) -> float:
        """F_scale once all instances that are starting serve, and `num_more` further instances do
        too."""
        return self.freeness((self.num_starting + num_more) * self.new_capacity_blocks)

    def backlog_s(self, num_more: int = 0) -> float:
        """How long an instance would compute prompts, on average, if all that have come were spread
        evenly, also over the instances that are starting and over `num_more` further ones; 0
        without instances."""
        work_s = sum(each.backlog_s for each in self.schedulable) + self.waiting_work_s
        num_instances = len(self.schedulable) + self.num_starting + num_more
        return work_s / num_instances if num_instances > 0 else 0.0


TARGET_MARGIN = 0.8
"""An instance is removed only if each estimate without it is at most this share of its target, as a
higher estimate would soon call for the instance again."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """The estimates of a check against the targets. A target that is not set counts as met, and so
    does one whose latency is not known."""

    config: AutoscaleConfig
    load: ClusterLoad

    def estimate(self, num_more: int) -> Estimate:
        """The estimate for the next minute, once all instances that are starting serve, and
        `num_more` further ones do too."""
        return self._with(len(self.load.schedulable) + self.load.num_starting + num_more)

    def estimate_less(self) -> Estimate:
        """The estimate with one instance less than serve now."""
        return self._with(len(self.load.schedulable) - 1)

    def missed(self, num_more: int = 0) -> Target | None:
        return self._above(self.estimate(num_more), 1.0)

    def helps(self, num_more: int = 0) -> bool:
        """Whether a target is missed with `num_more` more instances, and would be missed by less
        with one further instance."""
        estimate = self.estimate(num_more)
        further = self.estimate(num_more + 1)
        return any(
            _is_less(further.of(target), estimate.of(target))
            for target in Target
            if self._misses(estimate, target, 1.0)
        )

    def missed_with_one_less(self) -> Target | None:
        """The target that would not hold with its margin. If the number of instances changed within
        the last minute, this is any target."""
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


# -- the starts of the planned instances -----------------------------------------------------------
#
# Which instances are launched, which of them come to serve, which cannot start, and how long a
# start takes.
#
#     STARTING   launched, or died and started again, and not serving yet
#     SERVING    it serves, also if it stalls or drains
#     FAILED     its process said that it cannot start, or it took too long
#
#     STARTING -> SERVING, FAILED     SERVING -> STARTING     FAILED -> SERVING, STARTING
#
# A FAILED instance is STARTING again when another process of it tries to start. This controller
# does not know what an earlier controller saw. So if an instance does not serve when the controller
# begins, the instance counts as launched at that moment.

MAX_MEASURED = 8
_EARLIER_S = 1.0
"""If a process has run for longer than this machine has waited for it, by more than this margin,
this machine did not see its launch."""


RETRY_S = 1.0
"""The pause before a failed launch is repeated."""


class Launches:
    """Which instances are launched now: the instances that are wanted and have no process. A launch
    that failed is repeated a while later, because Ray may still be cleaning up after an instance
    that died with its controller. Times are in seconds, of any monotonic clock."""

    def __init__(self) -> None:
        self._retry_at_s: dict[str, float] = {}
        """For each instance that was wanted at the last look and whose last launch failed, when the
        launch is repeated."""

    def look(self, wanted: Collection[str], there: Container[str], now_s: float) -> list[str]:
        """The instances to launch. `there`: the instances that have a process, or have been
        launched. Mutates."""
        retry_at_s = self._retry_at_s
        self._retry_at_s = {
            key: at_s for key, at_s in retry_at_s.items() if key in wanted and key not in there
        }
        return [key for key in wanted if key not in there and now_s >= retry_at_s.get(key, now_s)]

    def failed(self, instance_id: str, now_s: float) -> None:
        """The launch of the instance failed."""
        self._retry_at_s[instance_id] = now_s + RETRY_S


class StartState(StrEnum):
    STARTING = "starting"
    SERVING = "serving"
    FAILED = "failed"


@dataclass(slots=True)
class _Start:
    since_s: float
    """When the start began; for an instance that serves, its last start."""
    state: StartState = StartState.STARTING
    has_served: bool = False


class InstanceStarts:
    """How the starts of instances go. `look` takes in the present state. Times are in seconds, of
    any monotonic clock."""

    def __init__(self) -> None:
        self._starts: dict[str, _Start] = {}
        """The starts of exactly the instances that were planned at the last look, by instance
        id."""
        self._took_s: deque[float] = deque(maxlen=MAX_MEASURED)
        """How long the latest starts took, of launches that this machine saw."""
        self.last_failed_s: float | None = None
        """When an instance was last found to be unable to start."""

    @property
    def cold_start_s(self) -> float | None:
        """The median time of the latest starts, from the launch until the instance serves."""
        return median(self._took_s) if self._took_s else None

    @property
    def launched(self) -> Collection[str]:
        """The launched instances that have not served yet and may still do so."""
        return {key for key in self.starting if not self._starts[key].has_served}

    @property
    def starting(self) -> Collection[str]:
        """The instances that were launched, and those that died and are being started again."""
        return self._in(StartState.STARTING)

    @property
    def failed(self) -> Collection[str]:
        return self._in(StartState.FAILED)

    def look(
        self,
        planned: Collection[str],
        serving: Mapping[str, float],
        gave_up: Collection[str],
        timeout_s: float,
        now_s: float,
    ) -> None:
        """Takes in the present state. `serving`: by instance that serves, for how long its process
        had run at its last Hello. `gave_up`: the instances that said that they cannot start.
        `timeout_s`: an instance that does not serve after this time has failed. Mutates."""
        self._starts = {key: self._starts.get(key) or _Start(now_s) for key in planned}
        for instance_id, start in self._starts.items():
            up_s = serving.get(instance_id)
            if up_s is not None:
                took_s = now_s - start.since_s
                if not start.has_served and up_s <= took_s + _EARLIER_S:
                    self._took_s.append(took_s)
                start.state, start.has_served = StartState.SERVING, True
                continue
            if start.state is StartState.SERVING:
                start.state, start.since_s = StartState.STARTING, now_s
            is_late = now_s - start.since_s >= timeout_s
            if not is_late and instance_id not in gave_up:
                start.state = StartState.STARTING
            elif start.state is not StartState.FAILED:
                start.state, self.last_failed_s = StartState.FAILED, now_s

    def check(self, now_s: float) -> None:
        """Raises AssertionError if an invariant is broken."""
        for instance_id, start in self._starts.items():
            assert start.since_s <= now_s, f"{instance_id} starts in the future"
            is_serving = start.state is StartState.SERVING
            assert start.has_served or not is_serving, f"{instance_id} serves and never did"
        assert all(took_s >= 0 for took_s in self._took_s), "a start took less than no time"
        if self.failed:
            assert self.last_failed_s is not None, "one failed, and nobody knows when"
        assert self.last_failed_s is None or self.last_failed_s <= now_s

    def _in(self, state: StartState) -> set[str]:
        return {key for key, each in self._starts.items() if each.state is state}
