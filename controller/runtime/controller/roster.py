"""The controller's table of the cluster's members, by what their Hellos say. Which process of a
member is which incarnation, and which are dead, `core/fleet/incarnations.py` decides.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from controller.api.text.starts import LAUNCHING
from controller.core.fleet import incarnations
from controller.core.fleet.incarnations import (
    NO_INCARNATION,
    Died,
    Greet,
    Incarnations,
    LastIncarnation,
)
from controller.core.instance_ref import InstanceRef
from controller.runtime.messages.members import EngineInfo, Hello, MemberKind, Phase, Welcome


@dataclass(slots=True)
class Member:
    """`said`: its last Hello, in which the figures of its process are. What stands here beside it
    is the controller's."""

    kind: MemberKind
    member_id: str
    said: Hello
    process: Incarnations
    phase: Phase = "starting"
    detail: str = LAUNCHING
    num_live_reqs: int = 0
    heard_s: float | None = None

    @classmethod
    def expected(cls, kind: MemberKind, member_id: str, before: LastIncarnation) -> Self:
        """One that has said nothing yet."""
        said = Hello(kind, member_id, "", 0, "", "", 0, "starting")
        return cls(kind, member_id, said, Incarnations(before))

    @property
    def incarnation(self) -> int:
        return self.process.incarnation

    @property
    def nonce(self) -> str:
        return self.process.nonce

    @property
    def alive(self) -> bool:
        return self.process.alive

    @property
    def fenced(self) -> bool:
        """Whether its process was taken for dead while it may live, and its engine has not reported
        since. Its loop may say Hello all the while."""
        return self.process.fenced

    @property
    def num_restarts(self) -> int:
        return self.process.num_restarts

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
    """What a Hello changed. `died`: the incarnation that it replaced, if that was still alive."""

    member: Member
    welcome: Welcome | None = None
    died: int | None = None
    began_serving: bool = False
    failed: bool = False
    """The member says for the first time that it cannot start."""


@dataclass(slots=True)
class Roster:
    """`before`: what earlier controllers of this cluster gave, by member."""

    members: dict[str, Member] = field(default_factory=dict)
    before: Mapping[str, LastIncarnation] = field(default_factory=dict)

    def expect(self, kind: MemberKind, member_id: str) -> None:
        """A process of this id is being launched."""
        before = self.before.get(member_id, NO_INCARNATION)
        self.members.setdefault(member_id, Member.expected(kind, member_id, before))

    def forget(self, member_id: str) -> Member | None:
        """The member was ended for good: it is not expected any more, and its Hellos are a
        stranger's."""
        return self.members.pop(member_id, None)

    def instances(self) -> list[Member]:
        return [m for m in self.members.values() if m.kind == "instance"]

    def frontends(self) -> list[Member]:
        return [m for m in self.members.values() if m.kind == "frontend"]

    def hello(self, hello: Hello, now_s: float) -> RosterChange | None:
        """None for a process that was not launched here."""
        member = self.members.get(hello.member_id)
        if member is None or member.kind != hello.kind:
            return None
        was_serving = (member.incarnation, member.serving)
        had_failed = member.phase == "failed" and member.nonce == hello.nonce
        died, welcome = None, None
        said = incarnations.Hello(hello.nonce, hello.incarnation, hello.asks)
        for instruction in member.process.handle(said):
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
        """Its engine makes progress."""
        if member.fenced:
            member.process.handle(incarnations.Reported())
            member.detail = ""

    def lost(self, address: str) -> Member | None:
        """The process behind `address` is gone; None if no live member was there."""
        for member in self.members.values():
            if member.alive and member.address == address:
                member.process.handle(incarnations.Gone())
                member.num_live_reqs = 0
                member.detail = "its process is gone"
                return member
        return None

    def fence(self, member_id: str, why: str) -> Member:
        """Takes a live member for dead. If its process says Hello again, that is a new incarnation,
        which drops what it ran."""
        member = self.members[member_id]
        member.process.handle(incarnations.TakenForDead())
        member.num_live_reqs = 0
        member.detail = why
        return member

    def lost_with(self, member: Member) -> list[Member]:
        """All instances of the node of one that is gone, if they are gone too and the cluster has
        other nodes; else none. Of a node with a single instance nobody knows."""
        there = [each for each in self.instances() if each.node == member.node]
        elsewhere = any(each.node not in ("", member.node) for each in self.instances())
        gone = elsewhere and len(there) > 1 and not any(each.alive for each in there)
        return there if gone else []
