"""Auto-scaling in words, for the command line and the dashboard alike."""

from typing import TYPE_CHECKING

from controller.api.text.quantities import duration, latency

if TYPE_CHECKING:
    from controller.api.wire.status import AutoscaleCheck, AutoscaleStatus

RELEASE = "llumctl scale auto on"
_OUTCOMES = {"done": "done", "would": "not done", "blocked": "could not be done"}


def state(status: "AutoscaleStatus") -> str:
    """`on`, `dry-run, held at 3`."""
    return (
        status.mode
        if status.held is None
        else f"{status.mode}, held at {status.held.num_instances}"
    )


def summary(status: "AutoscaleStatus", now_s: float) -> str:
    """`autoscale on  3 of 1..8, wanted 4  last add 1, done 12s ago: the cluster has ...`; of the
    last decision to have more or fewer."""
    wanted = "" if status.num_wanted is None else f", wanted {status.num_wanted}"
    facts = [f"autoscale {state(status)}", f"{instances(status)}{wanted}"]
    if goals := targets(status):
        facts.append(goals)
    if (last := status.last_change or status.last) is not None:
        facts.append(f"last {decision(last, now_s)}")
    return "  ".join(facts)


def instances(status: "AutoscaleStatus") -> str:
    return f"{status.num_instances} of {status.min_instances}..{status.max_instances}"


def targets(status: "AutoscaleStatus") -> str:
    """`ttft 2.0s tpot 80ms`; empty without targets."""
    known = (("ttft", status.target_ttft_s), ("tpot", status.target_tpot_s))
    return " ".join(f"{name} {latency(at_s)}" for name, at_s in known if at_s is not None)


def decision(check: "AutoscaleCheck", now_s: float) -> str:
    """`add 2, done 12s ago: the cluster has 85 steps, fewer than 160`."""
    ago = f"{duration(max(0.0, now_s - check.time_s))} ago"
    if not check.deed:
        return f"{check.reason.replace('_', ' ')} {ago}: {check.why}"
    return f"{check.deed}, {_OUTCOMES.get(check.outcome, check.outcome)} {ago}: {check.why}"


def held(status: "AutoscaleStatus", now_s: float) -> str:
    """Why it does nothing though it is on; empty if nothing holds it."""
    hold = status.held
    if hold is None:
        return ""
    ago = duration(max(0.0, now_s - hold.since_s))
    return (
        f"held at {hold.num_instances} instances since {ago} by {hold.actor}: {RELEASE} releases it"
    )
