"""Why a check decided as it did, in words for events, `status` and the dashboard."""

from controller.core.autoscale.config import AutoscaleConfig
from controller.core.autoscale.decide import ScaleDecision, ScaleReason


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
        case ScaleReason.IN_RANGE:
            return "the load is within the range"
        case ScaleReason.PENDING:
            return "an earlier action is not over"
        case ScaleReason.LOW_LATELY:
            return f"{low}, but not for {config.up_persistence_s:g} s yet"
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
