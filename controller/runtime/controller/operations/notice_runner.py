"""Notices as the controller runs them: `core.emptying.notices` decides. This module tells that
machine what instances and the launcher say, and carries out its instructions."""

import logging
from collections.abc import Callable

from controller.api.errors import LlumctlError
from controller.core.emptying.notices import (
    Avoid,
    Event,
    InstanceSaid,
    Look,
    Looked,
    MakeClaim,
    Notices,
    TakeBack,
)
from controller.ports.processes import Launcher
from controller.runtime.controller.operations.drain_runner import DrainRunner
from controller.runtime.controller.operations.operated_cluster import OperatedCluster
from controller.runtime.controller.roster import Member

log = logging.getLogger(__name__)


class NoticeRunner:
    def __init__(
        self,
        cluster: OperatedCluster,
        drains: DrainRunner,
        launcher: Launcher,
        notice_s: float,
        wall_clock: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._drains = drains
        self._launcher = launcher
        self._wall_clock = wall_clock
        self.machine = Notices(notice_s)

    def said(self, member: Member) -> None:
        """Takes note of an instance's Hello."""
        said = member.said
        self._handle(
            InstanceSaid(
                member.member_id,
                member.incarnation,
                said.machine,
                said.leaves_in_s,
                said.machine_leaves_in_s,
                said.machine_leaves_why,
                self._wall_clock(),
            )
        )

    def tick(self) -> None:
        spec = self._cluster.keeper.spec
        ids, leaving = frozenset(spec.instance_ids), self._launcher.leaving()
        self._handle(Looked(ids, spec.drains, leaving, self._wall_clock()))

    def _handle(self, event: Event) -> None:
        for instruction in self.machine.handle(event):
            try:
                self._carry_out(instruction)
            except LlumctlError as error:  # the next look tries again
                log.error("a notice is not followed: %s", error)

    def _carry_out(self, instruction: Look | MakeClaim | TakeBack | Avoid) -> None:
        match instruction:
            case Look():
                self.tick()
            case MakeClaim(instance_id, claim):
                self._drains.begin({instance_id: claim})
            case TakeBack(instance_id, kind, why):
                spec = self._cluster.keeper.spec.without_claim(instance_id, kind)
                self._drains.carry_out(spec, why)
            case Avoid(machines):
                self._launcher.avoid(machines)
