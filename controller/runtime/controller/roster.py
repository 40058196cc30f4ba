"""The controller's table of the cluster's members and their incarnations.

It is pure: Hellos and losses go in, changes come out. Rules:
- a new process (its nonce is new) is a new incarnation, one higher than the last;
- a process that comes back after its connection was lost, or after another process took its
  place, is fenced: its old incarnation stays dead, it gets a new one and drops what it ran;
- a controller that starts afresh adopts the incarnations that its members name, but none that a
  controller before it took for dead or gave a successor; new ones go on from the last one given.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from controller.api.text.starts import LAUNCHING
from controller.core.instance_ref import InstanceRef
from controller.ports.incarnation_store import LastIncarnation
from controller.runtime.messages.members import EngineInfo, Hello, MemberKind, Phase, Welcome

NO_INCARNATION = LastIncarnation(0, alive=False)


@dataclass(slots=True)
class Member:
    """`said`: its last Hello, in which the figures of its process are. What stands here beside it
    is the controller's."""

    kind: MemberKind
    member_id: str
    said: Hello
    incarnation: int = 0
    nonce: str = ""
    alive: bool = False
    phase: Phase = "starting"
    detail: str = LAUNCHING
    num_live_reqs: int = 0
    num_restarts: int = 0
    heard_s: float | None = None
    fenced: bool = False
    """Its process was taken for dead while it may live, and its engine has not reported since. Its
    loop may say Hello all the while."""

    @classmethod
    def expected(cls, kind: MemberKind, member_id: str) -> Self:
        """One that has said nothing yet."""
        return cls(kind, member_id, Hello(kind, member_id, "", 0, "", "", 0, "starting"))

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
        self.members.setdefault(member_id, Member.expected(kind, member_id))

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
        if member.nonce != hello.nonce:
            member.fenced = False
            died = member.incarnation if member.alive else None
            member.num_restarts += member.nonce != ""
            member.incarnation = self._next_incarnation(member, hello)
            fenced = hello.incarnation not in (0, member.incarnation)
            welcome = Welcome(hello.nonce, member.incarnation, fenced)
        elif not member.alive:
            member.incarnation += 1
            welcome = Welcome(hello.nonce, member.incarnation, fenced=True)
        elif member.incarnation != hello.incarnation or hello.asks:  # or it is still under way
            welcome = Welcome(hello.nonce, member.incarnation)
        member.nonce, member.alive, member.heard_s = hello.nonce, True, now_s
        member.said, member.phase, member.num_live_reqs = hello, hello.phase, hello.num_live_reqs
        if not member.fenced:
            member.detail = hello.detail
        began = member.serving and was_serving != (member.incarnation, True)
        failed = member.phase == "failed" and not had_failed
        return RosterChange(member, welcome, died, began, failed)

    def reported(self, member: Member) -> None:
        """Its engine makes progress."""
        if member.fenced:
            member.fenced, member.detail = False, ""

    def lost(self, address: str) -> Member | None:
        """The process behind `address` is gone; None if no live member was there."""
        for member in self.members.values():
            if member.alive and member.address == address:
                member.alive = member.fenced = False
                member.num_live_reqs = 0
                member.detail = "its process is gone"
                return member
        return None

    def fence(self, member_id: str, why: str) -> Member:
        """Takes a live member for dead. If its process says Hello again, that is a new incarnation,
        which drops what it ran."""
        member = self.members[member_id]
        member.alive, member.fenced = False, True
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

    def _next_incarnation(self, member: Member, hello: Hello) -> int:
        if member.incarnation:
            return member.incarnation + 1
        last = self.before.get(member.member_id, NO_INCARNATION)
        is_last = hello.incarnation == last.incarnation and last.alive
        if hello.incarnation and (is_last or hello.incarnation > last.incarnation):
            return hello.incarnation  # it was here before this controller
        return last.incarnation + 1
