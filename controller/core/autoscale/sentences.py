"""Why a check decided as it did, in words for events, `status` and the dashboard."""

from controller.core.autoscale.config import AutoscaleConfig
from controller.core.autoscale.decide import ScaleDecision, ScaleReason
from controller.core.autoscale.estimate import Target
from controller.core.autoscale.targets import TARGET_MARGIN


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
