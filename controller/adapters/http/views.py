"""From the controller's state to the wire models of `controller.api`."""

import math
import time
from dataclasses import dataclass

from controller.api.models import (
    ClusterState,
    ClusterStatus,
    FrontendStatus,
    InstanceState,
    InstanceStatus,
    QueueHeadStatus,
)
from controller.core.freeness import freeness
from controller.core.instance_record import InstanceRecord
from controller.core.snapshot import InstanceSnapshot
from controller.core.virtual_usage import instance_virtual_usage, total_headroom_blocks
from controller.runtime.controller import Controller, StepStats
from controller.runtime.roster import Member


@dataclass(frozen=True, slots=True)
class ClusterLabels:
    cluster: str
    model: str
    policy: str
    endpoint_url: str


def cluster_status(controller: Controller, labels: ClusterLabels, uptime_s: float) -> ClusterStatus:
    now_s = controller.now_s()
    instances = tuple(
        _instance(controller, member, now_s) for member in controller.roster.instances()
    )
    frontends = tuple(_frontend(member, now_s) for member in controller.roster.frontends())
    state, detail = _cluster_state(controller, [*instances, *frontends])
    return ClusterStatus(
        cluster=labels.cluster,
        state=state,
        detail=detail,
        model=labels.model,
        policy=labels.policy,
        endpoint_url=labels.endpoint_url,
        uptime_s=round(uptime_s, 3),
        num_held_reqs=controller.scheduler.num_held,
        instances=instances,
        frontends=frontends,
    )


def _cluster_state(
    controller: Controller, members: list[InstanceStatus | FrontendStatus]
) -> tuple[ClusterState, str]:
    if controller.stopping:
        return ClusterState.STOPPING, f"{controller.num_live_reqs} requests live"
    failed = [m for m in members if m.state == InstanceState.FAILED]
    absent = [m for m in members if m.state not in (InstanceState.ACTIVE, InstanceState.DRAINING)]
    if failed and not controller.was_ready:
        return ClusterState.FAILED, f"{failed[0].id}: {failed[0].detail}"
    if absent and not controller.was_ready:
        return ClusterState.STARTING, ""
    if absent:
        return ClusterState.DEGRADED, ", ".join(f"{m.id} is {m.state}" for m in absent)
    return ClusterState.READY, ""


def _state(member: Member, record: InstanceRecord | None, now_s: float) -> InstanceState:
    if not member.alive or member.phase == "starting":
        return (
            InstanceState.RESTARTING
            if member.incarnation > 1 or (member.incarnation and not member.alive)
            else InstanceState.STARTING
        )
    if member.phase == "failed":
        return InstanceState.FAILED
    if record is None or record.snapshot is None:
        return InstanceState.ACTIVE if member.kind == "frontend" else InstanceState.STARTING
    if record.snapshot.draining:
        return InstanceState.DRAINING
    return InstanceState.ACTIVE if record.schedulable(now_s) else InstanceState.STALLED


def _frontend(member: Member, now_s: float) -> FrontendStatus:
    return FrontendStatus(
        id=member.member_id,
        state=_state(member, None, now_s),
        detail=member.detail,
        incarnation=member.incarnation,
        num_restarts=member.num_restarts,
        node=member.node,
        pid=member.pid if member.alive else None,
        num_live_reqs=member.num_live_reqs,
        age_s=None if member.heard_s is None else round(now_s - member.heard_s, 3),
    )


def _instance(controller: Controller, member: Member, now_s: float) -> InstanceStatus:
    record = controller.scheduler.instances.get(member.member_id)
    status = InstanceStatus(
        id=member.member_id,
        state=_state(member, record, now_s),
        detail=member.detail,
        incarnation=member.incarnation,
        num_restarts=member.num_restarts,
        node=member.node,
        pid=member.pid if member.alive else None,
    )
    if record is None or record.snapshot is None or not record.alive:
        return status
    stats = controller.step_stats.get(member.member_id, StepStats())
    load = _load(controller, record.snapshot)
    return status.model_copy(
        update=load
        | {
            "num_unreported_reqs": record.unreported.num_requests,
            "step_time_s": round(stats.step_time_s, 6),
            "num_steps": stats.num_steps,
            "age_s": round(now_s - record.last_report_s, 3),
        }
    )


def _load(controller: Controller, snapshot: InstanceSnapshot) -> dict[str, object]:
    levels = controller.config.levels
    names = {level.rank: level.name for level in levels}
    usage, steps = instance_virtual_usage(snapshot, levels), freeness(snapshot, levels)
    head = snapshot.queue_head
    return {
        "freeness_steps": round(steps, 1) if math.isfinite(steps) else None,
        "virtual_usage_blocks": round(usage) if math.isfinite(usage) else None,
        "headroom_blocks": total_headroom_blocks(snapshot, levels),
        "block_size": snapshot.block_size,
        "num_total_blocks": snapshot.num_total_blocks,
        "num_free_blocks": snapshot.num_free_blocks,
        "watermark_blocks": snapshot.watermark_blocks,
        "num_running_reqs": snapshot.num_running,
        "num_waiting_reqs": snapshot.num_queued,
        "kv_cache_usage": round(snapshot.num_used_blocks / max(1, snapshot.num_total_blocks), 4),
        "num_evictions": snapshot.num_evictions,
        "queue_head": head
        and QueueHeadStatus(
            request_id=head.request_id,
            level=names.get(head.rank, str(head.rank)),
            demand_blocks=head.demand_blocks,
            waited_s=round(max(0.0, time.time() - head.arrival_time_s), 3),
            evicted=head.evicted,
        ),
    }
