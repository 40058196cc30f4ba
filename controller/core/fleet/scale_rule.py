"""The rule of auto-scaling: one check, from the load to a decision and why, in words.

    up      while F_scale < x, instances that start counted as empty ones: as many as bring it back
            to x, at most `max_added`; at once, and to the full, below the minimum
    down    one, if F_scale without its memory, its requests kept, is still above y, or if there is
            no request at all; at once above the maximum. It is the one with the fewest running
            requests, then by id

With targets for TTFT or TPOT it is up too while the estimate for the next minute misses one, as
many as bring it there, unless more would not help; and down only if without that one all hold with
a margin.

    keep    instead of an up while an earlier down still drains its instance: that one stays, as it
            needs no start

F_scale must have been out of its range for the persistence time. Nothing else is decided while an
earlier action is pending. As x <= y, a load that stays as it is never leads to both.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from controller.core.fleet.outlook import (
    NOTHING_KNOWN,
    TARGET_MARGIN,
    ClusterLoad,
    Estimate,
    Outlook,
    Target,
)
from controller.core.load.snapshot import InstanceSnapshot
from controller.core.settings import AutoscaleConfig


class ScaleReason(StrEnum):
    BELOW_MINIMUM = "below_minimum"
    ABOVE_MAXIMUM = "above_maximum"
    LOW_FREENESS = "low_freeness"
    """F_scale is below x."""
    HIGH_FREENESS = "high_freeness"
    """F_scale is above y with one instance less too."""
    NO_TRAFFIC = "no_traffic"
    """No request runs or waits."""
    TTFT_TARGET = "ttft_target"
    """The estimated TTFT is above its target."""
    TPOT_TARGET = "tpot_target"
    OUT_OF_REACH = "out_of_reach"
    """An estimate is above its target, and more instances would not help."""
    TARGET_NEEDS_IT = "target_needs_it"
    """One instance could go, but a target would not hold with its margin."""
    IN_RANGE = "in_range"
    PENDING = "pending"
    """An earlier action is not over."""
    LOW_LATELY = "low_lately"
    """F_scale is below x, or a target is missed, but not for the persistence time."""
    HIGH_LATELY = "high_lately"
    """One instance could go, but not for the persistence time."""
    AT_MINIMUM = "at_minimum"
    """One instance could go, but for the minimum."""
    AT_MAXIMUM = "at_maximum"
    """More instances are wanted, but for the maximum."""
    START_FAILED = "start_failed"
    """More instances are wanted, but one failed to start lately."""


@dataclass(frozen=True, slots=True)
class ScaleState:
    """What one check hands to the next one. Times are the caller's, in seconds, of any origin."""

    next_check_s: float
    low_since_s: float | None = None
    """Since when every check found F_scale below x, or a target missed."""
    high_since_s: float | None = None
    """Since when every check found room for one instance less."""

    @staticmethod
    def first(config: AutoscaleConfig, now_s: float) -> "ScaleState":
        return ScaleState(now_s + config.first_check_after_s)


@dataclass(frozen=True, slots=True)
class ScaleDecision:
    """At most one of `num_added`, `removed_id` and `kept_id` is set."""

    reason: ScaleReason
    num_requests: int
    """Running, queued and held."""
    freeness_steps: float
    """F_scale now, of the schedulable instances."""
    freeness_started_steps: float
    """F_scale with those that start as empty ones: what is compared with x."""
    freeness_less_steps: float | None
    """F_scale without the memory of the one that would go next: what is compared with y. None
    without a schedulable instance."""
    num_added: int = 0
    removed_id: str | None = None
    kept_id: str | None = None
    """The instance that drains, and is to stay after all."""
    estimate: Estimate = NOTHING_KNOWN
    """For the next minute, once those serve that start."""
    estimate_less: Estimate = NOTHING_KNOWN
    """For the next minute with one instance less."""
    missed: Target | None = None
    """The target that the first of them misses, or else the second with its margin."""

    @property
    def change(self) -> int:
        """Instances more than without it; -1: one less."""
        return self.num_added + (self.kept_id is not None) - (self.removed_id is not None)

    @property
    def deed(self) -> str:
        """`add 2`, `remove i-3`, `keep i-3`; empty where nothing is to be done."""
        if self.num_added:
            return f"add {self.num_added}"
        if self.removed_id is not None:
            return f"remove {self.removed_id}"
        return "" if self.kept_id is None else f"keep {self.kept_id}"


def decide(
    config: AutoscaleConfig, state: ScaleState, load: ClusterLoad, now_s: float
) -> tuple[ScaleDecision | None, ScaleState]:
    """The decision and the state for the next check; None, and the same state, before
    `state.next_check_s`."""
    if now_s < state.next_check_s:
        return None, state
    victim = _victim(load)
    less = None if victim is None else load.freeness(-victim.capacity_blocks)
    idle = load.num_requests == 0
    outlook = Outlook(config, load)
    short = load.freeness_started() < config.up_below_steps
    low = not idle and (short or outlook.helps())
    spare = less is not None and (idle or less > config.down_above_steps)
    high = spare and (idle or outlook.missed_with_one_less() is None)
    state = ScaleState(
        now_s + config.check_interval_s,
        _since(state.low_since_s, now_s) if low else None,
        _since(state.high_since_s, now_s) if high else None,
    )
    reason, change = _choose(config, state, load, outlook, now_s)
    missed = None if idle else outlook.missed()
    if reason is ScaleReason.IN_RANGE and missed is not None:
        reason = ScaleReason.OUT_OF_REACH
    elif reason is ScaleReason.IN_RANGE and spare and not high:
        reason, missed = ScaleReason.TARGET_NEEDS_IT, outlook.missed_with_one_less()
    decision = ScaleDecision(
        reason,
        load.num_requests,
        load.freeness(),
        load.freeness_started(),
        less,
        estimate=outlook.estimate(0),
        estimate_less=outlook.estimate_less(),
        missed=missed,
    )
    if change > 0 and load.leaving_id is not None:
        decision = replace(decision, kept_id=load.leaving_id)
    elif change > 0:
        decision = replace(decision, num_added=change)
    elif change < 0 and victim is not None:
        decision = replace(decision, removed_id=victim.instance_id)
    return decision, state


def _victim(load: ClusterLoad) -> InstanceSnapshot | None:
    return min(
        load.schedulable, key=lambda each: (each.num_running, each.instance_id), default=None
    )


def _choose(
    config: AutoscaleConfig, state: ScaleState, load: ClusterLoad, outlook: Outlook, now_s: float
) -> tuple[ScaleReason, int]:
    """Why, and how many instances more (-1: one less)."""
    if load.action_pending:
        return ScaleReason.PENDING, 0
    num_serving = len(load.schedulable)
    num_coming = num_serving + load.num_starting
    if load.leaving_id is not None:
        is_short = num_coming < config.min_instances
        return _keep(config, state, _up_reason(config, load, outlook), now_s, is_short=is_short)
    if num_coming < config.min_instances:
        num_missing = config.min_instances - num_coming
        return _more(config, load, now_s, ScaleReason.BELOW_MINIMUM, num_missing)
    # One that only starts may take long, or fail: no reason to remove one that serves.
    may_remove = num_serving > config.min_instances
    if may_remove and num_coming + load.num_unavailable > config.max_instances:
        return ScaleReason.ABOVE_MAXIMUM, -1
    if state.low_since_s is not None:
        if now_s < state.low_since_s + config.up_persistence_s:
            return ScaleReason.LOW_LATELY, 0
        reason = _up_reason(config, load, outlook)
        return _more(config, load, now_s, reason, _num_wanted(config, load, outlook))
    if state.high_since_s is not None:
        if not may_remove:
            return ScaleReason.AT_MINIMUM, 0
        if now_s < state.high_since_s + config.down_persistence_s:
            return ScaleReason.HIGH_LATELY, 0
        return ScaleReason.HIGH_FREENESS if load.num_requests else ScaleReason.NO_TRAFFIC, -1
    return ScaleReason.IN_RANGE, 0


def _keep(
    config: AutoscaleConfig, state: ScaleState, reason: ScaleReason, now_s: float, *, is_short: bool
) -> tuple[ScaleReason, int]:
    if is_short:
        return ScaleReason.BELOW_MINIMUM, 1
    low_since_s = state.low_since_s
    if low_since_s is not None and now_s >= low_since_s + config.up_persistence_s:
        return reason, 1
    return ScaleReason.PENDING, 0


def _up_reason(config: AutoscaleConfig, load: ClusterLoad, outlook: Outlook) -> ScaleReason:
    """Why more are wanted, if any are."""
    if load.freeness_started() < config.up_below_steps:
        return ScaleReason.LOW_FREENESS
    missed = outlook.missed()
    return ScaleReason.TPOT_TARGET if missed is Target.TPOT else ScaleReason.TTFT_TARGET


def _num_wanted(config: AutoscaleConfig, load: ClusterLoad, outlook: Outlook) -> int:
    """The fewest that bring F_scale back to x, and the estimates to the targets as far as more
    instances help; at most `max_added`."""
    for num_added in range(1, config.max_added):
        enough = load.freeness_started(num_added) >= config.up_below_steps
        if enough and not outlook.helps(num_added):
            return num_added
    return config.max_added


def _more(
    config: AutoscaleConfig, load: ClusterLoad, now_s: float, reason: ScaleReason, num_wanted: int
) -> tuple[ScaleReason, int]:
    failed_s = load.last_failed_start_s
    if failed_s is not None and now_s < failed_s + config.retry_failed_start_s:
        return ScaleReason.START_FAILED, 0
    num_in_all = len(load.schedulable) + load.num_starting + load.num_unavailable
    num_added = min(num_wanted, config.max_instances - num_in_all)
    return (reason, num_added) if num_added > 0 else (ScaleReason.AT_MAXIMUM, 0)


def _since(since_s: float | None, now_s: float) -> float:
    return now_s if since_s is None else since_s


# -- in words ------------------------------------------------------------------------------


def why(decision: ScaleDecision, config: AutoscaleConfig) -> str:
    """`the cluster has 85 steps, fewer than 160`."""
    started, less = decision.freeness_started_steps, decision.freeness_less_steps
    low = f"the cluster has {started:.0f} steps, fewer than {config.up_below_steps:.0f}"
    high = "no request runs or waits"
    if decision.num_requests and less is not None:
        high = (
            f"with one instance less the cluster has {less:.0f} steps,"
            f" more than {config.down_above_steps:.0f}"
        )
    match decision.reason:
        case ScaleReason.BELOW_MINIMUM:
            return f"fewer than {config.min_instances} serve or start"
        case ScaleReason.ABOVE_MAXIMUM:
            return f"there are more than {config.max_instances}"
        case ScaleReason.LOW_FREENESS:
            return low
        case ScaleReason.HIGH_FREENESS | ScaleReason.NO_TRAFFIC:
            return high
        case ScaleReason.TTFT_TARGET | ScaleReason.TPOT_TARGET:
            return _missed(decision, config)
        case ScaleReason.OUT_OF_REACH:
            return f"{_missed(decision, config)}, and more instances would not help"
        case ScaleReason.TARGET_NEEDS_IT:
            return f"{high}, but {_less(decision, config)}"
        case ScaleReason.IN_RANGE:
            return "the load is within the range"
        case ScaleReason.PENDING:
            return "an earlier action is not over"
        case ScaleReason.LOW_LATELY:
            lately = low if started < config.up_below_steps else _missed(decision, config)
            return f"{lately}, but not for {config.up_persistence_s:g} s yet"
        case ScaleReason.HIGH_LATELY:
            return f"{high}, but not for {config.down_persistence_s:g} s yet"
        case ScaleReason.AT_MINIMUM:
            return f"{high}, but {config.min_instances} is the minimum"
        case ScaleReason.AT_MAXIMUM:
            return f"more are wanted, but {config.max_instances} is the maximum"
        case ScaleReason.START_FAILED:
            return (
                "more are wanted, but an instance could not start in the last"
                f" {config.retry_failed_start_s:g} s"
            )


def _missed(decision: ScaleDecision, config: AutoscaleConfig) -> str:
    """`the P99 TTFT of the next minute is estimated at 3.1 s, and 2 s is the target`."""
    target = decision.missed
    if target is None:
        return "a target is missed"
    return (
        f"the P99 {target.upper()} of the next minute is estimated at"
        f" {decision.estimate.of(target) or 0.0:.3g} s,"
        f" and the target is {_wanted_s(target, config):g} s"
    )


def _less(decision: ScaleDecision, config: AutoscaleConfig) -> str:
    target = decision.missed
    found_s = None if target is None else decision.estimate_less.of(target)
    if target is None or found_s is None:
        return "what clients saw in the last minute tells of another number of instances"
    return (
        f"its P99 {target.upper()} is estimated at {found_s:.3g} s, more than"
        f" {100 * TARGET_MARGIN:.0f}% of the target of {_wanted_s(target, config):g} s"
    )


def _wanted_s(target: Target, config: AutoscaleConfig) -> float:
    wanted_s = config.target_ttft_s if target is Target.TTFT else config.target_tpot_s
    return 0.0 if wanted_s is None else wanted_s
