"""The controller: the cluster's table, the global scheduler, and the messages between.

What survives its death: the instances and frontends run on; requests in flight do not
notice, new ones are dispatched by the frontends alone. A new controller learns what runs
from the Hellos that members repeat every second and their loads from the next statuses.
What is lost: the counts of restarts, requests it held (their frontends ask again), the record
of moves that ended, and limits of moves that were set since the cluster began.
"""

import asyncio
import logging
import secrets
from collections.abc import Sequence

from controller.core.events import (
    Dispatch,
    DispatchCancelled,
    DispatchRequested,
    Event,
    FrontendDied,
    InstanceDied,
    InstanceStarted,
    Instruction,
    Reject,
    StatusReported,
    Ticked,
)
from controller.core.migration.limits import MoveLimits
from controller.core.scheduler import GlobalScheduler, SchedulerConfig
from controller.ports.launcher import Launcher
from controller.ports.mailbox import Mailbox
from controller.runtime.journal import Journal, best_candidates
from controller.runtime.message import Message
from controller.runtime.messages import (
    Directory,
    DispatchAsked,
    Dispatched,
    DispatchWithdrawn,
    DrainFrontend,
    EventsTold,
    Hello,
    InstanceEntry,
    InstanceLost,
    Refused,
    RequestsAnswered,
    StatusPull,
    StatusPushed,
    decode,
    encode,
)
from controller.runtime.move_messages import MoveAnswered, MoveLimitsSet, MoveRefusalsAnswered
from controller.runtime.mover import Mover
from controller.runtime.request_query import RequestQueries
from controller.runtime.roster import Member, Roster, RosterChange

log = logging.getLogger(__name__)

TICK_S = 0.1
DIRECTORY_EVERY_S = 0.4
# A member that said nothing for this long gets no directories: they would pile up for it.
SILENCE_S = 5.0
# Beyond the grace time: what the frontends need to send their last bytes.
STOP_MARGIN_S = 6.0

DEFAULT_LIMITS = MoveLimits()


class Controller:
    def __init__(
        self,
        mailbox: Mailbox,
        launcher: Launcher,
        config: SchedulerConfig,
        max_events: int = 10_000,
        limits: MoveLimits = DEFAULT_LIMITS,
    ) -> None:
        self._mailbox = mailbox
        self._launcher = launcher
        self.config = config
        self.scheduler = GlobalScheduler(config)
        self.roster = Roster()
        self.statuses: dict[str, StatusPushed] = {}
        """The last one of each instance, be it of a dead incarnation."""
        epoch = secrets.token_hex(4)
        self.journal = Journal(epoch, max_events)
        self.limits = limits
        self.mover = Mover(
            self.roster,
            self.scheduler,
            config.levels,
            lambda instance_id, asked: self._send(self.roster.members[instance_id], asked),
            lambda: self.now_s(),
            epoch,
            limits,
        )
        self.journal.on_event = self.mover.logged
        self.queries = RequestQueries(
            lambda frontend_id, asked: self._send(self.roster.members[frontend_id], asked)
        )
        self.was_ready = False
        self._silent_since_s: dict[tuple[str, int], float] = {}
        """Of stalled incarnations: when they last reported."""
        self._sent_directory: Directory | None = None
        self._sent_directory_s = float("-inf")
        self._stopping: asyncio.Task[None] | None = None
        self._stop_by_s = float("inf")
        self._cut = False

    # -- life ----------------------------------------------------------------------------

    def start(self, num_instances: int, num_frontends: int) -> None:
        self._mailbox.start(self._on_message, self._on_lost)
        self.journal.controller_started()
        for index in range(num_frontends):
            self.roster.expect("frontend", f"f-{index}")
            self._launcher.launch_frontend(f"f-{index}")
        for index in range(num_instances):
            self.roster.expect("instance", f"i-{index}")
            self._launcher.launch_instance(f"i-{index}")

    async def run(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._handle(Ticked())
            self._watch_progress()
            self._send_directory_if_due()

    def would_stop(self, drain: bool) -> bool:
        """Whether `stop` would change anything: the first call does, and one that cuts short
        what drains."""
        return self._stopping is None or not (drain or self._cut or self.stopped)

    def stop(self, drain: bool, grace_s: float) -> None:
        """Begin to stop: no new requests, live ones may end within `grace_s` if `drain`.

        Called again, only the first call counts, but a later `drain=False` cuts it short."""
        if not self.would_stop(drain):
            return
        self._cut = not drain
        grace_s = grace_s if drain else 0.0
        self._stop_by_s = self.now_s() + grace_s + STOP_MARGIN_S
        self._to_frontends(DrainFrontend(grace_s))
        self._stopping = self._stopping or asyncio.create_task(self._stop())

    def set_limits(self, limits: MoveLimits) -> None:
        """From now on; what goes on beyond them goes on."""
        self.limits = limits
        self.mover.cooling.cooling_s = limits.cooling_s
        for member in self.roster.instances():
            if member.serving:
                self._send_limits(member)

    @property
    def stopping(self) -> bool:
        return self._stopping is not None

    @property
    def stopped(self) -> bool:
        return self._stopping is not None and self._stopping.done()

    @property
    def num_live_reqs(self) -> int:
        return sum(frontend.num_live_reqs for frontend in self.roster.frontends())

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def _stop(self) -> None:
        while self.now_s() < self._stop_by_s and any(f.serving for f in self.roster.frontends()):
            await asyncio.sleep(0.02)
        for member_id in self.roster.members:
            self._launcher.terminate(member_id)

    # -- messages ------------------------------------------------------------------------

    def _on_message(self, head: bytes | memoryview, _payload: Sequence[memoryview]) -> None:
        match decode(head):
            case StatusPushed() as status:
                self._on_status(status)
            case EventsTold() as told:
                self.journal.told(told.member_id, told.incarnation, told.num_before, told.events)
            case RequestsAnswered() as answer:
                self.queries.answered(answer)
            case MoveAnswered() as answer:
                self.mover.answered(answer)
            case MoveRefusalsAnswered() as answer:
                self.mover.calls.answered(answer)
            case DispatchAsked() as ask if ask.frontend_id in self.roster.members:
                self._handle(
                    DispatchRequested(
                        ask.request_id,
                        ask.frontend_id,
                        ask.num_prompt_tokens,
                        ask.rank,
                        ask.arrival_time_s,
                    )
                )
            case DispatchWithdrawn(request_id=request_id, frontend_id=frontend_id):
                self._handle(DispatchCancelled(request_id, frontend_id))
            case Hello() as hello:
                self._on_hello(hello)
            case other:
                log.warning("unexpected message %s", type(other).__name__)

    def _on_status(self, status: StatusPushed) -> None:
        snapshot = status.snapshot
        member = self.roster.members.get(snapshot.instance_id)
        if member is None or not member.alive or member.incarnation != snapshot.incarnation:
            return  # a late push of a dead incarnation
        self.statuses[snapshot.instance_id] = status
        self._handle(StatusReported(snapshot, status.last_dispatch_seq))
        self._note_readiness()

    def _note_readiness(self) -> None:
        """Once every member served and every instance had reported, absence is a fault."""
        if not self.was_ready:
            self.was_ready = all(
                m.serving and (m.kind == "frontend" or m.member_id in self.statuses)
                for m in self.roster.members.values()
            )

    def _on_hello(self, hello: Hello) -> None:
        change = self.roster.hello(hello, self.now_s())
        if change is None:
            log.warning("hello of an unknown member %s", hello.member_id)
            return
        member = change.member
        if change.failed:
            self.journal.member(member, member.incarnation, "failed", member.detail)
        if change.died is not None:
            self._announce_death(member, change.died, "another process took its place")
        if change.welcome is not None:
            log.info("%s is incarnation %d", member.member_id, member.incarnation)
            self._send(member, change.welcome)
        if change.began_serving:
            self._begin_serving(change)
        elif change.welcome is not None and member.kind == "frontend":
            self._send(member, self._directory())

    def _begin_serving(self, change: RosterChange) -> None:
        member = change.member
        log.info("%s (incarnation %d) serves", member.member_id, member.incarnation)
        self.journal.member(member, member.incarnation, "started")
        if member.kind == "instance":
            self._handle(InstanceStarted(member.member_id, member.incarnation))
            self._send_directory(self._directory())
            self._send_limits(member)
            self._send(member, StatusPull())
        self._note_readiness()

    def _on_lost(self, address: str) -> None:
        member = self.roster.lost(address)
        if member is not None:
            log.warning("%s (incarnation %d) is gone", member.member_id, member.incarnation)
            self._announce_death(member, member.incarnation, "its process is gone")

    def _announce_death(self, member: Member, incarnation: int, why: str) -> None:
        self._silent_since_s.pop((member.member_id, incarnation), None)
        self.journal.member(member, incarnation, "died", "it was stopped" if self.stopping else why)
        if member.kind == "instance":
            self._handle(InstanceDied(member.member_id, incarnation))
            self.mover.instance_died(member.member_id)
            lost = InstanceLost(member.member_id, incarnation)
            self._to_frontends(lost)
            for other in self.roster.instances():  # those that it moves something to or from
                if other is not member:
                    self._send(other, lost)
        else:
            self._handle(FrontendDied(member.member_id))

    # -- what goes out -------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        for instruction in self.scheduler.handle(event, self.now_s()):
            self._carry_out(instruction)

    def _carry_out(self, instruction: Instruction) -> None:
        frontend = self.roster.members[instruction.frontend_id]
        match instruction:
            case Dispatch():
                answer: Message = Dispatched(
                    instruction.request_id,
                    instruction.instance_id,
                    instruction.incarnation,
                    instruction.seq,
                    best_candidates(instruction),
                )
                self.journal.dispatched(instruction, self.config.policy)
            case Reject():
                self.journal.rejected(instruction)
                answer = Refused(
                    instruction.request_id, str(instruction.code), instruction.retry_after_s
                )
        self._send(frontend, answer)

    def _directory(self) -> Directory:
        records = self.scheduler.instances
        return Directory(
            tuple(
                InstanceEntry(
                    member.member_id,
                    member.incarnation,
                    member.address,
                    member.info,
                    records[member.member_id].snapshot,
                )
                for member in self.roster.instances()
                if member.serving and member.info and member.member_id in records
            )
        )

    def _send_directory_if_due(self) -> None:
        """At once what is new; else only often enough to be heard: frontends take a controller
        that is silent for 1 s for dead."""
        directory = self._directory()
        is_news = directory != self._sent_directory
        if is_news or self.now_s() - self._sent_directory_s >= DIRECTORY_EVERY_S:
            self._send_directory(directory)

    def _send_directory(self, directory: Directory) -> None:
        now_s = self.now_s()
        self._sent_directory, self._sent_directory_s = directory, now_s
        for frontend in self.roster.frontends():
            if frontend.heard_s is not None and now_s - frontend.heard_s < SILENCE_S:
                self._send(frontend, directory)

    def _watch_progress(self) -> None:
        """Health by pull when the pushes stop (paper's successor, status tracking)."""
        now_s = self.now_s()
        for member in self.roster.instances():
            record = self.scheduler.instances.get(member.member_id)
            if not member.serving or record is None:
                continue
            refusal = record.refusal(now_s)
            if refusal is not None:
                self._send(member, StatusPull(), droppable=True)
            key = (member.member_id, member.incarnation)
            if refusal == "stalled" and key not in self._silent_since_s:
                self._silent_since_s[key] = record.last_report_s
                self.journal.stalled(member, True, now_s - record.last_report_s)
            elif refusal is None and key in self._silent_since_s:
                silence_s = record.last_report_s - self._silent_since_s.pop(key)
                self.journal.stalled(member, False, silence_s)

    def _send_limits(self, member: Member) -> None:
        limits = self.limits
        self._send(member, MoveLimitsSet(limits.max_moves, limits.max_bytes_per_s))

    def _to_frontends(self, message: Message) -> None:
        for frontend in self.roster.frontends():
            self._send(frontend, message)

    def _send(self, member: Member, message: Message, *, droppable: bool = False) -> None:
        if member.alive:
            self._mailbox.send(member.address, encode(message), droppable=droppable)
