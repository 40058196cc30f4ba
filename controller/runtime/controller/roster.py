"""The cluster's members: the controller's table of them, which is made from their Hellos, and what
the controller tells them: messages, the configuration that may change while the cluster runs, and,
for frontends, which instances serve.

`core/fleet/incarnations.py` decides which process of a member is which incarnation, and which
incarnations are dead.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from controller.core.admission.policies import SchedulerConfig
from controller.core.fleet import incarnations
from controller.core.fleet.cluster_spec import ClusterSpec
from controller.core.fleet.incarnations import (
    NO_INCARNATION,
    Died,
    Greet,
    Incarnations,
    LastIncarnation,
)
from controller.core.load.snapshot import InstanceRef, InstanceSnapshot
from controller.core.load.step_times import limit_of_steps
from controller.core.scheduler import GlobalScheduler
from controller.core.settings import AutoscaleConfig, ReschedulingConfig, StatusPush
from controller.ports.engine import STEP_PHASES, StepPhase
from controller.ports.processes import Mailbox
from controller.runtime.messages.codec import encode
from controller.runtime.messages.members import (
    LAUNCHING,
    AdaptersSet,
    Directory,
    EngineInfo,
    FrontendLimits,
    Hello,
    InstanceEntry,
    MemberKind,
    Message,
    Phase,
    StatusPushSet,
    StepTimeSet,
    Welcome,
)
from controller.runtime.messages.move_messages import MoveLimitsSet


@dataclass(frozen=True, slots=True)
class LiveAutoscale:
    """The settings of auto-scaling that may change while the cluster runs. `start_timeout_s`: an
    instance that does not serve after this time counts as failed."""

    config: AutoscaleConfig = field(
        default_factory=lambda: AutoscaleConfig(first_check_after_s=10.0)
    )
    start_timeout_s: float = 600.0


@dataclass(frozen=True, slots=True)
class LiveConfig:
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    rescheduling: ReschedulingConfig = field(default_factory=ReschedulingConfig)
    frontends: FrontendLimits = field(default_factory=FrontendLimits)
    autoscale: LiveAutoscale = field(default_factory=LiveAutoscale)
    max_events: int = 10_000


class Member(Incarnations):
    """A member: which incarnation its process is, and what the process says. `said`: its latest
    Hello, with the figures of its process. The other attributes are the controller's own."""

    __slots__ = ("detail", "heard_s", "kind", "member_id", "num_live_reqs", "phase", "said")

    def __init__(self, kind: MemberKind, member_id: str, before: LastIncarnation) -> None:
        """A member that has not said anything yet."""
        super().__init__(before)
        self.kind = kind
        self.member_id = member_id
        self.said = Hello("", kind, member_id, "", 0, "", "", 0, "starting")
        self.phase: Phase = "starting"
        self.detail = LAUNCHING
        self.num_live_reqs = 0
        self.heard_s: float | None = None

    @property
    def address(self) -> str:
        return self.said.address

    @property
    def node(self) -> str:
        return self.said.node

    @property
    def pid(self) -> int | None:
        return self.said.pid or None

    @property
    def info(self) -> EngineInfo | None:
        return self.said.info

    @property
    def ref(self) -> InstanceRef:
        return InstanceRef(self.member_id, self.incarnation, self.address)

    @property
    def serving(self) -> bool:
        return self.alive and self.phase == "active"


@dataclass(frozen=True, slots=True)
class RosterChange:
    """What a Hello changed. `died`: the incarnation that the process replaced, if that incarnation
    was still alive."""

    member: Member
    welcome: Welcome | None = None
    died: int | None = None
    began_serving: bool = False
    failed: bool = False
    """Whether the member reports for the first time that it cannot start."""


@dataclass(slots=True)
class Roster:
    """The members of the cluster. `before`: by member, the last incarnation that an earlier
    controller of this cluster gave."""

    members: dict[str, Member] = field(default_factory=dict)
    before: Mapping[str, LastIncarnation] = field(default_factory=dict)

    def expect(self, kind: MemberKind, member_id: str) -> None:
        """Expects the Hellos of a process of this id, which is being launched."""
        before = self.before.get(member_id, NO_INCARNATION)
        self.members.setdefault(member_id, Member(kind, member_id, before))

    def forget(self, member_id: str) -> Member | None:
        """Forgets a member that was ended for good. If its process says Hello again, it counts as a
        stranger."""
        return self.members.pop(member_id, None)

    def instances(self) -> list[Member]:
        return [m for m in self.members.values() if m.kind == "instance"]

    def frontends(self) -> list[Member]:
        return [m for m in self.members.values() if m.kind == "frontend"]

    def hello(self, hello: Hello, now_s: float) -> RosterChange | None:
        """Takes a Hello. Returns None for a process that this cluster did not launch."""
        member = self.members.get(hello.member_id)
        if member is None or member.kind != hello.kind:
            return None
        was_serving = (member.incarnation, member.serving)
        had_failed = member.phase == "failed" and member.nonce == hello.nonce
        died, welcome = None, None
        said = incarnations.Hello(hello.nonce, hello.incarnation, hello.asks)
        for instruction in member.handle(said):
            match instruction:
                case Died(incarnation):
                    died = incarnation
                case Greet(incarnation, drops):
                    welcome = Welcome(hello.nonce, incarnation, drops)
        member.heard_s = now_s
        member.said, member.phase, member.num_live_reqs = hello, hello.phase, hello.num_live_reqs
        if not member.fenced:
            member.detail = hello.detail
        began = member.serving and was_serving != (member.incarnation, True)
        failed = member.phase == "failed" and not had_failed
        return RosterChange(member, welcome, died, began, failed)

    def reported(self, member: Member) -> None:
        """Notes that the member's engine makes progress."""
        if member.fenced:
            member.handle(incarnations.Reported())
            member.detail = ""

    def lost(self, address: str) -> Member | None:
        """Notes that the process behind `address` is gone. Returns its member, or None if no live
        member had this address."""
        for member in self.members.values():
            if member.alive and member.address == address:
                member.handle(incarnations.Gone())
                member.num_live_reqs = 0
                member.detail = "its process is gone"
                return member
        return None

    def fence(self, member_id: str, why: str) -> Member:
        """Takes a live member for dead. If its process says Hello again, the process becomes a new
        incarnation, which drops what it ran before."""
        member = self.members[member_id]
        member.handle(incarnations.TakenForDead())
        member.num_live_reqs = 0
        member.detail = why
        return member

    def lost_with(self, member: Member) -> list[Member]:
        """All instances of the node of a member that is gone, if all of them are gone and the
        cluster has other nodes. Otherwise no instance. With a single instance on a node, its death
        says nothing about the node, so the result is empty."""
        there = [each for each in self.instances() if each.node == member.node]
        elsewhere = any(each.node not in ("", member.node) for each in self.instances())
        gone = elsewhere and len(there) > 1 and not any(each.alive for each in there)
        return there if gone else []


class MemberMail:
    """Sends the controller's messages to members that are alive. A message to another member is
    dropped."""

    def __init__(self, mailbox: Mailbox, roster: Roster) -> None:
        self._mailbox = mailbox
        self._roster = roster

    def send(self, member: Member, message: Message, *, droppable: bool = False) -> None:
        if member.alive:
            self._mailbox.send(member.address, encode(message), droppable=droppable)

    def send_to(self, member_id: str, message: Message, *, droppable: bool = False) -> None:
        """Sends to this member. Does nothing if the member does not exist any more."""
        member = self._roster.members.get(member_id)
        if member is not None:
            self.send(member, message, droppable=droppable)

    def send_to_all(self, members: Iterable[Member], message: Message) -> None:
        encoded = encode(message)
        for member in members:
            if member.alive:
                self._mailbox.send(member.address, encoded)

    def send_to_frontends(self, message: Message) -> None:
        self.send_to_all(self._roster.frontends(), message)


# -- LoRA adapters ---------------------------------------------------------------------------------


class AdapterNews:
    """Tells the members which LoRA adapters there are, when a member begins to serve and at each
    change, and which of them some instance has loaded. A frontend offers an adapter from then on
    until it is taken away, even if that instance dies, or this controller."""

    def __init__(self, mail: MemberMail, roster: Roster, spec: Callable[[], ClusterSpec]) -> None:
        self._mail = mail
        self._roster = roster
        self._spec = spec
        self._loaded: set[int] = set()
        """The numbers of the adapters that some instance has loaded."""

    def tell(self, member: Member) -> None:
        spec = self._spec()
        loaded = frozenset(self._loaded) if member.kind == "frontend" else frozenset[int]()
        self._mail.send(member, AdaptersSet(spec.adapters, spec.next_adapter, loaded))

    def changed(self) -> None:
        """The adapters of the spec have changed."""
        for member in self._roster.members.values():
            if member.serving:
                self.tell(member)

    def reported(self, snapshot: InstanceSnapshot) -> None:
        if not self._loaded.issuperset(snapshot.adapters):
            self._loaded.update(snapshot.adapters)
            for frontend in self._roster.frontends():
                if frontend.serving:
                    self.tell(frontend)


# -- the configuration -----------------------------------------------------------------------------


def config_messages(
    member: Member, config: LiveConfig, before: LiveConfig | None = None
) -> list[Message]:
    """The messages whose contents differ from the messages in `before`; all messages if `before` is
    None."""
    known = {} if before is None else {type(m): m for m in _all(member, before)}
    return [m for m in _all(member, config) if known.get(type(m)) != m]


def _all(member: Member, config: LiveConfig) -> tuple[Message, ...]:
    """All messages that configure this member, one of each type."""
    if member.kind == "instance":
        limits, settings = config.rescheduling, config.scheduler
        return (
            MoveLimitsSet(limits.max_moves, limits.max_bytes_per_s or None, limits.allow_inexact),
            StatusPushSet(settings.status_interval_s, _phases(settings.status_push)),
            StepTimeSet(
                limit_of_steps(
                    settings.step_time_s,
                    settings.levels,
                    late_binding=settings.holding is not None,
                )
            ),
        )
    return (config.frontends,)


def _phases(push: StatusPush) -> tuple[StepPhase, ...]:
    if push == "never":
        return ()
    return STEP_PHASES if push == "all" else (push,)


# -- which instances serve -------------------------------------------------------------------------

# A frontend takes the controller for dead after 1 s of silence.
DIRECTORY_EVERY_S = 0.4
# A frontend that was silent for this long gets no directories, because they would pile up.
SILENCE_S = 5.0


class Directories:
    """Tells the frontends which instances serve, at once when that changes, and from time to time
    what their loads are."""

    def __init__(
        self,
        roster: Roster,
        scheduler: GlobalScheduler,
        send: Callable[[Sequence[Member], Directory], None],
        now_s: Callable[[], float],
        epoch: str,
    ) -> None:
        self._epoch = epoch
        self._roster = roster
        self._scheduler = scheduler
        self._send = send
        self._now_s = now_s
        self._told: tuple[object, ...] | None = None
        self._told_s = float("-inf")

    def present(self) -> Directory:
        records, placement = self._scheduler.instances, self._scheduler.placement
        return Directory(
            tuple(
                InstanceEntry(
                    member.member_id,
                    member.incarnation,
                    member.address,
                    member.info,
                    records[member.member_id].snapshot,
                    not records[member.member_id].is_shut,
                )
                for member in self._roster.instances()
                if member.serving and member.info and member.member_id in records
            ),
            self._epoch,
            sum(frontend.serving for frontend in self._roster.frontends()),
            None if placement is None else placement.config.room_to_grow_tokens,
            any(record.schedulable for record in records.values()),
            self._scheduler.hold_timeout_s,
        )

    def tell(self) -> None:
        self._tell(self.present())

    def tick(self) -> None:
        """Tells all frontends if something has changed, or if the time for the next directory has
        come."""
        present = self.present()
        is_due = self._now_s() - self._told_s >= DIRECTORY_EVERY_S
        if is_due or _without_loads(present) != self._told:
            self._tell(present)

    def _tell(self, directory: Directory) -> None:
        now_s = self._now_s()
        self._told, self._told_s = _without_loads(directory), now_s
        listening = [
            frontend
            for frontend in self._roster.frontends()
            if frontend.heard_s is not None and now_s - frontend.heard_s < SILENCE_S
        ]
        self._send(listening, directory)


def _without_loads(directory: Directory) -> tuple[object, ...]:
    return (
        directory.takes_requests,
        directory.hold_timeout_s,
        *(
            (
                entry.instance_id,
                entry.incarnation,
                entry.address,
                entry.snapshot is not None and entry.takes_requests,
            )
            for entry in directory.instances
        ),
    )
