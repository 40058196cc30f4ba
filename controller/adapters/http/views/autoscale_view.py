"""Auto-scaling as the control API reports it."""

from controller.api.wire.autoscale import (
    AutoscaleCheck,
    AutoscaleHoldStatus,
    AutoscaleStatus,
)
from controller.core.fleet.autoscaler import Check
from controller.runtime.controller.cluster import ControllerProcess


def autoscale_status(controller: ControllerProcess) -> AutoscaleStatus:
    held, live = controller.autoscaling.held, controller.live.autoscale
    found = controller.autoscaling.view()
    next_in_s = found.next_check_in_s
    return AutoscaleStatus(
        mode=live.config.mode,
        held=None
        if held is None
        else AutoscaleHoldStatus(
            actor=held.actor, num_instances=held.num_instances, since_s=round(held.since_s, 3)
        ),
        min_instances=live.config.min_instances,
        max_instances=live.config.max_instances,
        target_ttft_s=live.config.target_ttft_s,
        target_tpot_s=live.config.target_tpot_s,
        num_instances=found.num_planned,
        num_wanted=None if found.last is None else found.last.num_wanted,
        cold_start_s=_rounded(found.cold_start_s),
        next_check_in_s=None if next_in_s is None else round(next_in_s, 1),
        last=_check(found.last),
        last_change=_check(found.last_change),
        num_checks_by_reason={str(key): count for key, count in found.num_checks.items()},
    )


def _check(check: Check | None) -> AutoscaleCheck | None:
    if check is None:
        return None
    decision = check.decision
    return AutoscaleCheck(
        cause_id=check.cause_id,
        time_s=round(check.time_s, 3),
        reason=decision.reason,
        why=check.why,
        deed=decision.deed,
        outcome=check.outcome.value,
        num_wanted=check.num_wanted,
        num_requests=decision.num_requests,
        freeness_steps=round(decision.freeness_steps, 1),
        freeness_started_steps=round(decision.freeness_started_steps, 1),
        freeness_less_steps=None
        if decision.freeness_less_steps is None
        else round(decision.freeness_less_steps, 1),
        ttft_s=_rounded(decision.estimate.ttft_s),
        tpot_s=_rounded(decision.estimate.tpot_s),
        added=check.added,
        removed=decision.removed_id,
        kept=decision.kept_id,
    )


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)
