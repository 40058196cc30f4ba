"""The status of the cluster, and of its instances and frontends: the controller's state as the wire
models of `controller.api`."""

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

from controller.adapters.http.calls import shown
from controller.api.wire.status import (
    AdapterStatus,
    AttachedStatus,
    AutoscaleCheck,
    AutoscaleHoldStatus,
    AutoscaleStatus,
    ClusterState,
    ClusterStatus,
    DrainStatus,
    EmulationStatus,
    EndedMoveStatus,
    EndedReplayStatus,
    EngineChangeStatus,
    FrontendStatus,
    HeldHeadStatus,
    HeldPlaceStatus,
    HeldStatus,
    InstanceState,
    InstanceStatus,
    KeptForStatus,
    KeyStatus,
    LevelStatus,
    MirrorStatus,
    MoveStatus,
    NoticeStatus,
    QueueHeadStatus,
    RefusedStatus,
    ReplaysStatus,
    ReplayStatus,
    RestartedInstance,
    RestartTurn,
    RollingReport,
    SavedStatus,
    SplitStatus,
)
from controller.core.admission.instance_pool import InstanceRecord
from controller.core.admission.placement import WaitingPlace, WaitingView, queue_reason
from controller.core.admission.traffic import CopyCounts, counted_together
from controller.core.admission.waiting_requests import Waiting
from controller.core.emptying.claims import Claim, Evacuate
from controller.core.fleet.attached import AttachedServer
from controller.core.fleet.autoscaler import Check
from controller.core.fleet.cluster_spec import LEAVES_BY_MOVES, staying_instances
from controller.core.load.closed import Closed
from controller.core.load.freeness import (
    freeness,
    headroom_by_rank,
    instance_virtual_usage,
    total_headroom_blocks,
)
from controller.core.load.snapshot import BACKGROUND, InstanceSnapshot, Level
from controller.core.migration.move_records import EndedMove
from controller.core.migration.refusals import why
from controller.core.record.windows import Kept
from controller.core.replay.replay_log import ReplayLog, Way
from controller.ports.processes import LauncherLoss
from controller.runtime.controller.cluster import ControllerProcess
from controller.runtime.controller.roster import Member
from controller.runtime.messages.members import StatusPushed

RESTART = "llumctl down, then llumctl up"
"""The remedy if no process can be started or ended."""
MAX_KEYS = 100
"""A status lists at most this many keys, the keys with the most use: every metric by key has one
series for each listed key."""
MAX_REPLAYS = 64
"""A status lists at most this many replays under way, the oldest ones: an instance that dies may
have had hundreds of requests."""


LevelNames = Callable[[int], str]
"""Gives the name of a rank's level. A rank without a level is named by its number."""


def level_names(levels: Iterable[Level]) -> LevelNames:
    names = {level.rank: level.name for level in (BACKGROUND, *levels)}
    return lambda rank: names.get(rank, str(rank))


def rounded(value: float | None, num_digits: int = 4) -> float | None:
    return None if value is None else round(value, num_digits)


@dataclass(frozen=True, slots=True)
class ClusterLabels:
    cluster: str
    model: str
    engine: str
    endpoint_url: str
    started_at_s: float
    """When the cluster was started, in seconds since the epoch."""


def cluster_status(
    controller: ControllerProcess, labels: ClusterLabels, uptime_s: float
) -> ClusterStatus:
    now_s = controller.now_s()
    schedulable = controller.scheduler.schedulable_snapshots()
    held = waiting_now(controller)
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
        revision=controller.keeper.revision,
        model=labels.model,
        policy=controller.live.scheduler.policy,
        engine=labels.engine,
        endpoint_url=labels.endpoint_url,
        time_s=round(time.time(), 3),
        uptime_s=round(uptime_s, 3),
        cluster_uptime_s=round(max(0.0, time.time() - labels.started_at_s), 3),
        num_held_reqs=controller.scheduler.num_waiting,
        held=held.held,
        autoscale=autoscale_status(controller),
        refused=refused(controller),
        keys=keys(controller),
        levels=tuple(
            _level(controller, level, instances, frontends)
            for level in controller.live.scheduler.levels
        ),
        last_event=controller.journal.log.last_position,
        moves=moves_under_way(controller),
        queued_moves=queued_moves(controller),
        ended_moves=ended_moves(controller),
        replays=replays_now(controller),
        engine_changes=engine_changes(controller),
        rolling=None if controller.rolling.order is None else rolling_report(controller),
        adapters=adapters(controller),
        num_migrated_last_minute=num_migrated,
        num_failed_moves_last_minute=num_failed,
        split=split(controller),
        mirrors=mirrors(controller),
        notices=notices(controller),
        instances=with_replays(controller, instances),
        frontends=frontends,
    )


def _level(
    controller: ControllerProcess,
    level: Level,
    instances: Iterable[InstanceStatus],
    frontends: Iterable[FrontendStatus],
) -> LevelStatus:
    name = level.name
    ttfts_s = [f.ttft_p99_by_level_s[name] for f in frontends if name in f.ttft_p99_by_level_s]
    said = (member.said.kept_targets for member in controller.roster.frontends())
    return LevelStatus(
        name=name,
        rank=level.rank,
        target_load_tokens=level.target_load_tokens,
        num_running_reqs=sum(i.num_running_by_level.get(name, 0) for i in instances),
        num_waiting_reqs=sum(i.num_waiting_by_level.get(name, 0) for i in instances),
        headroom_blocks=sum(i.headroom_by_level_blocks.get(name, 0) for i in instances),
        ttft_p99_s=max(ttfts_s, default=None),
        target_ttft_s=level.target_ttft_s,
        target_tpot_s=level.target_tpot_s,
        when_late=level.when_late,
        goodput=rounded(sum((each[name] for each in said if name in each), Kept()).share),
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
    # An instance that is added to a serving cluster takes time to start, which is no fault.
    if any(m.state != InstanceState.STARTING for m in absent):
        return ClusterState.DEGRADED, words
    return ClusterState.READY, words


def without_launcher(loss: LauncherLoss) -> str:
    """The words of a status about the fault, its consequence and the remedy."""
    ends = ""
    if loss.ends_after_s is not None:
        ends = f", and after {_duration(loss.ends_after_s)} without it all processes end"
    return (
        f"{loss.what} ({_duration(loss.for_s)}): what runs goes on, but no process is started or"
        f" ended{ends}; when clients can wait: {RESTART}"
    )


def while_stopping(num_live_reqs: int, loss: LauncherLoss | None) -> str:
    return f"{num_live_reqs} requests live" + ("" if loss is None else f"; {loss.what}")


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def split(controller: ControllerProcess) -> tuple[SplitStatus, ...]:
    found = counted_together(each.said.traffic for each in controller.roster.frontends())
    return tuple(
        SplitStatus(model=name, weight=weight, num_reqs=found.answered.get(name, 0))
        for name, weight in controller.live.frontends.traffic.split
    )


def mirrors(controller: ControllerProcess) -> tuple[MirrorStatus, ...]:
    found = counted_together(each.said.traffic for each in controller.roster.frontends())
    return tuple(
        _mirror(name, percent, found.copies.get(name, CopyCounts()))
        for name, percent in controller.live.frontends.traffic.mirror
    )


def _mirror(name: str, percent: float, found: CopyCounts) -> MirrorStatus:
    def mean(total: float) -> float | None:
        return rounded(total / found.num_compared) if found.num_compared else None

    return MirrorStatus(
        model=name,
        percent=percent,
        num_copies=found.num_copies,
        num_left_out=found.num_left_out,
        num_failed=found.num_failed,
        num_compared=found.num_compared,
        tokens=mean(found.num_tokens),
        copy_tokens=mean(found.num_copy_tokens),
        ttft_s=mean(found.ttft_s),
        copy_ttft_s=mean(found.copy_ttft_s),
        latency_s=mean(found.latency_s),
        copy_latency_s=mean(found.copy_latency_s),
    )


def adapters(controller: ControllerProcess) -> tuple[AdapterStatus, ...]:
    statuses = statuses_of_serving(controller)
    return tuple(
        AdapterStatus(
            name=each.name,
            number=each.number,
            path=each.path,
            digest=each.digest,
            rank=each.rank,
            loaded_on=tuple(
                i for i, status in statuses.items() if each.number in status.snapshot.adapters
            ),
            failed_on={
                i: status.snapshot.failed_adapters[each.number]
                for i, status in statuses.items()
                if each.number in status.snapshot.failed_adapters
            },
            in_use_on=adapter_in_use_on(controller, each.number),
        )
        for each in controller.keeper.spec.adapters
    )


def adapter_in_use_on(controller: ControllerProcess, number: int) -> tuple[str, ...]:
    """The instances with requests that have this adapter, by their last statuses."""
    return tuple(
        instance_id
        for instance_id, status in statuses_of_serving(controller).items()
        if number in status.snapshot.live_adapters
    )


def statuses_of_serving(controller: ControllerProcess) -> dict[str, StatusPushed]:
    """The last status of each instance that serves, if it is of its present incarnation."""
    found = {}
    for member in controller.roster.instances():
        status = controller.statuses.get(member.member_id)
        if member.serving and status and status.snapshot.incarnation == member.incarnation:
            found[member.member_id] = status
    return found


@dataclass(frozen=True, slots=True)
class WaitingNow:
    """The requests that wait at the controller now. `held`: None if no request is held."""

    held: HeldStatus | None
    kept_for: dict[str, KeptForStatus]


def waiting_now(controller: ControllerProcess) -> WaitingNow:
    view = controller.scheduler.waiting_view()
    return held_status(view, controller.live.scheduler.levels, time.time())


def held_status(view: WaitingView, levels: Sequence[Level], now_s: float) -> WaitingNow:
    """Describes the held requests. `now_s`: seconds since the epoch."""
    first, oldest = view.first(), view.oldest()
    if first is None:
        return WaitingNow(None, {})
    name = level_names(levels)
    return WaitingNow(
        HeldStatus(
            num_by_level={name(rank): number for rank, number, _ in view.ranks()},
            demand_blocks=view.demand_blocks or None,
            oldest_wait_s=0.0 if oldest is None else _waited_s(oldest.waiting, now_s),
            head=_held_head(first, name, now_s),
            oldest=(
                None if oldest is None or oldest.place == 1 else _held_head(oldest, name, now_s)
            ),
        ),
        {
            instance_id: KeptForStatus(
                request_id=held.request_id,
                level=name(held.rank),
                demand_blocks=held.demand_blocks,
                lacking_blocks=lacking_blocks,
                waited_s=_waited_s(held, now_s),
            )
            for instance_id, held, lacking_blocks in view.reservations()
        },
    )


def _held_head(found: WaitingPlace, name: LevelNames, now_s: float) -> HeldHeadStatus:
    held = found.waiting
    return HeldHeadStatus(
        **dict(place_status(found)),
        request_id=held.request_id,
        frontend_id=held.key[0],
        level=name(held.rank),
        rank=held.rank,
        waited_s=_waited_s(held, now_s),
    )


def place_status(found: WaitingPlace) -> HeldPlaceStatus:
    return HeldPlaceStatus(
        place=found.place,
        why=found.reason,
        demand_blocks=found.waiting.demand_blocks or None,
        instance_id=found.instance_id,
        lacking_blocks=found.lacking_blocks,
        overtaken_by=found.overtaken_by,
        num_overtaken=found.num_overtaken,
    )


def _waited_s(held: Waiting, now_s: float) -> float:
    return round(max(0.0, now_s - held.arrival_time_s), 3)


def autoscale_status(controller: ControllerProcess) -> AutoscaleStatus:
    held, live = controller.autoscaling.held, controller.live.autoscale
    found = controller.autoscaling.view()
    return shown(
        AutoscaleStatus,
        live.config,
        held=None
        if held is None
        else AutoscaleHoldStatus(
            actor=held.actor, num_instances=held.num_instances, since_s=round(held.since_s, 3)
        ),
        num_instances=found.num_planned,
        num_wanted=None if found.last is None else found.last.num_wanted,
        cold_start_s=rounded(found.cold_start_s),
        next_check_in_s=rounded(found.next_check_in_s, 1),
        last=_autoscale_check(found.last),
        last_change=_autoscale_check(found.last_change),
        num_checks_by_reason={str(key): count for key, count in found.num_checks.items()},
    )


def _autoscale_check(check: Check | None) -> AutoscaleCheck | None:
    if check is None:
        return None
    decision = check.decision
    return shown(
        AutoscaleCheck,
        decision,
        cause_id=check.cause_id,
        time_s=round(check.time_s, 3),
        why=check.why,
        outcome=check.outcome.value,
        num_wanted=check.num_wanted,
        freeness_steps=round(decision.freeness_steps, 1),
        freeness_started_steps=round(decision.freeness_started_steps, 1),
        freeness_less_steps=rounded(decision.freeness_less_steps, 1),
        backlog_s=round(decision.backlog_s, 3),
        ttft_s=rounded(decision.estimate.ttft_s),
        tpot_s=rounded(decision.estimate.tpot_s),
        added=check.added,
        removed=decision.removed_id,
        kept=decision.kept_id,
    )


def refused(controller: ControllerProcess) -> tuple[RefusedStatus, ...]:
    name = level_names(controller.live.scheduler.levels)
    records, now_s = controller.admission_records, controller.now_s()
    return tuple(
        RefusedStatus(
            reason=code,
            level=name(rank),
            num_refused=refusals.number,
            num_refused_last_minute=records.num_last_minute(code, rank, now_s),
        )
        for (code, rank), refusals in sorted(records.refusals.items())
    )


def keys(controller: ControllerProcess) -> tuple[KeyStatus, ...]:
    totals = controller.scheduler.keys.totals()
    totals.sort(key=lambda each: (-each.num_tokens, -each.num_live, each.key))
    return tuple(
        KeyStatus(
            key=each.key,
            num_live_reqs=each.num_live,
            num_tokens_last_minute=each.num_tokens,
            num_refused=each.num_refused,
        )
        for each in totals[:MAX_KEYS]
    )


def moves_under_way(controller: ControllerProcess) -> tuple[MoveStatus, ...]:
    """The moves under way, according to the sources' last reports; the oldest comes first."""
    found = [
        shown(
            MoveStatus,
            move,
            from_instance_id=member.member_id,
            to_instance_id=move.destination_id,
            age_s=round(move.age_s, 3),
        )
        for member in controller.roster.instances()
        if member.serving and member.member_id in controller.statuses
        for move in controller.statuses[member.member_id].moves
        if controller.statuses[member.member_id].snapshot.incarnation == member.incarnation
    ]
    return tuple(sorted(found, key=lambda move: (-move.age_s, move.migration_id)))


def queued_moves(controller: ControllerProcess) -> tuple[MoveStatus, ...]:
    """The moves that wait for their turn, in their order."""
    now_s = controller.now_s()
    return tuple(
        MoveStatus(
            migration_id=move.migration_id,
            request_id=move.wanted.request_id,
            from_instance_id=move.wanted.source_id,
            to_instance_id=move.destination_id,
            state="queued",
            stage=0,
            num_blocks_copied=0,
            num_blocks=move.wanted.num_blocks,
            reason=move.wanted.reason,
            age_s=round(now_s - move.since_s, 3),
        )
        for move in controller.operator_moves.machine.waiting
    )


def ended_moves(controller: ControllerProcess) -> tuple[EndedMoveStatus, ...]:
    """The last moves that ended; the newest comes first."""
    since_s = time.time() - controller.now_s()
    return tuple(
        _ended_move(move, since_s + move.ended_s)
        for move in reversed(controller.operator_moves.log.recent)
    )


def _ended_move(move: EndedMove, ended_s: float) -> EndedMoveStatus:
    record = move.record
    return shown(
        EndedMoveStatus,
        record,
        from_instance_id=record.source_id,
        to_instance_id=record.destination_id,
        why=why(record.code),
        ended_s=round(ended_s, 3),
        downtime_s=rounded(move.downtime_s, 6),
    )


def replays_now(controller: ControllerProcess) -> ReplaysStatus:
    log, now_s = controller.replays, controller.now_s()
    num_done, num_failed = log.last_minute(now_s)
    return ReplaysStatus(
        under_way=tuple(_under_way(log, now_s)),
        ended=tuple(_ended_replays(log, time.time() - now_s)),
        num_replaying=len(log.under_way),
        num_replayed_last_minute=num_done,
        num_not_replayed_last_minute=num_failed,
        saved=_saved(controller),
    )


def with_replays(
    controller: ControllerProcess, instances: Iterable[InstanceStatus]
) -> tuple[InstanceStatus, ...]:
    """Adds to each instance the replays under way to it and from it."""
    to, lost_with = controller.replays.num_by_instance()
    if not lost_with:
        return tuple(instances)
    return tuple(
        item.model_copy(
            update={"num_replays_in": to[item.id], "num_replays_out": lost_with[item.id]}
        )
        for item in instances
    )


def _under_way(log: ReplayLog, now_s: float) -> Iterable[ReplayStatus]:
    for replay in islice(log.under_way.values(), MAX_REPLAYS):
        yield shown(
            ReplayStatus,
            replay,
            from_instance_id=replay.source_id,
            to_instance_id=replay.destination_id or None,
            state="computing" if replay.destination_id else "placing",
            reason=log.reason(replay.cause_id),
            pause_s=round(max(0.0, now_s - replay.since_s), 3),
        )


def _ended_replays(log: ReplayLog, since_s: float) -> Iterable[EndedReplayStatus]:
    """The replays that ended, the newest first. `since_s`: the time at which the controller's clock
    was 0, in seconds since the epoch."""
    for replay in reversed(log.recent):
        yield shown(
            EndedReplayStatus,
            replay,
            from_instance_id=replay.source_id,
            to_instance_id=replay.destination_id or None,
            outcome=replay.way,
            reason=log.reason(replay.cause_id),
            pause_s=rounded(replay.pause_s, 6),
            ended_s=round(since_s + replay.ended_s, 3),
        )


def _saved(controller: ControllerProcess) -> tuple[SavedStatus, ...]:
    moved = controller.operator_moves.log.num_by_reason
    found: Counter[tuple[str, str]] = Counter(
        {(Way.MOVED, reason): moved["migrated", reason] for reason in LEAVES_BY_MOVES}
    )
    found.update(controller.replays.counts())
    return tuple(
        SavedStatus(way=way, reason=reason, num_saved=number)
        for (way, reason), number in found.items()
        if number
    )


def rolling_report(controller: ControllerProcess) -> RollingReport:
    order, revision = controller.rolling.order, controller.keeper.revision
    if order is None:
        return RollingReport(revision=revision)
    return shown(
        RollingReport,
        order,
        rolling_id=order.order_id,
        waits=controller.rolling.waits if order.goes else "",
        under_way=tuple(
            _turn(controller, each.instance_id, each.began_s) for each in order.under_way
        ),
        done=tuple(
            RestartedInstance(instance_id=each, took_s=took_s)
            for each, took_s in order.done.items()
        ),
        engine_args=dict(order.engine.args),
        revision=revision,
    )


def _turn(controller: ControllerProcess, instance_id: str, began_s: float) -> RestartTurn:
    progress = controller.drains.progress(instance_id)
    return RestartTurn(
        instance_id=instance_id,
        began_s=began_s,
        state=progress.state.value,
        num_requests_left=progress.num_left,
        num_moved=progress.num_moved,
    )


def engine_changes(controller: ControllerProcess) -> tuple[EngineChangeStatus, ...]:
    """The sets of engine arguments that differ from the arguments of the cluster's start; empty if
    there are none. The cluster's own arguments, which new instances get, come first."""
    spec = controller.keeper.spec
    known = {spec.engine.generation: spec.engine}
    known |= {each.generation: each for each in spec.engines.values()}
    if len(known) == 1 and not spec.engine.args:
        return ()
    return tuple(
        EngineChangeStatus(
            generation=each.generation,
            args=dict(each.args),
            instances=tuple(i for i in spec.instance_ids if spec.engine_of(i) == each),
            is_clusters=each == spec.engine,
        )
        for each in known.values()
    )


# -- members ---------------------------------------------------------------------------------------
# A figure that an instance reports (`InstanceSnapshot`, `StatusPushed`) becomes the field of the
# same name in the status, and needs no line here.

T = TypeVar("T")

_OTHERWISE = {"incarnation", "queue_head", "emulation"}
"""The fields whose values are computed below."""
_COUNTED = InstanceStatus.model_fields.keys() & InstanceSnapshot.__annotations__.keys() - _OTHERWISE
_PUSHED = InstanceStatus.model_fields.keys() & StatusPushed.__annotations__.keys() - _OTHERWISE


def frontend_status(member: Member, now_s: float, *, stopping: bool) -> FrontendStatus:
    return FrontendStatus(
        **_of_process(member, now_s),
        state=_process_state(member, stopping=stopping) or InstanceState.ACTIVE,
        num_live_reqs=member.num_live_reqs,
        ttft_p99_s=rounded(member.said.ttft_p99_s),
        ttft_p99_by_level_s={
            name: round(ttft_s, 4) for name, ttft_s in member.said.ttft_p99_by_level_s.items()
        },
        tpot_p99_s=rounded(member.said.tpot_p99_s),
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
        **_of_process(member, now_s),
        model=controller.model,
        state=_instance_state(controller, member, record),
        generation=member.said.generation,
        fingerprint=member.said.fingerprint,
        drain=_drain(controller, member.member_id),
        kept_for=kept_for,
        closed_by=controller.openness.closed_by(member.member_id, now_s),
        attached=attached_status(controller.keeper.spec.attached.get(member.member_id)),
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
            "cpu_cores": rounded(pushed.cpu_cores),
            "detail": _detail(controller, member),
            "emulation": pushed.emulation
            and EmulationStatus(
                profile_time_s=round(pushed.emulation.profile_time_s, 4),
                wall_time_s=round(pushed.emulation.wall_time_s, 4),
                num_late_steps=pushed.emulation.num_late_steps,
            ),
            "ttft_p99_s": rounded(pushed.ttft_p99_s),
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
            model=controller.model,
            state=InstanceState.STOPPING if controller.stopping else InstanceState.STARTING,
            detail="" if controller.stopping else "could not be launched; it is tried again",
            incarnation=0,
            drain=_drain(controller, instance_id),
            closed_by=(Closed.NOT_SERVING,),
            attached=attached_status(controller.keeper.spec.attached.get(instance_id)),
        )
        for instance_id in staying_instances(controller.keeper.spec)
        if instance_id not in controller.roster.members
    ]


def attached_status(server: AttachedServer | None) -> AttachedStatus | None:
    if server is None:
        return None
    return AttachedStatus(
        url=server.url,
        kind=server.kind,
        model=server.model,
        max_model_len=server.max_model_len,
        capacity_tokens=server.capacity_tokens,
    )


def _of_process(member: Member, now_s: float) -> dict[str, Any]:
    return {
        "id": member.member_id,
        "detail": member.detail,
        "incarnation": member.incarnation,
        "num_restarts": member.num_restarts,
        "node": member.node,
        "pid": member.pid if member.alive else None,
        "up_s": _up_s(member, now_s),
    }


def _process_state(member: Member, *, stopping: bool) -> InstanceState | None:
    """The state that follows from the process alone; None if the process serves. `stopping`: the
    whole cluster is being stopped, so no process that has ended will come back."""
    if not member.alive or member.phase == "starting":
        if stopping:
            return InstanceState.STOPPING
        if member.fenced:
            return InstanceState.STALLED
        return _coming(member)
    return InstanceState.FAILED if member.phase == "failed" else None


def _coming(member: Member) -> InstanceState:
    """The state of an instance until its engine reports. If it served before, the cluster is
    degraded until then."""
    has_served = member.incarnation > 1 or (member.incarnation and not member.alive)
    return InstanceState.RESTARTING if has_served else InstanceState.STARTING


def _instance_state(
    controller: ControllerProcess, member: Member, record: InstanceRecord | None
) -> InstanceState:
    if state := _process_state(member, stopping=controller.stopping):
        return state
    if record is None or record.snapshot is None:
        # The instance's event loop says that it serves, but its engine has not reported in this
        # incarnation.
        hangs = member.fenced or (record is not None and record.stalled)
        return InstanceState.STALLED if hangs else _coming(member)
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
        why=_why_it_drains(claims.strongest),
    )


def _why_it_drains(claim: Claim) -> str:
    is_noticed = isinstance(claim, Evacuate) and claim.by != "operator"
    return f"notice: {claim.reason}" if is_noticed else claim.reason


def notices(controller: ControllerProcess) -> tuple[NoticeStatus, ...]:
    """The notices that stand. A machine that only the launcher knows is named by its id there."""
    members = controller.roster.members.values()
    nodes = {each.said.machine: each.node for each in members}
    with_endpoint = {each.said.machine for each in controller.roster.frontends()}
    return tuple(
        NoticeStatus(
            node=nodes.get(each.machine, each.machine) if each.machine else "",
            why=each.notice.why,
            leaves_at_s=round(each.notice.leaves_at_s, 3),
            instance_ids=each.instance_ids,
            takes_endpoint=bool(each.machine) and each.machine in with_endpoint,
        )
        for each in controller.notices.machine.view()
    )


def _detail(controller: ControllerProcess, member: Member) -> str:
    if controller.fleet.is_busy(member):
        return "computes without a request"
    return member.detail


def _up_s(member: Member, now_s: float) -> float | None:
    if not member.alive or member.heard_s is None:
        return None
    return round(member.said.up_s + now_s - member.heard_s, 1)


def _by_level(by_rank: Mapping[int, T], levels: Sequence[Level]) -> dict[str, T]:
    """The values by level's name; the highest rank comes first."""
    name = level_names(levels)
    return {name(rank): value for rank, value in sorted(by_rank.items(), reverse=True)}


def _by_name(told: object, names: Collection[str]) -> dict[str, object]:
    """The fields with these names; times and shares are rounded to six decimals."""
    found = ((name, getattr(told, name)) for name in names)
    return {name: round(each, 6) if isinstance(each, float) else each for name, each in found}


def _load(
    levels: Sequence[Level], snapshot: InstanceSnapshot, schedulable: list[InstanceSnapshot]
) -> dict[str, object]:
    name = level_names(levels)
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
            level=name(head.rank),
            demand_blocks=head.demand_blocks,
            waited_s=round(max(0.0, time.time() - head.arrival_time_s), 3),
            evicted=head.evicted,
            evicted_for_s=None
            if head.evicted_at_s is None
            else round(max(0.0, time.time() - head.evicted_at_s), 3),
            why=str(queue_reason(snapshot, schedulable) or ""),
        ),
    }
