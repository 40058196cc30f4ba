"""The controller's process: the roster of members, the global scheduler, and the messages between
them; how members join, die, are fenced and leave (`MemberEvents`); and the watch over the
instances (`FleetWatch`), which runs the machines of `core.fleet.liveness`.

When the controller dies, the instances and frontends run on: live requests are not affected, and
the frontends dispatch new requests alone. A new controller learns of the members from their Hellos,
which they repeat every second, and learns their loads from the next statuses. The spec (instances,
changed settings, drains) is on disk before it counts. The counts of restarts, the requests that
waited at the controller (their frontends ask again), and the record of moves that ended are lost.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from controller.core.admission.api_keys import NO_KEYS, OwnLimits
from controller.core.admission.instance_pool import InstanceRecord
from controller.core.admission.records import AdmissionRecords, Rejected
from controller.core.emptying.claims import SlowDrain
from controller.core.emptying.openness import Cooling, Openness
from controller.core.fleet import liveness
from controller.core.fleet.cluster_spec import (
    ClusterSpec,
    ExitReason,
    move_reason,
    none_would_serve,
    why_emptied,
)
from controller.core.fleet.incarnations import LastIncarnation
from controller.core.fleet.liveness import (
    SLOW_WATCH,
    Busyness,
    Empty,
    Fence,
    IdleSeen,
    InstanceGone,
    InstancesSeen,
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
from controller.core.fleet.shares import Shares, SharesSeen
from controller.core.load.closed import OPEN, Reasons
from controller.core.load.snapshot import InstanceRef
from controller.core.migration import handover
from controller.core.record.event_log import EventKind, LoggedEvent
from controller.core.replay.replay_log import ReplayLog
from controller.core.scheduler import GlobalScheduler
from controller.core.scheduler_events import (
    AskCache,
    ClosedBy,
    Dispatch,
    Event,
    FrontendDied,
    InstanceDied,
    InstanceRemoved,
    InstanceStalled,
    InstanceStarted,
    Instruction,
    Reject,
    StatusReported,
    Ticked,
)
from controller.ports.processes import (
    EventStore,
    IncarnationStore,
    Launcher,
    LauncherLoss,
    LauncherLostError,
    Mailbox,
)
from controller.runtime.controller.journal import Journal
from controller.runtime.controller.operations.drain_runner import (
    DrainForecasts,
    DrainRunner,
    RollingRestarts,
)
from controller.runtime.controller.operations.notice_runner import NoticeRunner
from controller.runtime.controller.operations.operated_cluster import OperatedCluster, SpecKeeper
from controller.runtime.controller.operations.operator_moves import OperatorMoves
from controller.runtime.controller.operations.scaling import Autoscaling, Scaling
from controller.runtime.controller.queries import MemberQueries
from controller.runtime.controller.rescheduler import Rescheduler
from controller.runtime.controller.roster import (
    AdapterNews,
    Directories,
    LiveConfig,
    Member,
    MemberMail,
    Roster,
    RosterChange,
    config_messages,
)
from controller.runtime.controller.traffic import Traffic
from controller.runtime.messages.codec import Handlers, Inbox, wire_version
from controller.runtime.messages.members import (
    CacheAsked,
    DrainFrontend,
    EventsReported,
    Hello,
    InstanceLost,
    StatusPull,
    StatusPushed,
    Welcome,
)
from controller.runtime.messages.move_messages import (
    HandoverEnded,
    HandoverOrdered,
    MoveAnswered,
    MoveRefusalsAnswered,
    ReliefFruitless,
)
from controller.runtime.messages.requests import (
    AbortAnswered,
    DispatchAsked,
    Dispatched,
    DispatchWithdrawn,
    KeysCounted,
    RankChangeAnswered,
    Refused,
    RequestsAnswered,
    TrafficTold,
)
from controller.runtime.repeating import GuardedTurns

log = logging.getLogger(__name__)


class FleetWatch:
    """The watch over the instances. It runs three machines: liveness pulls statuses and fences,
    slowness has instances emptied, and busyness records instances that compute without a request.
    `fence`: takes a member for dead, with a reason."""

    def __init__(
        self,
        cluster: OperatedCluster,
        drains: DrainRunner,
        fence: Callable[[Member, str], None],
        wall_clock: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._drains = drains
        self._fence = fence
        self._wall_clock = wall_clock
        self._liveness = Liveness()
        self._slowness = Slowness()
        self._busyness = Busyness()

    def is_busy(self, member: Member) -> bool:
        """Whether it is on record that the instance computes without a request."""
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

    def _tell(self, event: liveness.Event) -> None:
        for instruction in self._liveness.handle(event, self._cluster.now_s()):
            self._carry_out(instruction)

    def _carry_out(self, instruction: liveness.Instruction) -> None:
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
        return Rest(len(schedulable), unclaimed - scheduler.waiting_demand_blocks, num_away)

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
        """The last status of each instance that serves; the status may be from an earlier
        incarnation."""
        statuses = self._cluster.statuses
        return (
            (member, statuses[member.member_id])
            for member in self._cluster.roster.instances()
            if member.serving and member.member_id in statuses
        )


def idle_cores(status: StatusPushed) -> float | None:
    """The CPU cores that an instance uses without a request; None if it has a request or a move is
    under way at it."""
    snapshot = status.snapshot
    has_work = snapshot.num_running or snapshot.num_queued or status.moves or status.num_moves_in
    return None if has_work else status.cpu_cores or 0.0


def _serving(member: Member, record: InstanceRecord, stall_timeout_s: float) -> Serving:
    """Describes an instance that serves, for the machine of liveness. The Hello of an incarnation
    that has not reported yet only has the number of its requests, not their memory. So if there are
    any, they count as filling the memory of the instance."""
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


OTHER_VERSION = (
    "its llumctl is another version than the controller's: they do not understand each other's"
    " messages"
)


FILLING = "fill-"
"""How the causes of handovers begin that fill a new instance; its id follows."""


class MemberEvents:
    """What the controller does when a member comes or goes."""

    def __init__(self, cluster: "ControllerProcess") -> None:
        self._cluster = cluster
        self._misplaced = dict[str, str]()
        """By instance, the nonce of the last process that was replaced because it ran with another
        Python interpreter than the spec says."""
        self._filling = handover.Filling()

    def hello(self, hello: Hello) -> None:
        if hello.wire != wire_version():
            hello = replace(hello, phase="failed", detail=OTHER_VERSION)
        elif self._is_misplaced(hello):
            return
        change = self._cluster.roster.hello(hello, self._cluster.now_s())
        if change is None:
            log.warning("hello of an unknown member %s", hello.member_id)
            return
        member = change.member
        if member.kind == "instance" and not self._cluster.stopping:
            self._cluster.notices.said(member)
        if change.failed:
            self._cluster.journal.member(member, member.incarnation, "failed", member.detail)
        if change.died is not None:
            self._announce_death(member, change.died, "another process took its place")
        if change.welcome is not None:
            log.info("%s is incarnation %d", member.member_id, member.incarnation)
            self._keep(member)
            if member.kind == "instance":
                self._filling.handle(handover.Started(member.member_id))
            self._cluster.mail.send(member, self._welcome(member, change.welcome))
        if change.began_serving:
            self._begin_serving(change)
        elif change.welcome is not None and member.kind == "frontend":
            self._cluster.mail.send(member, self._cluster.directories.present())

    def _is_misplaced(self, hello: Hello) -> bool:
        """Whether the process starts with another interpreter than the spec says. It is replaced.
        This happens if a process dies, and Ray starts the next one, just before a rolling restart
        would have replaced it."""
        instance_id, keeper = hello.member_id, self._cluster.keeper
        if hello.kind != "instance" or instance_id not in keeper.spec.instance_ids:
            return False
        python = keeper.spec.engine_of(instance_id).python
        if hello.phase != "starting" or hello.incarnation or hello.python == python:
            return False
        if self._cluster.launcher_loss is not None:
            return True  # its next Hello comes in a second, and each try would wait for an answer
        if self._misplaced.get(instance_id) != hello.nonce:
            log.warning("%s starts with %s instead of %s", instance_id, hello.python, python)
            try:
                self._cluster.restart(instance_id)
                self._misplaced[instance_id] = hello.nonce
            except LauncherLostError as error:
                log.warning("%s is not replaced yet: %s", instance_id, error)
        return True

    def _welcome(self, member: Member, welcome: Welcome) -> Welcome:
        if member.kind == "frontend":
            return welcome
        return replace(welcome, engine=self._cluster.keeper.spec.engine_of(member.member_id))

    def _begin_serving(self, change: RosterChange) -> None:
        member = change.member
        log.info("%s (incarnation %d) serves", member.member_id, member.incarnation)
        self._cluster.journal.member(member, member.incarnation, "started")
        if member.kind == "instance":
            fingerprint = member.said.fingerprint
            self._cluster.handle(InstanceStarted(member.member_id, member.incarnation, fingerprint))
            self._cluster.directories.tell()
            self._send_config(member)
            self._cluster.adapters.tell(member)
            self._cluster.drains.began_serving(member)
            self._cluster.mail.send(member, StatusPull())
        else:
            self._send_config(member)
            self._cluster.adapters.tell(member)

    def fill_newcomers(self) -> None:
        if not self._filling.view():
            return
        scheduler = self._cluster.scheduler
        ids = (each.instance_id for each in scheduler.schedulable_snapshots())
        looked = handover.Looked({each: scheduler.num_cached_tokens(each) for each in ids})
        for fill in self._filling.handle(looked):
            self._fill(fill)

    def _fill(self, fill: handover.Fill) -> None:
        members, mail = self._cluster.roster.members, self._cluster.mail
        newcomer = members.get(fill.newcomer_id)
        if newcomer is None or (info := newcomer.said.info) is None:
            return
        order = HandoverOrdered(
            FILLING + fill.newcomer_id,
            (InstanceRef(newcomer.member_id, newcomer.incarnation, newcomer.address),),
            handover.FILL_WITHIN_S,
            fill.tokens_each(info.num_gpu_blocks * info.block_size),
        )
        mail.send_to_all([m for i in fill.source_ids if (m := members.get(i)) is not None], order)

    def handover_ended(self, ended: HandoverEnded) -> None:
        if not ended.cause_id.startswith(FILLING):
            self._cluster.drains.handed_over(ended)
        elif ended.num_tokens:
            newcomer_id = ended.cause_id.removeprefix(FILLING)
            self._cluster.journal.note(
                EventKind.HANDED_OVER,
                ended.cause_id,
                f"{newcomer_id} is new, and has a part of its cached prompts",
                instance_id=ended.source.instance_id,
                numbers={
                    "num_prompts": ended.num_prompts,
                    "num_tokens": ended.num_tokens,
                    "took_s": round(ended.took_s, 3),
                },
            )

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
        """Stores the member's last incarnation. Must be called before anybody is told of a new
        incarnation or of a death."""
        if (store := self._cluster.incarnations) is not None:
            store.keep(member.member_id, LastIncarnation(member.incarnation, member.alive))

    def removed(self, member: Member) -> None:
        """Forgets an instance that was ended for good. That does not count as a death: nothing is
        restarted or counted as a failure."""
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
        """The reason why the instance is gone. If a process that was told to end for good ends by
        itself, that is still its evacuation."""
        emptied = why_emptied(self._cluster.keeper.spec, member.member_id)
        ordered = self._cluster.drains.is_replacing(member.member_id)
        is_told = emptied is not None and (ordered or emptied is ExitReason.EVACUATION)
        return emptied if is_told and emptied is not None else ExitReason.DEATH

    def _instance_gone(self, instance_id: str, incarnation: int) -> None:
        """The instance died, or was removed."""
        self._filling.handle(handover.Gone(instance_id))
        self._cluster.fleet.gone(instance_id, incarnation)
        self._cluster.queries.member_died(instance_id)
        self._cluster.rescheduler.instance_gone(instance_id)
        lost = InstanceLost(instance_id, incarnation)
        # The other instances may have moves to or from this instance.
        others = (
            other for other in self._cluster.roster.instances() if other.member_id != instance_id
        )
        self._cluster.mail.send_to_all([*self._cluster.roster.frontends(), *others], lost)

    def _send_config(self, member: Member) -> None:
        for message in config_messages(member, self._cluster.live, None):
            self._cluster.mail.send(member, message)


Turns = tuple[tuple[str, Callable[[], object]], ...]
"""The parts of each tick's work, by name and in order."""

TICK_S = 0.1
# How long frontends need after the grace time to send their last bytes.
STOP_MARGIN_S = 6.0


class ControllerProcess:
    def __init__(
        self,
        mailbox: Mailbox,
        launcher: Launcher,
        config: LiveConfig,
        keeper: SpecKeeper,
        events: EventStore | None = None,
        own_key_limits: OwnLimits = NO_KEYS,
        incarnations: IncarnationStore | None = None,
        wall_clock: Callable[[], float] = time.time,
        model: str = "",
        beside: "ControllerProcess | None" = None,
        notice_s: float = 30.0,
    ) -> None:
        """`model`: the name of the model, if the cluster serves several. `beside`: the controller
        of another of its models, made before, in the same process."""
        self.model = model
        self.all: list[ControllerProcess] = [] if beside is None else beside.all
        """The controllers of all models. They share the event log, and the processes of frontends,
        which the first one starts and ends."""
        self.all.append(self)
        self.shares: Shares = Shares() if beside is None else beside.shares
        self._mailbox = mailbox
        self._launcher = launcher
        self.live = config
        self.keeper = keeper
        self.scheduler = GlobalScheduler(config.scheduler, own_key_limits)
        self.incarnations = incarnations
        self.roster = Roster(before=incarnations.load() if incarnations is not None else {})
        self.mail = MemberMail(mailbox, self.roster)
        self.adapters = AdapterNews(self.mail, self.roster, lambda: self.keeper.spec)
        self.statuses: dict[str, StatusPushed] = {}
        """The last status of each instance, perhaps of a dead incarnation."""
        epoch = secrets.token_hex(4)
        self.journal: Journal = Journal(
            epoch,
            config.max_events,
            wall_clock,
            events,
            None if beside is None else beside.journal,
        )
        self.queries = MemberQueries(self.mail.send_to, epoch)
        cooling = Cooling()
        inexact = config.rescheduling.allow_inexact
        self.openness = Openness(self.scheduler, cooling, allow_inexact=inexact)
        self.operator_moves = OperatorMoves(
            self.roster,
            self.openness,
            cooling,
            config.scheduler.levels,
            self.queries,
            lambda: self.now_s(),
            epoch,
            config.rescheduling.max_moves,
            self.num_moves,
        )
        self.rescheduler = Rescheduler(
            self.roster,
            self.scheduler,
            self.openness,
            cooling,
            lambda instance_id: self.num_moves(instance_id) < self.live.rescheduling.max_moves,
            config.scheduler.levels,
            partial(self.mail.send_to, droppable=True),
            lambda: self.now_s(),
            epoch,
            config.rescheduling,
        )
        self.replays = ReplayLog()
        self.journal.on_event = self._on_event
        self._closed: Mapping[str, Reasons] = {}
        """The reasons of the spec against instances, as they were last given to the scheduler."""
        self.keeper.on_change = self._spec_changed
        self.directories = Directories(
            self.roster, self.scheduler, self.mail.send_to_all, lambda: self.now_s(), epoch
        )
        self.launching = LauncherWatch(
            launcher, self.journal, lambda: self.stop_all(drain=False, grace_s=0.0)
        )
        self.admission_records = AdmissionRecords(self.scheduler)
        self.traffic = Traffic(self.mail.send_to_frontends)
        self.drain_forecasts = DrainForecasts(self)
        self.drains = DrainRunner(self, self.drain_forecasts, wall_clock)
        self.notices = NoticeRunner(self, self.drains, launcher, notice_s, wall_clock)
        self.fleet = FleetWatch(
            self,
            self.drains,
            lambda member, why: self.member_events.fence(member, why),
            wall_clock,
        )
        self.rolling = RollingRestarts(self, self.drains, wall_clock)
        self.scaling = Scaling(self, self.drains, launcher)
        self.autoscaling = Autoscaling(self, self.scaling, launcher, epoch, wall_clock)
        self.member_events = MemberEvents(self)
        self.was_ready = False
        self._stopping: asyncio.Task[None] | None = None
        self._stop_by_s = float("inf")
        self._cut = False

    # -- life ----------------------------------------------------------------------------

    def start(self, num_frontends: int) -> None:
        """Launches the frontends and the spec's instances."""
        self._mailbox.start(Inbox(self._handlers()).take, self.member_events.lost)
        if self.is_first:
            self.journal.controller_started()
        self._close_instances()
        self.drains.resume()
        for index in range(num_frontends):
            self.roster.expect("frontend", f"f-{index}")
            if self.is_first:
                self._launcher.launch_frontend(f"f-{index}")
        self.scaling.launch_all()

    def launch(self, instance_ids: Sequence[str]) -> None:
        """Launches instances, and expects their Hellos from now on."""
        for instance_id in instance_ids:
            self._launcher.launch_instance(instance_id)
            self.roster.expect("instance", instance_id)

    def restart(self, instance_id: str) -> None:
        """Replaces the instance's process."""
        self._launcher.restart(instance_id)

    def terminate(self, instance_id: str) -> None:
        """Ends the instance's process for good, and forgets the instance. That does not count as a
        death: nothing is restarted or counted as a failure."""
        self._launcher.terminate(instance_id)
        member = self.roster.forget(instance_id)
        if member is not None:
            self.member_events.removed(member)
            self.statuses.pop(instance_id, None)

    @property
    def is_first(self) -> bool:
        return self.all[0] is self

    async def run(self) -> None:
        rounds = asyncio.create_task(self.rescheduler.run())
        try:
            await self._tick_for_ever()
        finally:
            rounds.cancel()

    async def _tick_for_ever(self) -> None:
        """Does the work of each tick, for ever. If one part of the work fails, the other parts are
        done anyway and the process goes on. Otherwise a full disk would end the process, with all
        requests that wait at the controller."""
        always: Turns = (
            ("the scheduler's tick", lambda: self.handle(Ticked())),
            ("the look at who is ready", self._note_readiness),
            ("the watch for stalled instances", self.fleet.look_for_stalls),
            ("the watch for busy ones", self.fleet.look_for_busy),
            ("the records of admission", lambda: self._put_on_record(Ticked())),
        )
        of_first: Turns = (
            ("the watch of Ray", self.launching.tick),
            ("the sharing of room between models", self._share),
        )
        unless_stopping: Turns = (
            *(of_first if self.is_first else ()),
            ("the watch for slow instances", self.fleet.look_for_slow),
            ("the look at notices", self.notices.tick),
            ("the look at drains", self.drains.tick),
            ("the filling of new instances", self.member_events.fill_newcomers),
            ("the rolling restart", self.rolling.tick),
            ("the launch of missing instances", self.scaling.launch_missing),
            ("auto-scaling", self.autoscaling.tick),
        )
        at_last: Turns = (
            ("the directory for frontends", self.directories.tick),
            ("the recording of traffic", lambda: self.traffic.tick(self.now_s())),
            ("the queue of moves", self.operator_moves.look),
        )
        turns = GuardedTurns(self.now_s)
        while True:
            await asyncio.sleep(TICK_S)
            for name, turn in always:
                turns.take(name, turn)
            for name, turn in unless_stopping:
                if not self.stopping:  # the loss of Ray may begin the stop
                    turns.take(name, turn)
            for name, turn in at_last:
                turns.take(name, turn)

    def _share(self) -> None:
        """Has a model give an instance to one that has no room for its own."""
        if len(self.all) == 1:
            return
        of = {each.model: each for each in self.all}
        seen = SharesSeen([each.autoscaling.share() for each in self.all])
        for give in self.shares.handle(seen, self.now_s()):
            log.info("%s gives an instance to %s", give.name, give.to)
            of[give.name].autoscaling.give_one(give.to)

    def would_stop(self, drain: bool) -> bool:
        """Whether `stop` would change anything: the first call does, and so does a call that cuts a
        drain short."""
        return self._stopping is None or not (drain or self._cut or self.stopped)

    def stop_all(self, drain: bool, grace_s: float) -> None:
        """Begins to stop all models of the cluster, as `stop` does."""
        for each in self.all:
            each.stop(drain, grace_s)

    def stop(self, drain: bool, grace_s: float) -> None:
        """Begins to stop: the cluster takes no new requests. With `drain`, live requests may end
        within `grace_s`.

        Only the first call counts, but a later call with `drain=False` cuts the drain short."""
        if not self.would_stop(drain):
            return
        self._cut = not drain
        grace_s = grace_s if drain else 0.0
        self._stop_by_s = self.now_s() + grace_s + STOP_MARGIN_S
        self.mail.send_to_frontends(DrainFrontend(grace_s))
        self._stopping = self._stopping or asyncio.create_task(self._stop())

    def configure(self, config: LiveConfig) -> None:
        """Uses `config` from now on. Requests and moves that exceed a limit which is smaller now go
        on."""
        instructions = self.scheduler.reconfigure(config.scheduler, self.now_s())
        before, self.live = self.live, config
        self.operator_moves.machine.levels = config.scheduler.levels
        self.operator_moves.machine.max_moves = config.rescheduling.max_moves
        self.openness.allow_inexact = config.rescheduling.allow_inexact
        self.rescheduler.configure(config.rescheduling, config.scheduler.levels)
        self.journal.log.resize(config.max_events)
        self.autoscaling.configure(config.autoscale)
        for member in self.roster.members.values():
            if member.serving:
                for message in config_messages(member, config, before):
                    self.mail.send(member, message)
        for instruction in instructions:
            self._carry_out(instruction)

    @property
    def stopping(self) -> bool:
        return self._stopping is not None

    @property
    def stopped(self) -> bool:
        return self._stopping is not None and self._stopping.done()

    @property
    def launcher_loss(self) -> LauncherLoss | None:
        """Why the launcher cannot start and end processes at present; None if it can."""
        return self._launcher.loss()

    @property
    def num_live_reqs(self) -> int:
        return sum(frontend.num_live_reqs for frontend in self.roster.frontends())

    def num_moves(self, instance_id: str) -> int:
        """The moves to and from an instance that are under way by its last status."""
        member, status = self.roster.members.get(instance_id), self.statuses.get(instance_id)
        if member is None or status is None or member.incarnation != status.snapshot.incarnation:
            return 0
        return len(status.moves) + status.num_moves_in

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def _stop(self) -> None:
        frontends = [frontend for each in self.all for frontend in each.roster.frontends()]
        while self.now_s() < self._stop_by_s and any(f.serving for f in frontends):
            await asyncio.sleep(0.02)
        for member_id in self.roster.members:
            try:
                self._launcher.terminate(member_id)
            except LauncherLostError as error:
                log.warning("%s is not ended: %s", member_id, error)

    # -- messages ------------------------------------------------------------------------

    def _handlers(self) -> Handlers:
        return {
            StatusPushed: self._on_status,
            EventsReported: self.journal.told,
            RequestsAnswered: self.queries.answered,
            RankChangeAnswered: self.queries.answered,
            AbortAnswered: self.queries.answered,
            MoveRefusalsAnswered: self.queries.answered,
            MoveAnswered: self._on_move_answer,
            ReliefFruitless: self.rescheduler.fruitless,
            HandoverEnded: self.member_events.handover_ended,
            TrafficTold: self.traffic.told,
            DispatchAsked: self._on_dispatch_asked,
            DispatchWithdrawn: lambda told: self.handle(told.withdrawn),
            KeysCounted: lambda counted: self.handle(counted.told),
            Hello: self.member_events.hello,
        }

    def _on_move_answer(self, answer: MoveAnswered) -> None:
        record, reason = answer.record, ""
        if record is not None:
            reason = move_reason(self.keeper.spec, record.source_id, record.reason)
        self.operator_moves.answered(answer, reason)
        if record is not None:
            self.drains.move_ended(record)

    def _on_event(self, event: LoggedEvent) -> None:
        if event.kind is EventKind.MIGRATED:
            self.operator_moves.migrated(event)
        elif self.replays.is_about(event.kind):
            self.replays.noted(event, self.now_s())

    def _on_dispatch_asked(self, ask: DispatchAsked) -> None:
        if ask.asked.frontend_id not in self.roster.members:
            log.warning("a stranger asks for a dispatch: %s", ask.asked.frontend_id)
            return
        self.handle(ask.asked)

    def _on_status(self, status: StatusPushed) -> None:
        snapshot = status.snapshot
        member = self.roster.members.get(snapshot.instance_id)
        if member is None or not member.alive or member.incarnation != snapshot.incarnation:
            return  # a late status of a dead incarnation
        self.roster.reported(member)
        self.statuses[snapshot.instance_id] = status
        self.adapters.reported(snapshot)
        self.handle(
            StatusReported(
                snapshot,
                status.last_dispatch_seq,
                cache=status.cache,
                host_cache=status.host_cache,
            )
        )

    def _spec_changed(self, before: ClusterSpec) -> None:
        self._close_instances()
        if before.adapters != self.keeper.spec.adapters:
            self.adapters.changed()

    def _close_instances(self) -> None:
        """Tells the scheduler the reasons of the spec against instances, where they have
        changed."""
        before, self._closed = self._closed, self.keeper.spec.closed
        for instance_id in sorted({*before, *self._closed}):
            reasons = self._closed.get(instance_id, OPEN)
            if reasons != before.get(instance_id, OPEN):
                self.handle(ClosedBy(instance_id, reasons))

    def _note_readiness(self) -> None:
        """Notes when every member serves, and every instance has reported that its adapters are
        loaded or have failed. From then on a missing member is a fault."""
        if not self.was_ready:
            self.was_ready = all(
                m.serving and (m.kind == "frontend" or self._has_adapters(m.member_id))
                for m in self.roster.members.values()
            )

    def _has_adapters(self, instance_id: str) -> bool:
        status = self.statuses.get(instance_id)
        if status is None:
            return False
        wanted = {each.number for each in self.keeper.spec.adapters}
        return wanted <= {*status.snapshot.adapters, *status.snapshot.failed_adapters}

    # -- what goes out -------------------------------------------------------------------

    def handle(self, event: Event) -> None:
        """Gives the event to the scheduler, and carries out its instructions."""
        for instruction in self.scheduler.handle(event, self.now_s()):
            self._carry_out(instruction)

    def _carry_out(self, instruction: Instruction) -> None:
        if isinstance(instruction, AskCache):
            self.mail.send(self.roster.members[instruction.instance_id], CacheAsked())
            return
        frontend = self.roster.members[instruction.frontend_id]
        match instruction:  # the answer comes first, because a request waits for it
            case Dispatch():
                self.mail.send(frontend, Dispatched(instruction))
                self.journal.dispatched(instruction)
            case Reject():
                self.mail.send(frontend, Refused(instruction))
                self._put_on_record(Rejected(instruction))

    def _put_on_record(self, event: Ticked | Rejected) -> None:
        for record in self.admission_records.handle(event, self.now_s()):
            self.journal.admission(record)


CUT_BEFORE_S = 8.0
"""Live requests are ended this long before all processes end. To send an error takes milliseconds,
but the moment at which each process ends is only known to within a few seconds."""


class LauncherWatch:
    """What the controller does when it cannot start and end processes any more. It reports that,
    and ends each stream with an error before its own process is ended."""

    def __init__(self, launcher: Launcher, journal: Journal, cut: Callable[[], None]) -> None:
        self._launcher = launcher
        self._journal = journal
        self._cut = cut
        self._lost = ""

    def tick(self) -> None:
        loss = self._launcher.loss()
        what = "" if loss is None else loss.what
        if what != self._lost:
            self._journal.launcher(what or self._lost, lost=bool(what))
            self._lost = what
        if loss is not None and loss.ends_soon(CUT_BEFORE_S):
            self._cut()
