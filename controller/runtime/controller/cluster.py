"""The controller: the roster of members, the global scheduler, and the messages between them.

When the controller dies, the instances and frontends run on: live requests do not notice, and the
frontends dispatch new ones alone. A new controller learns of the members from their Hellos, which
they repeat every second, and of their loads from the next statuses. The spec (instances, changed
settings, drains) is on disk before it counts. Lost are the counts of restarts, the requests that
the controller held (their frontends ask again), and the record of moves that ended.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from controller.core.admission.api_keys import NO_KEYS, OwnLimits
from controller.core.admission.records import AdmissionRecords, Rejected
from controller.core.emptying.openness import Cooling, Openness
from controller.core.load.closed import OPEN, Reasons
from controller.core.operations.cluster_spec import move_reason
from controller.core.record.event_log import EventKind, LoggedEvent
from controller.core.replay.replay_log import ReplayLog
from controller.core.scheduler import GlobalScheduler
from controller.core.scheduler_events import (
    ClosedBy,
    Dispatch,
    Event,
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
from controller.runtime.controller.member_events import FleetWatch, MemberEvents
from controller.runtime.controller.operations.drain_runner import DrainForecasts, DrainRunner
from controller.runtime.controller.operations.operated_cluster import SpecKeeper
from controller.runtime.controller.operations.operator_moves import OperatorMoves
from controller.runtime.controller.operations.rolling_runner import RollingRestarts
from controller.runtime.controller.operations.scaling import Autoscaling, Scaling
from controller.runtime.controller.queries import MemberQueries
from controller.runtime.controller.rescheduler import Rescheduler
from controller.runtime.controller.roster import Directories, MemberMail, Roster, config_messages
from controller.runtime.controller.traffic import Traffic
from controller.runtime.live_config import LiveConfig
from controller.runtime.messages.codec import Handlers, Inbox
from controller.runtime.messages.members import (
    DrainFrontend,
    EventsReported,
    Hello,
    StatusPushed,
)
from controller.runtime.messages.move_messages import (
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

Turns = tuple[tuple[str, Callable[[], object]], ...]
"""What each tick does, by name and in order."""

TICK_S = 0.1
# Beyond the grace time the frontends need so long to send their last bytes.
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
    ) -> None:
        self._mailbox = mailbox
        self._launcher = launcher
        self.live = config
        self.keeper = keeper
        self.scheduler = GlobalScheduler(config.scheduler, own_key_limits)
        self.incarnations = incarnations
        self.roster = Roster(before=incarnations.load() if incarnations is not None else {})
        self.mail = MemberMail(mailbox, self.roster)
        self.statuses: dict[str, StatusPushed] = {}
        """Each instance's last status, perhaps of a dead incarnation."""
        epoch = secrets.token_hex(4)
        self.journal = Journal(epoch, config.max_events, store=events)
        self.queries = MemberQueries(self.mail.send_to, epoch)
        cooling = Cooling()
        self.openness = Openness(self.scheduler, cooling)
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
        """By the spec, as the scheduler was told."""
        self.keeper.on_change = self._close_instances
        self.directories = Directories(
            self.roster, self.scheduler, self.mail.send_to_all, lambda: self.now_s(), epoch
        )
        self.launching = LauncherWatch(
            launcher, self.journal, lambda: self.stop(drain=False, grace_s=0.0)
        )
        self.admission_records = AdmissionRecords(self.scheduler)
        self.traffic = Traffic(self.mail.send_to_frontends)
        self.drain_forecasts = DrainForecasts(self)
        self.drains = DrainRunner(self, self.drain_forecasts)
        self.fleet = FleetWatch(
            self, self.drains, lambda member, why: self.member_events.fence(member, why)
        )
        self.rolling = RollingRestarts(self, self.drains)
        self.scaling = Scaling(self, self.drains, launcher)
        self.autoscaling = Autoscaling(self, self.scaling, launcher, epoch)
        self.member_events = MemberEvents(self)
        self.was_ready = False
        self._stopping: asyncio.Task[None] | None = None
        self._stop_by_s = float("inf")
        self._cut = False

    # -- life ----------------------------------------------------------------------------

    def start(self, num_frontends: int) -> None:
        """Launches the frontends and the spec's instances."""
        self._mailbox.start(Inbox(self._handlers()).take, self.member_events.lost)
        self.journal.controller_started()
        self._close_instances()
        self.drains.resume()
        for index in range(num_frontends):
            self.roster.expect("frontend", f"f-{index}")
            self._launcher.launch_frontend(f"f-{index}")
        self.scaling.launch_all()

    def launch(self, instance_ids: Sequence[str]) -> None:
        """Launches instances, and expects them from now on."""
        for instance_id in instance_ids:
            self._launcher.launch_instance(instance_id)
            self.roster.expect("instance", instance_id)

    def restart(self, instance_id: str) -> None:
        """Replaces the instance's process."""
        self._launcher.restart(instance_id)

    def terminate(self, instance_id: str) -> None:
        """Ends the instance's process for good, and forgets the instance. That is no death: nothing
        is restarted or counted as a failure."""
        self._launcher.terminate(instance_id)
        member = self.roster.forget(instance_id)
        if member is not None:
            self.member_events.removed(member)
            self.statuses.pop(instance_id, None)

    async def run(self) -> None:
        rounds = asyncio.create_task(self.rescheduler.run())
        try:
            await self._tick_for_ever()
        finally:
            rounds.cancel()

    async def _tick_for_ever(self) -> None:
        """Each turn is guarded: one that fails ends no other, and not this process, which a full
        disk would else end with everything that it holds."""
        always: Turns = (
            ("the scheduler's tick", lambda: self.handle(Ticked())),
            ("the look at who is ready", self._note_readiness),
            ("the watch for stalled instances", self.fleet.look_for_stalls),
            ("the watch for busy ones", self.fleet.look_for_busy),
            ("the records of admission", lambda: self._put_on_record(Ticked())),
        )
        unless_stopping: Turns = (
            ("the watch of Ray", self.launching.tick),
            ("the watch for slow instances", self.fleet.look_for_slow),
            ("the look at drains", self.drains.tick),
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
                if not self.stopping:  # Ray's end may begin the stop
                    turns.take(name, turn)
            for name, turn in at_last:
                turns.take(name, turn)

    def would_stop(self, drain: bool) -> bool:
        """Whether `stop` would change anything: the first call does, and one that cuts a drain
        short."""
        return self._stopping is None or not (drain or self._cut or self.stopped)

    def stop(self, drain: bool, grace_s: float) -> None:
        """Begins to stop: no new requests, live ones may end within `grace_s` if `drain`.

        Only the first call counts, but a later `drain=False` cuts it short."""
        if not self.would_stop(drain):
            return
        self._cut = not drain
        grace_s = grace_s if drain else 0.0
        self._stop_by_s = self.now_s() + grace_s + STOP_MARGIN_S
        self.mail.send_to_frontends(DrainFrontend(grace_s))
        self._stopping = self._stopping or asyncio.create_task(self._stop())

    def configure(self, config: LiveConfig) -> None:
        """Applies `config` from now on; requests and moves beyond smaller limits go on."""
        instructions = self.scheduler.reconfigure(config.scheduler, self.now_s())
        before, self.live = self.live, config
        self.operator_moves.machine.levels = config.scheduler.levels
        self.operator_moves.machine.max_moves = config.rescheduling.max_moves
        self.rescheduler.levels = config.scheduler.levels
        if config.rescheduling != before.rescheduling:
            self.rescheduler.config = config.rescheduling
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
        """Meanwhile no process is started or ended."""
        return self._launcher.loss()

    @property
    def num_live_reqs(self) -> int:
        return sum(frontend.num_live_reqs for frontend in self.roster.frontends())

    def num_moves(self, instance_id: str) -> int:
        """Moves to and from an instance that are under way by its last status."""
        member, status = self.roster.members.get(instance_id), self.statuses.get(instance_id)
        if member is None or status is None or member.incarnation != status.snapshot.incarnation:
            return 0
        return len(status.moves) + status.num_moves_in

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def _stop(self) -> None:
        while self.now_s() < self._stop_by_s and any(f.serving for f in self.roster.frontends()):
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
            return  # a late push of a dead incarnation
        self.roster.reported(member)
        self.statuses[snapshot.instance_id] = status
        self.handle(StatusReported(snapshot, status.last_dispatch_seq))

    def _close_instances(self) -> None:
        """Tells the scheduler what the spec has against instances, where that is new."""
        before, self._closed = self._closed, self.keeper.spec.closed
        for instance_id in sorted({*before, *self._closed}):
            reasons = self._closed.get(instance_id, OPEN)
            if reasons != before.get(instance_id, OPEN):
                self.handle(ClosedBy(instance_id, reasons))

    def _note_readiness(self) -> None:
        """Notes the moment when every member serves and every instance has reported: from then on
        absence is a fault."""
        if not self.was_ready:
            self.was_ready = all(
                m.serving and (m.kind == "frontend" or m.member_id in self.statuses)
                for m in self.roster.members.values()
            )

    # -- what goes out -------------------------------------------------------------------

    def handle(self, event: Event) -> None:
        """Gives the event to the scheduler, and carries out its instructions."""
        for instruction in self.scheduler.handle(event, self.now_s()):
            self._carry_out(instruction)

    def _carry_out(self, instruction: Instruction) -> None:
        frontend = self.roster.members[instruction.frontend_id]
        match instruction:  # the answer first: a request waits for it, and nobody for the log
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
"""So long before all processes end, live requests do. An error takes milliseconds; the moment at
which each process ends is known to a few seconds."""


class LauncherWatch:
    """What a controller does that can start and end no process any more: it says so, and ends the
    streams with an error each before its own process is ended."""

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
