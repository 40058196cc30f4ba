"""How the controller carries out drain, undrain, restart, evacuate and all marks, such as a cordon;
and how it reports drains."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

from controller.adapters.http.calls import no_such_instance, shown
from controller.adapters.http.cluster_view import rounded
from controller.adapters.http.perform import Deed, Handler, Operated, Operation, as_api_errors
from controller.api.operations import on_instances
from controller.api.operations.on_cluster import ScaleReport, ScaleRequest
from controller.api.operations.on_instances import (
    MARKS,
    REPLAYS,
    CannotMove,
    DrainReport,
    DrainRequest,
    EvacuateRequest,
    Marking,
    MarkReport,
    PlannedDeparture,
    RestartRequest,
    UndrainRequest,
)
from controller.api.operations.order import Order, Report, Wanted
from controller.api.operations.table import Undo
from controller.core.emptying.claims import Claim, Claims, Drain, Evacuate, Remove, Restart, claimed
from controller.core.emptying.drains import DrainProgress, DrainState
from controller.core.emptying.forecast import TOO_BUSY, Departure, estimate_s
from controller.core.emptying.relief import NO_DESTINATION, Link, evacuation
from controller.core.fleet.cluster_spec import (
    Mark,
    OrderRefusal,
    ScalePlan,
    emptying_refusal,
    mark_refusal,
    restart_refusal,
    undrain_refusal,
)
from controller.core.load.closed import Closed
from controller.core.migration.move_records import measured_pace
from controller.core.migration.refusals import MoveRefusal, ReliefRefusal, why
from controller.runtime.controller.cluster import ControllerProcess
from controller.runtime.controller.operations.drain_runner import Forecast
from controller.runtime.controller.operations.operated_cluster import refuse_instances
from controller.runtime.controller.queries import Found


class _OnInstance(Handler[Wanted, Report]):
    """The common part of orders about one instance. `changes`: whether the order changes
    something."""

    changes = True

    def __init__(self, operated: Operated, order: Order[Wanted, Report]) -> None:
        super().__init__(operated, order)
        self.instance_id = order.target

    async def look(self) -> None:
        self.check()
        self.revision = self.controller.keeper.revision

    def check_instance(self, if_revision: int | None) -> None:
        self.check_still_there(self.instance_id)
        self.operated.check_revision(if_revision)

    def check_together(
        self, if_revision: int | None, with_ids: Sequence[str]
    ) -> list[tuple[ControllerProcess, list[str]]]:
        """Checks all instances of a command that acts on all of them or on none, which may be of
        several models. Returns their ids by the controllers of their models."""
        self.check_instance(if_revision)
        together = dict.fromkeys((self.instance_id, *with_ids))
        found = [(each, _of(each, together)) for each in self.controller.all]
        for unknown in together.keys() - {each for _, ids in found for each in ids}:
            raise no_such_instance(unknown)
        return [(each, ids) for each, ids in found if ids]

    def check_still_there(self, instance_id: str) -> None:
        if not _of(self.controller, (instance_id,)):
            raise no_such_instance(instance_id)

    def refuse(
        self,
        refusal: OrderRefusal | None,
        instance_ids: Sequence[str],
        despite: str = "drain {} --force",
        controller: ControllerProcess | None = None,
    ) -> None:
        """Raises ApiError if there is a refusal. `despite`: the command that carries the order out
        anyway. `controller`: that of the instances' model, if it is another one."""
        controller = controller or self.controller
        spec, model = controller.keeper.spec, controller.model
        if spec.attached_only:
            more = f"attach URL --model {model}" if model else "attach URL"
        else:
            more = f"scale {model}=+1" if model else "scale +1"
        with as_api_errors():
            cordoned = spec.marked(Closed.CORDONED)
            refuse_instances(refusal, instance_ids, cordoned, despite, more, model)

    def deeds(self) -> Sequence[Deed]:
        return super().deeds() if self.changes else ()


def _of(controller: ControllerProcess, instance_ids: Iterable[str]) -> list[str]:
    """Those of the instances that this controller has."""
    members = controller.roster.members
    return [each for each in instance_ids if each in members and members[each].kind == "instance"]


class EmptyingHandler(_OnInstance[Wanted, DrainReport]):
    def __init__(self, operated: Operated, order: Order[Wanted, DrainReport]) -> None:
        super().__init__(operated, order)
        self.reports = SteerReports(operated.controller)

    @property
    def claims(self) -> Claims | None:
        """The claims to the instance; None if it does not drain."""
        return self.controller.keeper.spec.drains.get(self.instance_id)

    def would_change(self, claim: Claim) -> bool:
        return self.claims is None or self.claims.would_change(claim)

    def begin(self, claim: Claim, operation: Operation, *, can_undo: bool = True) -> None:
        """Begins the drain, or changes the drain under way."""
        if can_undo and self.claims is None:
            operation.undo = self.undone_by()
        self.controller.drains.begin({self.instance_id: caused_by(operation, claim)})
        self.revision = self.controller.keeper.revision

    async def report(self) -> DrainReport:
        report = await self.reports.of(self.instance_id, self.revision)
        return report.model_copy(update={"changes": self.changes})


class DrainHandler(EmptyingHandler[DrainRequest]):
    row = on_instances.Drain

    async def look(self) -> None:
        await super().look()
        self.changes = self.would_change(drain_claim(self.wanted))

    def check(self) -> None:
        """Checks the order for this instance, and for the other instances of the same command,
        which begins all drains or none."""
        wanted = self.wanted
        for each, ids in self.check_together(wanted.if_revision, wanted.with_ids):
            facts = each.keeper.spec, ids, each.drains.schedulable_ids()
            self.refuse(emptying_refusal(*facts, force=wanted.force), ids, controller=each)

    async def plan(self) -> DrainReport:
        claim, others = drain_claim(self.wanted), _of(self.controller, self.wanted.with_ids)
        return await self.reports.planned(self.instance_id, claim, others)

    async def carry_out(self, operation: Operation) -> None:
        self.begin(drain_claim(self.wanted), operation)

    @classmethod
    def why_not(cls, operated: Operated, entry_id: str, undo: Undo, known: Found) -> str:
        spec = operated.controller.keeper.spec
        if undo.target not in spec.instance_ids:
            return f"{undo.target} is gone"
        return f"{undo.target} is being drained" if undo.target in spec.drains else ""


class RestartHandler(EmptyingHandler[RestartRequest]):
    row = on_instances.Restart

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
        """Restarts the process that ran when the order came."""
        claim = restart_claim(self.wanted, self.nonce)
        self.begin(claim, operation, can_undo=not self.wanted.now)

    async def report(self) -> DrainReport:
        return (await super().report()).model_copy(update=self.process)


class EvacuateHandler(EmptyingHandler[EvacuateRequest]):
    """Carries out an evacuation. A call during an evacuation sets a new deadline."""

    row = on_instances.Evacuate

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


class UndrainHandler(EmptyingHandler[UndrainRequest]):
    row = on_instances.Undrain

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
        self.revision = self.controller.keeper.revision

    @classmethod
    def why_not(cls, operated: Operated, entry_id: str, undo: Undo, known: Found) -> str:
        """Refuses if another drain has replaced the operation's drain."""
        drain = operated.controller.keeper.spec.drains.get(undo.target)
        same = drain is not None and drain.drain_id == entry_id
        return "" if same else f"{undo.target} is not being drained by it any more"


class _Marking(_OnInstance[Any, MarkReport]):
    """The common handler for all orders that mark instances or take such marks back."""

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
        """Checks the order for this instance, and for the other instances of the same command,
        which makes all marks or none."""
        wanted = self.wanted
        if not self.row.marks:
            self.check_instance(wanted.if_revision)
            return
        for each, ids in self.check_together(wanted.if_revision, wanted.with_ids):
            facts = ids, each.drains.schedulable_ids()
            refusal = mark_refusal(each.keeper.spec, self.reason, *facts, force=wanted.force)
            self.refuse(refusal, ids, f"{self.row.verb()} {{}} --force", each)

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
        self.revision = self.controller.keeper.revision

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
        """Refuses if another mark has replaced the operation's mark."""
        spec, words = operated.controller.keeper.spec, cls.row.mark.replace("_", " ")
        mark = spec.marked(Closed(cls.row.mark)).get(undo.target)
        if not cls.row.marks:
            same = mark is not None and mark.cause_id == entry_id
            return "" if same else f"{undo.target} is not {words} by it any more"
        if undo.target not in spec.instance_ids:
            return f"{undo.target} is gone"
        return f"{undo.target} is {words}" if mark is not None else ""


HANDLERS: tuple[type[Handler[Any, Any]], ...] = (
    *(DrainHandler, UndrainHandler, RestartHandler, EvacuateHandler),
    *(type(f"{row.__name__}Handler", (_Marking,), {"row": row}) for row in MARKS),
)


# -- drains as they are reported -------------------------------------------------------------------
# Drains and scalings as the control API reports them: drains and scalings that are under way,
# planned, or just begun.


class SteerReports:
    def __init__(self, controller: ControllerProcess) -> None:
        self._controller = controller

    async def several(
        self, instance_ids: Iterable[str], revision: int, *, lately: bool = False
    ) -> list[DrainReport]:
        """Reports on several drains. The reports are made at the same time, so that the wait for
        frontends that do not answer is spent only once."""
        reports = (self.of(each, revision, lately=lately) for each in instance_ids)
        return list(await asyncio.gather(*reports))

    async def of(self, instance_id: str, revision: int, *, lately: bool = False) -> DrainReport:
        """The drain as it is now. With `lately`, the list of requests that cannot move may be a
        second old. `revision`: the spec's revision, read before this report or after the caller's
        own change. A client whose next order names this revision is told if others have changed the
        spec since."""
        controller = self._controller
        progress = controller.drains.progress(instance_id)
        leaving = Forecast()
        if progress.state is DrainState.DRAINING:
            look = controller.drain_forecasts.lately if lately else controller.drain_forecasts.of
            leaving = await look(instance_id)
            progress = controller.drains.progress(instance_id)
        report = self._so_far(progress, leaving, revision)
        claims = progress.claims
        if claims is None:
            return report
        return report.model_copy(
            update={
                "drain_id": claims.drain_id,
                "estimate_s": self._estimate_s(progress, leaving),
                "actor": claims.strongest.actor,
                **_end(claims),
            }
        )

    def _so_far(self, progress: DrainProgress, leaving: Forecast, revision: int) -> DrainReport:
        member = self._controller.roster.members.get(progress.instance_id)
        gone = member is None
        return DrainReport(
            instance_id=progress.instance_id,
            state="removed" if gone else progress.state.value,
            safe_to_delete=gone or progress.safe_to_delete,
            num_requests_left=progress.num_left,
            num_moving=progress.num_moving,
            num_moved=progress.num_moved,
            cannot_move=tuple(_cannot_move(each) for each in leaving.departures if _stays(each)),
            silent=leaving.silent,
            revision=revision,
            num_cold_tokens=0
            if gone
            else self._controller.scheduler.num_cold_tokens(progress.instance_id),
            incarnation=None if member is None else member.incarnation,
            pid=None if member is None else member.pid,
        )

    async def planned(
        self, instance_id: str, claim: Claim, going: Sequence[str] = ()
    ) -> DrainReport:
        """The effect that this claim would have now. `going`: instances that are drained together
        with this one."""
        revision = self._controller.keeper.revision
        leaving = await self._controller.drain_forecasts.of(instance_id, going)
        progress = self._controller.drains.progress(instance_id)
        before = progress.claims
        return self._so_far(progress, leaving, revision).model_copy(
            update={
                "drain_id": before.drain_id if before else "",
                "estimate_s": self._estimate_s(progress, leaving),
                "plan": tuple(_planned_departure(each) for each in leaving.departures),
                "dry_run": True,
                "changes": before is None or before.would_change(claim),
                **_end(claimed(before, claim)),
            }
        )

    async def planned_restart(self, instance_id: str, claim: Restart) -> DrainReport:
        """The effect of a restart that would begin now."""
        report = await self.planned(instance_id, claim)
        if not claim.at_once:
            return report
        why = "it would be replayed elsewhere, or end with an error if it cannot be"
        replayed = {"to_instance_id": None, "code": REPLAYS, "why": why}
        plan = tuple(each.model_copy(update=replayed) for each in report.plan)
        return report.model_copy(update={"plan": plan})

    async def planned_evacuation(
        self, instance_id: str, claim: Evacuate, within_s: float
    ) -> DrainReport:
        """The effect of an evacuation that would begin now, at the pace of the last moves."""
        report = await self.planned(instance_id, claim)
        leaving = await self._controller.drain_forecasts.lately(instance_id)
        pace = measured_pace(move.record for move in self._controller.operator_moves.log.recent)
        # a link whose unit is blocks in place of bytes
        link = Link(1, None if pace is None else pace.blocks_per_s)
        requests = (each.request for each in leaving.departures if each.destination_id)
        late = evacuation(requests, link, within_s).too_late
        code = ReliefRefusal.TOO_LATE
        stays = {"to_instance_id": None, "code": str(code), "why": why(code)}
        plan = tuple(
            each.model_copy(update=stays) if each.request_id in late else each
            for each in report.plan
        )
        return report.model_copy(update={"plan": plan})

    async def planned_scale(self, plan: ScalePlan, wanted: ScaleRequest) -> ScaleReport:
        """Plans each drain as if it were the only one, except that no request moves to another
        instance that would be removed."""
        revision = self._controller.keeper.revision
        added = self._controller.scaling.added(plan)
        going = await asyncio.gather(
            *(self.planned(each, remove_claim(wanted), plan.drained) for each in plan.drained)
        )
        report = self.scaled(plan, revision, added, going)
        return report.model_copy(update={"dry_run": True})

    def scaled(
        self,
        plan: ScalePlan,
        revision: int,
        added: Sequence[str] = (),
        draining: Sequence[DrainReport] = (),
    ) -> ScaleReport:
        return ScaleReport(
            previous=plan.previous,
            target=plan.target,
            revision=revision,
            added=tuple(added),
            undrained=plan.undrained,
            draining=tuple(draining),
            holds_autoscale=self._controller.live.autoscale.config.mode != "off",
        )

    def _estimate_s(self, progress: DrainProgress, leaving: Forecast) -> float | None:
        controller = self._controller
        if leaving.silent:
            return None
        pace = measured_pace(move.record for move in controller.operator_moves.log.recent)
        max_moves = controller.live.rescheduling.max_moves
        return rounded(estimate_s(leaving.departures, pace, max_moves, progress.num_left), 2)


AnyClaim = TypeVar("AnyClaim", bound=Claim)


def caused_by(operation: Operation, claim: AnyClaim) -> AnyClaim:
    """The claim with the operation's cause and actor. If the claim begins a drain, the drain and
    its events have the operation's cause id."""
    return replace(claim, cause_id=operation.cause_id, actor=operation.actor)


def drain_claim(wanted: DrainRequest) -> Drain:
    """The claim to drain an instance. Like the claims that the functions below make, it has no
    cause and no actor; `caused_by` adds them."""
    return Drain("", time.time(), deadline_of(wanted), wanted.on_deadline, reason=wanted.reason)


def restart_claim(wanted: RestartRequest, nonce: str) -> Restart:
    """The claim to restart an instance. If the deadline passes, the restart is given up. `nonce`:
    the nonce of the process that is to be replaced."""
    deadline_s = deadline_of(wanted)
    on_deadline: Literal["keep", "abort"] = "keep" if deadline_s is None else "abort"
    return Restart(
        "",
        time.time(),
        deadline_s,
        on_deadline,
        reason=wanted.reason,
        nonce=nonce,
        at_once=wanted.now,
        warm_s=wanted.warm_s,
    )


def remove_claim(wanted: ScaleRequest) -> Remove:
    return Remove(
        "",
        time.time(),
        deadline_of(wanted),
        wanted.on_deadline,
        reason=wanted.reason,
        warm_s=wanted.warm_s,
    )


def evacuate_claim(wanted: EvacuateRequest) -> Evacuate:
    now_s = time.time()
    return Evacuate(
        "",
        now_s,
        deadline_s=now_s + wanted.within_s,
        reason=wanted.reason,
        warm_s=wanted.warm_s,
    )


def deadline_of(wanted: DrainRequest | RestartRequest | ScaleRequest) -> float | None:
    return None if wanted.deadline_s is None else time.time() + wanted.deadline_s


def _end(claims: Claims) -> dict[str, Any]:
    """The fields of a report that say what will happen to the instance, and when."""
    strongest = claims.strongest
    return {
        "deadline_s": strongest.deadline_s,
        "on_deadline": strongest.on_deadline,
        "reason": strongest.reason,
        "removes_instance": claims.goes,
        "evacuates_instance": claims.notice is not None,
        "restarts_instance": claims.restarts,
        "warm_s": strongest.warm_s,
    }


def _stays(departure: Departure) -> bool:
    return departure.destination_id is None and departure.code != MoveRefusal.MOVING


def _cannot_move(departure: Departure) -> CannotMove:
    request_id = departure.request.request_id
    return shown(CannotMove, departure, request_id=request_id, why=_why(departure))


def _planned_departure(departure: Departure) -> PlannedDeparture:
    return shown(
        PlannedDeparture,
        departure.request,
        client_id=departure.client_id,
        to_instance_id=departure.destination_id,
        code=departure.code,
        why=_why(departure),
    )


def _why(departure: Departure) -> str:
    """Why the request cannot move to any instance of the cluster."""
    if departure.destination_id is not None:
        return ""
    if departure.code == MoveRefusal.NO_BLOCKS:
        return f"no instance has {departure.request.num_blocks} free blocks"
    if departure.code == MoveRefusal.NO_SLOT:
        return "every instance with room for it has a full batch"
    if departure.code == NO_DESTINATION:
        return "no other instance may take requests"
    if departure.code == TOO_BUSY:
        return "no instance with room for it is free enough"
    return why(departure.code)
