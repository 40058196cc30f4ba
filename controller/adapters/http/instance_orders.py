"""The controller's half of drain, undrain, restart, evacuate, scale, and of all marks, such as a
cordon.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from controller.adapters.http.answers import no_such_instance
from controller.adapters.http.drain_reports import (
    SteerReports,
    drain_claim,
    evacuate_claim,
    remove_claim,
    restart_claim,
)
from controller.adapters.http.perform import Deed, Handler, Operated, Operation, as_api_errors
from controller.api.operations.on_cluster import Scale, ScaleReport, ScaleRequest
from controller.api.operations.on_instances import (
    MARKS,
    Drain,
    DrainReport,
    DrainRequest,
    Evacuate,
    EvacuateRequest,
    Marking,
    MarkReport,
    Restart,
    RestartRequest,
    Undrain,
    UndrainRequest,
    until,
)
from controller.api.operations.order import CLUSTER, Order, Report, Wanted
from controller.api.operations.table import Undo
from controller.core.emptying.claims import Claim, Claims
from controller.core.fleet.cluster_spec import (
    Mark,
    OrderRefusal,
    emptying_refusal,
    mark_refusal,
    restart_refusal,
    undrain_refusal,
)
from controller.core.load.closed import Closed
from controller.runtime.controller.operations.operated_cluster import refuse_instances
from controller.runtime.controller.queries import Found


class _OnInstance(Handler[Wanted, Report]):
    """`changes`: whether the order changes something."""

    changes = True

    def __init__(self, operated: Operated, order: Order[Wanted, Report]) -> None:
        super().__init__(operated, order)
        self.instance_id = order.target

    async def look(self) -> None:
        self.check()
        self.revision = self.controller.keeper.spec.revision

    def check_instance(self, if_revision: int | None) -> None:
        self.check_still_there(self.instance_id)
        self.operated.check_revision(if_revision)

    def check_together(self, if_revision: int | None, with_ids: Sequence[str]) -> list[str]:
        """All instances of a command that is carried out for all of them or for none."""
        self.check_instance(if_revision)
        together = list(dict.fromkeys((self.instance_id, *with_ids)))
        for each in together:
            self.check_still_there(each)
        return together

    def check_still_there(self, instance_id: str) -> None:
        member = self.controller.roster.members.get(instance_id)
        if member is None or member.kind != "instance":
            raise no_such_instance(instance_id)

    def refuse(
        self,
        refusal: OrderRefusal | None,
        instance_ids: Sequence[str],
        despite: str = "drain {} --force",
    ) -> None:
        """Raises ApiError if there is one. `despite`: the command that does it all the same."""
        with as_api_errors():
            cordoned = self.controller.keeper.spec.marked(Closed.CORDONED)
            refuse_instances(refusal, instance_ids, cordoned, despite)

    def deeds(self) -> Sequence[Deed]:
        return super().deeds() if self.changes else ()


class _Emptying(_OnInstance[Wanted, DrainReport]):
    def __init__(self, operated: Operated, order: Order[Wanted, DrainReport]) -> None:
        super().__init__(operated, order)
        self.reports = SteerReports(operated.controller)

    @property
    def claims(self) -> Claims | None:
        """To the instance, while it drains."""
        return self.controller.keeper.spec.drains.get(self.instance_id)

    def would_change(self, claim: Claim) -> bool:
        return self.claims is None or self.claims.would_change(claim)

    def begin(self, claim: Claim, operation: Operation, *, can_undo: bool = True) -> None:
        """Begins the drain, or changes the one that goes on."""
        if can_undo and self.claims is None:
            operation.undo = self.undone_by()
        self.controller.drains.begin({self.instance_id: _by(operation, claim)})
        self.revision = self.controller.keeper.spec.revision

    async def report(self) -> DrainReport:
        report = await self.reports.of(self.instance_id, self.revision)
        return report.model_copy(update={"changes": self.changes})


class DrainHandler(_Emptying[DrainRequest]):
    row = Drain

    async def look(self) -> None:
        await super().look()
        self.changes = self.would_change(drain_claim(self.wanted))

    def check(self) -> None:
        """Checks the other drains of the same command too, as it begins all of them or none."""
        wanted = self.wanted
        together = self.check_together(wanted.if_revision, wanted.with_ids)
        facts = self.controller.keeper.spec, together, self.controller.drains.schedulable_ids()
        self.refuse(emptying_refusal(*facts, force=wanted.force), together)

    async def plan(self) -> DrainReport:
        claim, others = drain_claim(self.wanted), self.wanted.with_ids
        return await self.reports.planned(self.instance_id, claim, others)

    async def carry_out(self, operation: Operation) -> None:
        self.begin(drain_claim(self.wanted), operation)

    @classmethod
    def why_not(cls, operated: Operated, entry_id: str, undo: Undo, known: Found) -> str:
        spec = operated.controller.keeper.spec
        if undo.target not in spec.instance_ids:
            return f"{undo.target} is gone"
        return f"{undo.target} is being drained" if undo.target in spec.drains else ""


class RestartHandler(_Emptying[RestartRequest]):
    row = Restart

    async def look(self) -> None:
        await super().look()
        member = self.controller.roster.members[self.instance_id]
        self.nonce = member.nonce
        self.changes = self.would_change(restart_claim(self.wanted, self.nonce))
        self.process = {"incarnation": member.incarnation, "pid": member.pid}

    def check(self) -> None:
        wanted, instance_id = self.wanted, self.instance_id
        self.check_instance(wanted.if_revision)
        self.operated.check_launcher()
        member = self.controller.roster.members[instance_id]
        refusal = restart_refusal(
            self.controller.keeper.spec,
            instance_id,
            self.controller.drains.schedulable_ids(),
            started=bool(member.nonce),
            serving=member.serving,
            force=wanted.force or wanted.now,
        )
        self.refuse(refusal, [instance_id], "restart {} --now")

    async def plan(self) -> DrainReport:
        claim = restart_claim(self.wanted, self.nonce)
        return await self.reports.planned_restart(self.instance_id, claim)

    async def carry_out(self, operation: Operation) -> None:
        """Restarts the process that was there when the order came."""
        claim = restart_claim(self.wanted, self.nonce)
        self.begin(claim, operation, can_undo=not self.wanted.now)

    async def report(self) -> DrainReport:
        return (await super().report()).model_copy(update=self.process)


class EvacuateHandler(_Emptying[EvacuateRequest]):
    """An evacuation that goes on gets another deadline by another call."""

    row = Evacuate

    def check(self) -> None:
        self.check_instance(self.wanted.if_revision)
        going, schedulable = [self.instance_id], self.controller.drains.schedulable_ids()
        facts = self.controller.keeper.spec, going, schedulable
        refusal = emptying_refusal(*facts, force=self.wanted.force)
        self.refuse(refusal, going, "drain {} --remove --force")

    async def plan(self) -> DrainReport:
        claim, within_s = evacuate_claim(self.wanted), self.wanted.within_s
        return await self.reports.planned_evacuation(self.instance_id, claim, within_s)

    async def carry_out(self, operation: Operation) -> None:
        self.begin(evacuate_claim(self.wanted), operation)


class UndrainHandler(_Emptying[UndrainRequest]):
    row = Undrain

    def check(self) -> None:
        self.check_instance(self.wanted.if_revision)
        refusal = undrain_refusal(self.controller.keeper.spec, self.instance_id)
        self.refuse(refusal, [self.instance_id])

    async def plan(self) -> DrainReport:
        return (await self.report()).model_copy(update={"dry_run": True})

    async def carry_out(self, operation: Operation) -> None:
        reason, claims = self.wanted.reason, self.claims
        operation.undo = self.undone_by()
        why_ended = f"undrained: {reason}" if reason else "undrained"
        self.controller.drains.end(self.instance_id, why_ended, operation.actor)
        if claims is not None and claims.goes:
            self.controller.autoscaling.hold_planned(operation.cause_id, operation.actor)
        self.revision = self.controller.keeper.spec.revision

    @classmethod
    def why_not(cls, operated: Operated, entry_id: str, undo: Undo, known: Found) -> str:
        """Another drain may have taken the place of the operation's."""
        drain = operated.controller.keeper.spec.drains.get(undo.target)
        same = drain is not None and drain.drain_id == entry_id
        return "" if same else f"{undo.target} is not being drained by it any more"


class _Marking(_OnInstance[Any, MarkReport]):
    """Of a row that marks instances, or takes such marks back; it needs no other handler."""

    row: type[Marking[Any, Any]]

    @property
    def reason(self) -> Closed:
        return Closed(self.row.mark)

    @property
    def mark(self) -> Mark | None:
        return self.controller.keeper.spec.marked(self.reason).get(self.instance_id)

    async def look(self) -> None:
        await super().look()
        self.changes = (self.mark is None) == self.row.marks

    def check(self) -> None:
        """Checks the other marks of the same command too, as it makes all of them or none."""
        wanted = self.wanted
        if not self.row.marks:
            self.check_instance(wanted.if_revision)
            return
        together = self.check_together(wanted.if_revision, wanted.with_ids)
        facts = together, self.controller.drains.schedulable_ids()
        spec = self.controller.keeper.spec
        refusal = mark_refusal(spec, self.reason, *facts, force=wanted.force)
        self.refuse(refusal, together, f"{self.row.verb()} {{}} --force")

    async def plan(self) -> MarkReport:
        return self._reported(marked=self.row.marks, dry_run=True)

    async def carry_out(self, operation: Operation) -> None:
        spec = self.controller.keeper.spec
        if self.row.marks:
            mark = Mark(operation.cause_id, time.time(), operation.actor, self.wanted.reason)
            spec = spec.with_mark(self.reason, self.instance_id, mark)
        else:
            spec = spec.without_mark(self.reason, self.instance_id)
        operation.undo = self.undone_by()
        self.controller.keeper.change(spec)
        self.revision = spec.revision

    async def report(self) -> MarkReport:
        return self._reported(marked=self.mark is not None)

    def _reported(self, *, marked: bool, dry_run: bool = False) -> MarkReport:
        controller, mark = self.controller, self.mark
        record = controller.scheduler.instances.get(self.instance_id)
        has, num_requests = None if record is None else record.snapshot, 0
        if record is not None and has is not None:
            num_requests = has.num_running + has.num_queued + record.unreported.num_requests
        now = controller.openness.closed_by(self.instance_id, controller.now_s())
        reasons = set(now) - {self.reason} | ({self.reason} if marked else set())
        report: MarkReport = self.row.report(
            **{self.row.mark: marked},
            instance_id=self.instance_id,
            closed_by=tuple(each for each in Closed if each in reasons and each.stops_requests),
            num_requests=num_requests,
            dry_run=dry_run,
            revision=self.revision,
            reason="" if mark is None else mark.reason,
            actor="" if mark is None else mark.actor,
            changes=self.changes,
        )
        return report

    @classmethod
    def why_not(cls, operated: Operated, entry_id: str, undo: Undo, known: Found) -> str:
        """Another mark may have taken the place of the operation's."""
        spec, words = operated.controller.keeper.spec, cls.row.mark.replace("_", " ")
        mark = spec.marked(Closed(cls.row.mark)).get(undo.target)
        if not cls.row.marks:
            same = mark is not None and mark.cause_id == entry_id
            return "" if same else f"{undo.target} is not {words} by it any more"
        if undo.target not in spec.instance_ids:
            return f"{undo.target} is gone"
        return f"{undo.target} is {words}" if mark is not None else ""


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
        claim = _by(operation, remove_claim(self.wanted))
        self.added = self.controller.scaling.carry_out(plan, claim, hold)
        if hold is not None:
            autoscaling.tell_held(operation.cause_id, hold)
        self.revision = self.controller.keeper.spec.revision

    async def report(self) -> ScaleReport:
        plan = self.scaling
        going = await self.reports.several(plan.drained, self.revision)
        return self.reports.scaled(plan, self.revision, self.added, going)

    @classmethod
    def why_not(cls, operated: Operated, entry_id: str, undo: Undo, known: Found) -> str:
        planned = operated.controller.scaling.num_planned
        same = planned == undo.made["instances"]
        return "" if same else f"{planned} instances are planned by now"


HANDLERS: tuple[type[Handler[Any, Any]], ...] = (
    *(DrainHandler, UndrainHandler, RestartHandler, EvacuateHandler, ScaleHandler),
    *(type(f"{row.__name__}Handler", (_Marking,), {"row": row}) for row in MARKS),
)


AnyClaim = TypeVar("AnyClaim", bound=Claim)


def _by(operation: Operation, claim: AnyClaim) -> AnyClaim:
    """The operation's claim. A drain that it begins has its cause id, and so the drain's events."""
    return replace(claim, cause_id=operation.cause_id, actor=operation.actor)
