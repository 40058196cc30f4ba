"""How members join, die, are fenced and leave, and what the rest of the cluster is told of it; and
the watch over the instances, which tells the core's machines (`core.fleet`) what they report, and
carries out what those ask for.
"""

import logging
import secrets
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from msgspec.structs import replace

from controller.core.admission.instance_pool import InstanceRecord
from controller.core.emptying.claims import SlowDrain
from controller.core.fleet.incarnations import LastIncarnation
from controller.core.fleet.liveness import (
    SLOW_WATCH,
    Busyness,
    Empty,
    Event,
    Fence,
    IdleSeen,
    InstanceGone,
    InstancesSeen,
    Instruction,
    Key,
    Liveness,
    LookAtRest,
    Pull,
    Rest,
    Serving,
    Slowness,
    StepsSeen,
    TellStall,
)
from controller.core.operations.cluster_spec import ExitReason, why_emptied
from controller.core.operations.order_checks import none_would_serve
from controller.core.replay.replay_log import ReplayLog
from controller.core.scheduler_events import (
    FrontendDied,
    InstanceDied,
    InstanceRemoved,
    InstanceStalled,
    InstanceStarted,
)
from controller.ports.processes import IncarnationStore
from controller.runtime.controller.operations.drain_runner import DrainRunner
from controller.runtime.controller.operations.operated_cluster import OperatedCluster
from controller.runtime.controller.roster import Member, RosterChange, config_messages
from controller.runtime.controller.traffic import Traffic
from controller.runtime.messages.members import (
    Hello,
    InstanceLost,
    StatusPull,
    StatusPushed,
    Welcome,
)

log = logging.getLogger(__name__)


class FleetWatch:
    """Liveness pulls statuses and fences, slowness empties, busyness puts on record. `fence` takes
    a member for dead, with a reason."""

    def __init__(
        self,
        cluster: OperatedCluster,
        drains: DrainRunner,
        fence: Callable[[Member, str], None],
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._cluster = cluster
        self._drains = drains
        self._fence = fence
        self._wall_clock = wall_clock
        self._liveness = Liveness()
        self._slowness = Slowness()
        self._busyness = Busyness()

    def is_busy(self, member: Member) -> bool:
        """Whether it is on record as one that computes without a request."""
        return self._busyness.is_on_record(member.member_id, member.incarnation)

    def gone(self, instance_id: str, incarnation: int) -> None:
        """The instance died, or was removed."""
        gone, now_s = InstanceGone(instance_id, incarnation), self._cluster.now_s()
        self._liveness.handle(gone, now_s)
        self._busyness.handle(gone, now_s)

    # -- who lives -----------------------------------------------------------------------

    def look_for_stalls(self) -> None:
        settings, records = self._cluster.live.scheduler, self._cluster.scheduler.instances
        serving = [
            _serving(member, records[member.member_id], settings.stall_timeout_s)
            for member in self._cluster.roster.instances()
            if member.serving and member.member_id in records
        ]
        self._tell(
            InstancesSeen(
                serving, settings.fence_after_s, pulls_all=settings.status_push == "never"
            )
        )

    def _tell(self, event: Event) -> None:
        for instruction in self._liveness.handle(event, self._cluster.now_s()):
            self._carry_out(instruction)

    def _carry_out(self, instruction: Instruction) -> None:
        members = self._cluster.roster.members
        match instruction:
            case Pull(instance_id):
                self._cluster.mail.send(members[instance_id], StatusPull(), droppable=True)
            case TellStall(instance_id, silence_s, over):
                member = members[instance_id]
                self._cluster.journal.stalled(member, not over, silence_s)
                stalled = InstanceStalled(instance_id, member.incarnation, over)
                self._cluster.handle(stalled)
            case LookAtRest():
                self._tell(self._rest())
            case Fence(instance_id, why):
                self._fence(members[instance_id], why)

    def _rest(self) -> Rest:
        scheduler = self._cluster.scheduler
        schedulable = scheduler.schedulable_snapshots()
        unclaimed = sum(each.unclaimed_blocks for each in schedulable)
        num_away = sum(member.fenced for member in self._cluster.roster.instances())
        return Rest(len(schedulable), unclaimed - scheduler.held_demand_blocks, num_away)

    # -- who is slow ---------------------------------------------------------------------

    def look_for_slow(self) -> None:
        settings, drained = self._cluster.live.scheduler, self._cluster.keeper.spec.drains
        step_times_s: dict[Key, float] = {}
        for member, status in self._statuses() if settings.slow_factor else ():
            snapshot = status.snapshot
            if snapshot.num_running and snapshot.incarnation == member.incarnation:
                step_times_s[member.member_id, member.incarnation] = status.step_time_s
        seen = StepsSeen(step_times_s, drained, settings.slow_factor, settings.slow_after_s)
        for slow in self._slowness.handle(seen, self._cluster.now_s()):
            self._empty(slow)

    def _empty(self, slow: Empty) -> None:
        cause_id = f"slow-{secrets.token_hex(4)}"
        claim = SlowDrain(cause_id, self._wall_clock(), actor=SLOW_WATCH, reason=slow.why)
        spec, schedulable = self._cluster.keeper.spec, self._drains.schedulable_ids()
        if none_would_serve(spec, [slow.instance_id], schedulable):
            return
        self._drains.begin({slow.instance_id: claim})
        log.warning("%s is emptied: %s", slow.instance_id, slow.why)

    # -- who computes for nobody ---------------------------------------------------------

    def look_for_busy(self) -> None:
        cores: dict[Key, float] = {}
        for member, status in self._statuses():
            if (idle := idle_cores(status)) is not None:
                cores[member.member_id, member.incarnation] = idle
        members = self._cluster.roster.members
        for told in self._busyness.handle(IdleSeen(cores), self._cluster.now_s()):
            if (known := members.get(told.instance_id)) is not None:
                self._cluster.journal.busy(known, not told.over, told.lasted_s, told.cpu_cores)

    def _statuses(self) -> Iterable[tuple[Member, StatusPushed]]:
        """The last one of each instance that serves, perhaps of an earlier incarnation."""
        statuses = self._cluster.statuses
        return (
            (member, statuses[member.member_id])
            for member in self._cluster.roster.instances()
            if member.serving and member.member_id in statuses
        )


def idle_cores(status: StatusPushed) -> float | None:
    """The CPU cores that an instance takes without a request; None if it has one, or is moving
    one."""
    snapshot = status.snapshot
    has_work = snapshot.num_running or snapshot.num_queued or status.moves or status.num_moves_in
    return None if has_work else status.cpu_cores or 0.0


def _serving(member: Member, record: InstanceRecord, stall_timeout_s: float) -> Serving:
    """What an incarnation without a report may run is known from its Hello: nothing, or, as that
    counts requests and not their memory, all that fits into it."""
    snapshot = record.snapshot
    if snapshot is not None:
        need_blocks = snapshot.num_used_blocks + snapshot.queued_demand_blocks
    else:
        all_blocks = member.info.num_gpu_blocks if member.info else 0
        need_blocks = all_blocks if member.num_live_reqs else 0
    return Serving(
        member.member_id,
        member.incarnation,
        None if snapshot is None else record.last_report_s,
        need_blocks,
        stall_timeout_s,
        member.node,
        is_dead=not record.alive,
        fenced=member.fenced,
    )


class JoinedCluster(OperatedCluster, Protocol):
    """The part of the controller that members' coming and going concerns."""

    replays: ReplayLog
    drains: DrainRunner
    fleet: FleetWatch
    traffic: Traffic
    incarnations: IncarnationStore | None
    """With None, incarnations are counted as long as this process lives."""

    @property
    def stopping(self) -> bool: ...


class MemberEvents:
    """What happens when a member comes or goes."""

    def __init__(self, cluster: JoinedCluster) -> None:
        self._cluster = cluster

    def hello(self, hello: Hello) -> None:
        change = self._cluster.roster.hello(hello, self._cluster.now_s())
        if change is None:
            log.warning("hello of an unknown member %s", hello.member_id)
            return
        member = change.member
        if hello.leaves_in_s is not None and not self._cluster.stopping:
            self._cluster.drains.must_go(member, hello.leaves_in_s)
        if change.failed:
            self._cluster.journal.member(member, member.incarnation, "failed", member.detail)
        if change.died is not None:
            self._announce_death(member, change.died, "another process took its place")
        if change.welcome is not None:
            log.info("%s is incarnation %d", member.member_id, member.incarnation)
            self._keep(member)
            self._cluster.mail.send(member, self._welcome(member, change.welcome))
        if change.began_serving:
            self._begin_serving(change)
        elif change.welcome is not None and member.kind == "frontend":
            self._cluster.mail.send(member, self._cluster.directories.present())

    def _welcome(self, member: Member, welcome: Welcome) -> Welcome:
        if member.kind == "frontend":
            return welcome
        return replace(welcome, engine=self._cluster.keeper.spec.engine_of(member.member_id))

    def _begin_serving(self, change: RosterChange) -> None:
        member = change.member
        log.info("%s (incarnation %d) serves", member.member_id, member.incarnation)
        self._cluster.journal.member(member, member.incarnation, "started")
        if member.kind == "instance":
            self._cluster.handle(InstanceStarted(member.member_id, member.incarnation))
            self._cluster.directories.tell()
            self._send_config(member)
            self._cluster.drains.began_serving(member)
            self._cluster.mail.send(member, StatusPull())
        else:
            self._send_config(member)

    def lost(self, address: str) -> None:
        member = self._cluster.roster.lost(address)
        if member is not None:
            log.warning("%s (incarnation %d) is gone", member.member_id, member.incarnation)
            self._keep(member)
            self._announce_death(member, member.incarnation, "its process is gone")

    def fence(self, member: Member, why: str) -> None:
        incarnation = member.incarnation
        log.warning("%s (incarnation %d) is %s", member.member_id, incarnation, why)
        self._keep(self._cluster.roster.fence(member.member_id, why))
        self._cluster.replays.died(member.member_id, incarnation, ExitReason.FENCED)
        self._announce_death(member, incarnation, why)

    def _keep(self, member: Member) -> None:
        """Call it before anybody is told of a new incarnation, or of a death."""
        if (store := self._cluster.incarnations) is not None:
            store.keep(member.member_id, LastIncarnation(member.incarnation, member.alive))

    def removed(self, member: Member) -> None:
        """An instance was ended for good. That is no death: nothing is restarted or counted as a
        failure."""
        instance_id, incarnation = member.member_id, member.incarnation
        reason = why_emptied(self._cluster.keeper.spec, instance_id) or ExitReason.DEATH
        self._cluster.replays.died(instance_id, incarnation, reason)
        self._cluster.handle(InstanceRemoved(instance_id))
        self._cluster.journal.forget(instance_id)
        self._instance_gone(instance_id, incarnation)

    def _announce_death(self, member: Member, incarnation: int, why: str) -> None:
        if self._cluster.stopping:
            why = "it was stopped"
        elif self._cluster.drains.is_replacing(member.member_id):
            why = "an operator restarts it"
        self._cluster.journal.member(member, incarnation, "died", why)
        if member.kind == "instance":
            self._cluster.replays.died(member.member_id, incarnation, self._why_it_died(member))
            self._cluster.handle(InstanceDied(member.member_id, incarnation))
            self._instance_gone(member.member_id, incarnation)
            if (lost := self._cluster.roster.lost_with(member)) and not self._cluster.stopping:
                self._cluster.journal.node_lost(member.node, [each.member_id for each in lost])
        else:
            self._cluster.handle(FrontendDied(member.member_id))
            self._cluster.traffic.frontend_died(member.member_id)
            self._cluster.queries.member_died(member.member_id)

    def _why_it_died(self, member: Member) -> ExitReason:
        """A process that is told to end for good is an evacuation's, though it ends by itself."""
        emptied = why_emptied(self._cluster.keeper.spec, member.member_id)
        ordered = self._cluster.drains.is_replacing(member.member_id)
        is_told = emptied is not None and (ordered or emptied is ExitReason.EVACUATION)
        return emptied if is_told and emptied is not None else ExitReason.DEATH

    def _instance_gone(self, instance_id: str, incarnation: int) -> None:
        """The instance died, or was removed."""
        self._cluster.fleet.gone(instance_id, incarnation)
        self._cluster.queries.member_died(instance_id)
        self._cluster.rescheduler.instance_gone(instance_id)
        lost = InstanceLost(instance_id, incarnation)
        # Other instances may have moves to or from this one.
        others = (
            other for other in self._cluster.roster.instances() if other.member_id != instance_id
        )
        self._cluster.mail.send_to_all([*self._cluster.roster.frontends(), *others], lost)

    def _send_config(self, member: Member) -> None:
        for message in config_messages(member, self._cluster.live, None):
            self._cluster.mail.send(member, message)
