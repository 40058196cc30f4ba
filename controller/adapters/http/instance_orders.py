"""The controller's half of drain, undrain, restart, evacuate and scale."""

import time
from collections.abc import Sequence
from dataclasses import replace

from controller.adapters.http.errors import ApiError, no_such_instance
from controller.adapters.http.operation_reports import (
    SteerReports,
    as_drain,
    deadline_of,
    differs,
    restart_differs,
)
from controller.adapters.http.operator_log import Deed, Operation
from controller.adapters.http.perform import Handler, Operated, as_api_errors
from controller.adapters.http.views.launcher import CANNOT_RESTART, refuse_without_launcher
from controller.api.operations.on_cluster import Scale
from controller.api.operations.on_instances import Drain, Evacuate, Restart, Undrain, until
from controller.api.operations.order import CLUSTER, Order, Wanted
from controller.api.wire.operations import (
    DrainReport,
    DrainRequest,
    EvacuateRequest,
    RestartRequest,
    ScaleReport,
    ScaleRequest,
    UndrainRequest,
)
from controller.core.operations.cluster_spec import DrainOrder


class _OnInstance(Handler[Wanted, DrainReport]):
    """`changes`: whether the order changes something."""

    changes = True

    def __init__(self, operated: Operated, order: Order[Wanted, DrainReport]) -> None:
        super().__init__(operated, order)
        self.reports = SteerReports(operated.controller)
        self.instance_id = order.target

    @property
    def drain(self) -> DrainOrder | None:
        """The drain of the instance that goes on."""
        return self.controller.keeper.spec.drains.get(self.instance_id)

    async def look(self) -> None:
        self.check()
        self.revision = self.controller.keeper.spec.revision

    def check_instance(self, if_revision: int | None) -> None:
        self.check_still_there(self.instance_id)
        self.operated.check_revision(if_revision)

    def check_still_there(self, instance_id: str) -> None:
        member = self.controller.roster.members.get(instance_id)
        if member is None or member.kind != "instance":
            raise no_such_instance(instance_id)

    def deeds(self) -> Sequence[Deed]:
        return super().deeds() if self.changes else ()

    def begin(self, order: DrainOrder, operation: Operation, *, can_undo: bool = True) -> None:
        """Begins the drain, or changes the one that goes on."""
        if can_undo and self.drain is None:
            operation.undo = self.undone_by()
        self.controller.drains.begin([order])
        self.revision = self.controller.keeper.spec.revision

    async def report(self) -> DrainReport:
        report = await self.reports.of(self.instance_id, self.revision)
        return report.model_copy(update={"changes": self.changes})


class DrainHandler(_OnInstance[DrainRequest]):
    row = Drain

    async def look(self) -> None:
        await super().look()
        self.changes = differs(self.drain, self.wanted)

    def check(self) -> None:
        """Checks the other drains of the same command too, as it begins all of them or none."""
        wanted = self.wanted
        self.check_instance(wanted.if_revision)
        together = list(dict.fromkeys((self.instance_id, *wanted.with_ids)))
        for each in together:
            self.check_still_there(each)
        if wanted.force or set(together) <= set(self.controller.keeper.spec.drains):
            return
        with as_api_errors():
            self.controller.drains.check(together)

    async def plan(self) -> DrainReport:
        return await self.reports.planned(self.instance_id, self.wanted, self.wanted.with_ids)

    async def carry_out(self, operation: Operation) -> None:
        self.begin(_order(self.instance_id, self.wanted, operation), operation)


class RestartHandler(_OnInstance[RestartRequest]):
    row = Restart

    async def look(self) -> None:
        await super().look()
        self.changes = restart_differs(self.drain, self.wanted)
        member = self.controller.roster.members[self.instance_id]
        self.nonce = member.nonce
        self.process = {"incarnation": member.incarnation, "pid": member.pid}

    def check(self) -> None:
        wanted, instance_id = self.wanted, self.instance_id
        self.check_instance(wanted.if_revision)
        refuse_without_launcher(self.controller.launcher_loss, CANNOT_RESTART)
        member = self.controller.roster.members[instance_id]
        if not member.nonce:
            raise ApiError(
                409, "not_started", f"{instance_id} has not started yet", "llumctl status"
            )
        drain = self.drain
        if drain is not None and drain.removes:
            raise ApiError(
                409,
                "leaving",
                f"{instance_id} is to be removed once it is empty",
                f"llumctl undrain {instance_id}",
            )
        if member.serving and not (wanted.force or wanted.now or drain is not None):
            with as_api_errors():
                self.controller.drains.check([instance_id], "restart {} --now")

    async def plan(self) -> DrainReport:
        return await self.reports.planned_restart(self.instance_id, self.wanted)

    async def carry_out(self, operation: Operation) -> None:
        """Restarts the process that was there when the order came."""
        order = _order(self.instance_id, as_drain(self.wanted), operation)
        order = replace(order, restarts=self.nonce, at_once=self.wanted.now)
        self.begin(order, operation, can_undo=not self.wanted.now)

    async def report(self) -> DrainReport:
        return (await super().report()).model_copy(update=self.process)


class EvacuateHandler(_OnInstance[EvacuateRequest]):
    """An evacuation that goes on gets another deadline by another call."""

    row = Evacuate

    def check(self) -> None:
        self.check_instance(self.wanted.if_revision)
        if not (self.wanted.force or self.drain is not None):
            with as_api_errors():
                self.controller.drains.check([self.instance_id], "evacuate {} --force")

    async def plan(self) -> DrainReport:
        return await self.reports.planned_evacuation(self.instance_id, self.wanted)

    async def carry_out(self, operation: Operation) -> None:
        drain = DrainRequest(deadline_s=self.wanted.within_s, reason=self.wanted.reason)
        order = _order(self.instance_id, drain, operation)
        self.begin(replace(order, removes=True, evacuates=True), operation)


class UndrainHandler(_OnInstance[UndrainRequest]):
    row = Undrain

    def check(self) -> None:
        self.check_instance(self.wanted.if_revision)
        if self.drain is None:
            raise ApiError(
                409, "not_draining", f"{self.instance_id} is not being drained", "llumctl status"
            )

    async def plan(self) -> DrainReport:
        return (await self.report()).model_copy(update={"dry_run": True})

    async def carry_out(self, operation: Operation) -> None:
        reason, drain = self.wanted.reason, self.drain
        operation.undo = self.undone_by()
        why_ended = f"undrained: {reason}" if reason else "undrained"
        self.controller.drains.end(self.instance_id, why_ended, operation.actor)
        if drain is not None and drain.removes:
            self.controller.autoscaling.hold_planned(operation.cause_id, operation.actor)
        self.revision = self.controller.keeper.spec.revision


class ScaleHandler(Handler[ScaleRequest, ScaleReport]):
    row = Scale

    def __init__(self, operated: Operated, order: Order[ScaleRequest, ScaleReport]) -> None:
        super().__init__(operated, order)
        self.reports = SteerReports(operated.controller)
        self.added: Sequence[str] = ()

    async def look(self) -> None:
        """Plans without a look at the revision if nothing is left to change: an earlier call, whose
        answer got lost, may have changed it."""
        self.operated.check_running()
        wanted, scaling = self.wanted, self.controller.scaling
        target = wanted.target
        if target is None:
            target = scaling.num_planned + (wanted.change or 0)
        if target != scaling.num_planned:
            self.operated.check_revision(wanted.if_revision)
        with as_api_errors():
            self.scaling = scaling.plan(target, force=wanted.force, agreed=wanted.draining)
        self.holds = self.controller.autoscaling.would_hold(self.scaling.target)
        if self.holds and not self.scaling.changes and not wanted.dry_run:
            self.operated.check_revision(wanted.if_revision)
        self.revision = self.controller.keeper.spec.revision

    def check(self) -> None:
        """Whether this very plan, which the audit log names, can be carried out."""
        self.operated.check_revision(self.wanted.if_revision)
        with as_api_errors():
            self.controller.scaling.check_still(self.scaling, force=self.wanted.force)

    async def plan(self) -> ScaleReport:
        return await self.reports.planned_scale(self.scaling, self.wanted)

    def deeds(self) -> Sequence[Deed]:
        """One for the scaling, one for what it holds, and one for each instance that is removed or
        kept after all."""
        plan = self.scaling
        if not (plan.changes or self.holds):
            return ()
        deeds = [(f"scale {plan.previous} to {plan.target}", CLUSTER)]
        deeds += [(f"hold auto-scaling at {plan.target}", CLUSTER)] if self.holds else []
        deeds += [(f"undrain {each}", each) for each in plan.undrained]
        how = until(self.wanted.deadline_s, self.wanted.on_deadline)
        deeds += [(f"remove {each} once drained{how}", each) for each in plan.drained]
        return deeds

    async def carry_out(self, operation: Operation) -> None:
        plan, autoscaling = self.scaling, self.controller.autoscaling
        if plan.changes:
            operation.undo = self.undone_by(
                {"instances": plan.previous}, {"instances": plan.target}
            )
        hold = autoscaling.hold(operation.actor, plan.target)
        order = _order("", self.wanted, operation)
        self.added = self.controller.scaling.carry_out(plan, order, hold)
        if hold is not None:
            autoscaling.tell_held(operation.cause_id, hold)
        self.revision = self.controller.keeper.spec.revision

    async def report(self) -> ScaleReport:
        plan = self.scaling
        going = await self.reports.several(plan.drained, self.revision)
        return self.reports.scaled(plan, self.revision, self.added, going)


HANDLERS = (DrainHandler, UndrainHandler, RestartHandler, EvacuateHandler, ScaleHandler)


def _order(
    instance_id: str, wanted: DrainRequest | ScaleRequest, operation: Operation
) -> DrainOrder:
    """The order's id is the operation's cause id, so the drain's events have that cause."""
    return DrainOrder(
        drain_id=operation.cause_id,
        instance_id=instance_id,
        began_s=time.time(),
        deadline_s=deadline_of(wanted),
        on_deadline=wanted.on_deadline,
        actor=operation.actor,
        reason=wanted.reason,
    )
