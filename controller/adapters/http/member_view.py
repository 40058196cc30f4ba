"""An instance or a frontend as the status shows it.

A figure that an instance counts (`InstanceSnapshot`, `StatusPushed`) is a field of the status by
the same name: it needs no line here.
"""

import math
import time
from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

from controller.api.wire.status import (
    DrainStatus,
    EmulationStatus,
    FrontendStatus,
    InstanceState,
    InstanceStatus,
    KeptForStatus,
    QueueHeadStatus,
)
from controller.core.admission.instance_pool import InstanceRecord
from controller.core.admission.placement import queue_reason
from controller.core.fleet.cluster_spec import planned_instances
from controller.core.load.closed import Closed
from controller.core.load.freeness import (
    freeness,
    headroom_by_rank,
    instance_virtual_usage,
    total_headroom_blocks,
)
from controller.core.load.snapshot import InstanceSnapshot, Level
from controller.runtime.controller.cluster import ControllerProcess
from controller.runtime.controller.roster import Member
from controller.runtime.messages.members import StatusPushed

T = TypeVar("T")

_OTHERWISE = {"incarnation", "queue_head", "emulation"}
"""Fields whose values are made below."""
_COUNTED = InstanceStatus.model_fields.keys() & InstanceSnapshot.__annotations__.keys() - _OTHERWISE
_PUSHED = InstanceStatus.model_fields.keys() & StatusPushed.__annotations__.keys() - _OTHERWISE


def frontend_status(member: Member, now_s: float, *, stopping: bool) -> FrontendStatus:
    return FrontendStatus(
        id=member.member_id,
        state=_process_state(member, stopping=stopping) or InstanceState.ACTIVE,
        detail=member.detail,
        incarnation=member.incarnation,
        num_restarts=member.num_restarts,
        node=member.node,
        pid=member.pid if member.alive else None,
        up_s=_up_s(member, now_s),
        num_live_reqs=member.num_live_reqs,
        ttft_p99_s=_rounded(member.said.ttft_p99_s),
        ttft_p99_by_level_s={
            name: round(ttft_s, 4) for name, ttft_s in member.said.ttft_p99_by_level_s.items()
        },
        tpot_p99_s=_rounded(member.said.tpot_p99_s),
        age_s=None if member.heard_s is None else round(now_s - member.heard_s, 3),
    )


def instance_status(
    controller: ControllerProcess,
    member: Member,
    schedulable: list[InstanceSnapshot],
    now_s: float,
    kept_for: KeptForStatus | None,
) -> InstanceStatus:
    record = controller.scheduler.instances.get(member.member_id)
    status = InstanceStatus(
        id=member.member_id,
        state=_instance_state(controller, member, record),
        detail=member.detail,
        incarnation=member.incarnation,
        num_restarts=member.num_restarts,
        node=member.node,
        pid=member.pid if member.alive else None,
        up_s=_up_s(member, now_s),
        generation=member.said.generation,
        drain=_drain(controller, member.member_id),
        kept_for=kept_for,
        closed_by=controller.openness.closed_by(member.member_id, now_s),
    )
    if record is None or record.snapshot is None or not record.alive:
        return status
    pushed = controller.statuses[member.member_id]
    levels = controller.live.scheduler.levels
    return status.model_copy(
        update=_by_name(record.snapshot, _COUNTED)
        | _by_name(pushed, _PUSHED)
        | _load(levels, record.snapshot, schedulable)
        | {
            "num_unreported_reqs": record.unreported.num_requests,
            "num_moves_out": len(pushed.moves),
            "cpu_cores": _rounded(pushed.cpu_cores),
            "detail": _detail(controller, member),
            "emulation": pushed.emulation
            and EmulationStatus(
                profile_time_s=round(pushed.emulation.profile_time_s, 4),
                wall_time_s=round(pushed.emulation.wall_time_s, 4),
                num_late_steps=pushed.emulation.num_late_steps,
            ),
            "ttft_p99_s": _rounded(pushed.ttft_p99_s),
            "ttft_p99_by_level_s": {
                name: round(ttft_s, 4)
                for name, ttft_s in _by_level(pushed.ttft_p99_by_rank_s, levels).items()
            },
            "age_s": round(now_s - record.last_report_s, 3),
        }
    )


def not_launched(controller: ControllerProcess) -> list[InstanceStatus]:
    """Instances of the spec whose process could not be launched yet."""
    return [
        InstanceStatus(
            id=instance_id,
            state=InstanceState.STOPPING if controller.stopping else InstanceState.STARTING,
            detail="" if controller.stopping else "could not be launched; it is tried again",
            incarnation=0,
            drain=_drain(controller, instance_id),
            closed_by=(Closed.NOT_SERVING,),
        )
        for instance_id in planned_instances(controller.keeper.spec)
        if instance_id not in controller.roster.members
    ]


def _process_state(member: Member, *, stopping: bool) -> InstanceState | None:
    """None of a process that serves. `stopping`: the whole cluster is being stopped, and no process
    that is gone comes again."""
    if not member.alive or member.phase == "starting":
        if stopping:
            return InstanceState.STOPPING
        if member.fenced:
            return InstanceState.STALLED
        return (
            InstanceState.RESTARTING
            if member.incarnation > 1 or (member.incarnation and not member.alive)
            else InstanceState.STARTING
        )
    return InstanceState.FAILED if member.phase == "failed" else None


def _instance_state(
    controller: ControllerProcess, member: Member, record: InstanceRecord | None
) -> InstanceState:
    if state := _process_state(member, stopping=controller.stopping):
        return state
    if record is None or record.snapshot is None:
        # Its loop says that it serves, and its engine has not reported in this incarnation.
        hangs = member.fenced or (record is not None and record.stalled)
        return InstanceState.STALLED if hangs else InstanceState.STARTING
    closed_by = record.closed_by
    if Closed.NOT_SERVING in closed_by or Closed.STALLED in closed_by:
        return InstanceState.STALLED
    return InstanceState.DRAINING if Closed.DRAINING in closed_by else InstanceState.ACTIVE


def _drain(controller: ControllerProcess, instance_id: str) -> DrainStatus | None:
    progress = controller.drains.progress(instance_id)
    if (claims := progress.claims) is None:
        return None
    return DrainStatus(
        drain_id=claims.drain_id,
        num_requests_left=progress.num_left,
        num_moved=progress.num_moved,
        deadline_s=claims.strongest.deadline_s,
        on_deadline=claims.strongest.on_deadline,
        safe_to_delete=progress.safe_to_delete,
        removes=claims.goes,
        restarts=claims.restarts,
        evacuates=claims.notice is not None,
    )


def _detail(controller: ControllerProcess, member: Member) -> str:
    if controller.fleet.is_busy(member):
        return "computes without a request"
    return member.detail


def _up_s(member: Member, now_s: float) -> float | None:
    if not member.alive or member.heard_s is None:
        return None
    return round(member.said.up_s + now_s - member.heard_s, 1)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)


def _by_level(by_rank: Mapping[int, T], levels: Sequence[Level]) -> dict[str, T]:
    """The highest rank first; a rank that no level has goes by its number."""
    names = {level.rank: level.name for level in levels}
    return {
        names.get(rank, str(rank)): value for rank, value in sorted(by_rank.items(), reverse=True)
    }


def _by_name(told: object, names: Collection[str]) -> dict[str, object]:
    """Times and shares with six decimals."""
    found = ((name, getattr(told, name)) for name in names)
    return {name: round(each, 6) if isinstance(each, float) else each for name, each in found}


def _load(
    levels: Sequence[Level], snapshot: InstanceSnapshot, schedulable: list[InstanceSnapshot]
) -> dict[str, object]:
    names = {level.rank: level.name for level in levels}
    usage, steps = instance_virtual_usage(snapshot, levels), freeness(snapshot, levels)
    head = snapshot.queue_head
    return {
        "freeness_steps": round(steps, 1) if math.isfinite(steps) else None,
        "virtual_usage_blocks": round(usage) if math.isfinite(usage) else None,
        "headroom_blocks": total_headroom_blocks(snapshot, levels),
        "max_running_reqs": snapshot.max_num_running or None,
        "num_running_reqs": snapshot.num_running,
        "num_running_by_level": _by_level(snapshot.num_running_by_rank, levels),
        "num_waiting_reqs": snapshot.num_queued,
        "num_waiting_by_level": _by_level(snapshot.num_queued_by_rank, levels),
        "headroom_by_level_blocks": _by_level(headroom_by_rank(snapshot, levels), levels),
        "kv_cache_usage": round(snapshot.num_used_blocks / max(1, snapshot.num_total_blocks), 4),
        "queue_head": head
        and QueueHeadStatus(
            request_id=head.request_id,
            level=names.get(head.rank, str(head.rank)),
            demand_blocks=head.demand_blocks,
            waited_s=round(max(0.0, time.time() - head.arrival_time_s), 3),
            evicted=head.evicted,
            evicted_for_s=None
            if head.evicted_at_s is None
            else round(max(0.0, time.time() - head.evicted_at_s), 3),
            why=str(queue_reason(snapshot, schedulable) or ""),
        ),
    }
