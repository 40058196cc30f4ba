"""How members join, die, are fenced and leave, and what the rest of the cluster is told of it."""

import logging
from typing import Protocol

from msgspec.structs import replace

from controller.core.fleet.incarnations import LastIncarnation
from controller.core.operations.cluster_spec import ExitReason, why_emptied
from controller.core.replay.replay_log import ReplayLog
from controller.core.scheduler_events import (
    FrontendDied,
    InstanceDied,
    InstanceRemoved,
    InstanceStarted,
)
from controller.ports.incarnation_store import IncarnationStore
from controller.runtime.controller.fleet_watch import FleetWatch
from controller.runtime.controller.member_config import config_messages
from controller.runtime.controller.operations.drain_runner import Drains
from controller.runtime.controller.operations.operated_cluster import OperatedCluster
from controller.runtime.controller.roster import Member, RosterChange
from controller.runtime.controller.traffic import Traffic
from controller.runtime.messages.members import Hello, InstanceLost, StatusPull, Welcome

log = logging.getLogger(__name__)


class JoinedCluster(OperatedCluster, Protocol):
    """The part of the controller that members' coming and going concerns."""

    replays: ReplayLog
    drains: Drains
    fleet: FleetWatch
    traffic: Traffic
    incarnations: IncarnationStore | None
    """With None, incarnations are counted as long as this process lives."""

    @property
    def stopping(self) -> bool: ...


class MemberEvents:
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
