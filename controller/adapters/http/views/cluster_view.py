"""The whole status of the cluster."""

import time
from collections.abc import Iterable
from dataclasses import dataclass

from controller.adapters.http.views import overload_view
from controller.adapters.http.views.autoscale_view import autoscale_status
from controller.adapters.http.views.held_view import held_now
from controller.adapters.http.views.launcher_view import while_stopping, without_launcher
from controller.adapters.http.views.member_view import (
    frontend_status,
    instance_status,
    not_launched,
)
from controller.adapters.http.views.move_view import ended_moves, moves_under_way, queued_moves
from controller.adapters.http.views.replay_view import replays_now, with_replays
from controller.adapters.http.views.rolling_view import engine_changes, rolling_report
from controller.api.wire.models import (
    ClusterState,
    ClusterStatus,
    FrontendStatus,
    InstanceState,
    InstanceStatus,
    LevelStatus,
)
from controller.core.load.snapshot import Level
from controller.runtime.controller.cluster import ControllerProcess


@dataclass(frozen=True, slots=True)
class ClusterLabels:
    cluster: str
    model: str
    engine: str
    endpoint_url: str
    started_at_s: float
    """When the cluster was started; seconds since the epoch."""


def cluster_status(
    controller: ControllerProcess, labels: ClusterLabels, uptime_s: float
) -> ClusterStatus:
    now_s = controller.now_s()
    schedulable = controller.scheduler.schedulable_snapshots(now_s)
    held = held_now(controller)
    instances = (
        *(
            instance_status(controller, each, schedulable, now_s, held.kept_for.get(each.member_id))
            for each in controller.roster.instances()
        ),
        *not_launched(controller),
    )
    stopping = controller.stopping
    frontends = tuple(
        frontend_status(member, now_s, stopping=stopping)
        for member in controller.roster.frontends()
    )
    state, detail = _cluster_state(controller, [*instances, *frontends])
    num_migrated, num_failed = controller.operator_moves.log.last_minute(now_s)
    return ClusterStatus(
        cluster=labels.cluster,
        state=state,
        detail=detail,
        revision=controller.keeper.spec.revision,
        model=labels.model,
        policy=controller.live.scheduler.policy,
        engine=labels.engine,
        endpoint_url=labels.endpoint_url,
        time_s=round(time.time(), 3),
        uptime_s=round(uptime_s, 3),
        cluster_uptime_s=round(max(0.0, time.time() - labels.started_at_s), 3),
        num_held_reqs=controller.scheduler.num_held,
        held=held.held,
        autoscale=autoscale_status(controller),
        refused=overload_view.refused(controller),
        keys=overload_view.keys(controller),
        levels=tuple(
            _level(level, instances, frontends) for level in controller.live.scheduler.levels
        ),
        last_event=controller.journal.log.last_position,
        moves=moves_under_way(controller),
        queued_moves=queued_moves(controller),
        ended_moves=ended_moves(controller),
        replays=replays_now(controller),
        engine_changes=engine_changes(controller),
        rolling=None if controller.rolling.order is None else rolling_report(controller),
        num_migrated_last_minute=num_migrated,
        num_failed_moves_last_minute=num_failed,
        instances=with_replays(controller, instances),
        frontends=frontends,
    )


def _level(
    level: Level, instances: Iterable[InstanceStatus], frontends: Iterable[FrontendStatus]
) -> LevelStatus:
    name = level.name
    ttfts_s = [f.ttft_p99_by_level_s[name] for f in frontends if name in f.ttft_p99_by_level_s]
    return LevelStatus(
        name=name,
        rank=level.rank,
        target_load_tokens=level.target_load_tokens,
        num_running_reqs=sum(i.num_running_by_level.get(name, 0) for i in instances),
        num_waiting_reqs=sum(i.num_waiting_by_level.get(name, 0) for i in instances),
        headroom_blocks=sum(i.headroom_by_level_blocks.get(name, 0) for i in instances),
        ttft_p99_s=max(ttfts_s, default=None),
    )


def _cluster_state(
    controller: ControllerProcess, members: list[InstanceStatus | FrontendStatus]
) -> tuple[ClusterState, str]:
    loss = controller.launcher_loss
    if controller.stopping:
        return ClusterState.STOPPING, while_stopping(controller.num_live_reqs, loss)
    failed = [m for m in members if m.state == InstanceState.FAILED]
    absent = [m for m in members if m.state not in (InstanceState.ACTIVE, InstanceState.DRAINING)]
    if failed and not controller.was_ready:
        return ClusterState.FAILED, f"{failed[0].id}: {failed[0].detail}"
    if absent and not controller.was_ready:
        return ClusterState.STARTING, ""
    words = ", ".join(f"{m.id} is {m.state}" for m in absent)
    if loss is not None:
        return ClusterState.DEGRADED, "; ".join(filter(None, (without_launcher(loss), words)))
    # An instance that is added to a serving cluster takes its time to start; nothing is wrong.
    if any(m.state != InstanceState.STARTING for m in absent):
        return ClusterState.DEGRADED, words
    return ClusterState.READY, words
