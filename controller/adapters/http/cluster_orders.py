"""How the controller carries out scaling, rolling restarts and changes of settings."""

import asyncio
import time
from collections.abc import Callable, Sequence

from controller.adapters.http.calls import ApiError, shown
from controller.adapters.http.cluster_view import rolling_report
from controller.adapters.http.instance_orders import SteerReports, caused_by, remove_claim
from controller.adapters.http.live_settings import PlannedChanges
from controller.adapters.http.perform import Deed, Handler, Operated, Operation, as_api_errors
from controller.api.errors import UsageError
from controller.api.operations.on_cluster import (
    DismissRolling,
    Rolling,
    RollingDismissRequest,
    RollingRequest,
    RollingStopRequest,
    Scale,
    ScaleReport,
    ScaleRequest,
    SetSettings,
    SettingChanges,
    SettingsPatch,
    StopRolling,
)
from controller.api.operations.on_instances import (
    DrainReport,
    until,
)
from controller.api.operations.order import Order, Wanted
from controller.api.operations.table import Undo
from controller.api.settings import PYTHON
from controller.api.text.quantities import setting_value
from controller.api.wire.status import PlannedRestart, RollingReport
from controller.core.emptying.claims import Drain
from controller.core.fleet.cluster_spec import RollingOrder
from controller.runtime.controller.queries import Found


class _OnRolling(Handler[Wanted, RollingReport]):
    changes = True

    def deeds(self) -> Sequence[Deed]:
        return super().deeds() if self.changes else ()

    async def plan(self) -> RollingReport:
        return (await self.report()).model_copy(update={"dry_run": True})

    async def report(self) -> RollingReport:
        return rolling_report(self.controller).model_copy(update={"changes": self.changes})


class RollingHandler(_OnRolling[RollingRequest]):
    row = Rolling

    async def prepare(self) -> None:
        """Checks the Python environment, which describes itself in up to a minute."""
        if (python := self.wanted.engine_args.get(PYTHON)) is not None:
            self.check()
            await _in_thread(self.operated.check_python, python)

    async def look(self) -> None:
        """Checks the order, and determines the arguments with which all instances will start."""
        self.check()
        spec, given = self.controller.keeper.spec, dict(self.wanted.engine_args)
        if given.get(PYTHON) == self.operated.settings.engine_python:
            given[PYTHON] = None  # nothing differs from the cluster's start then
        self.engine = spec.engine.changed(given, spec.next_generation)
        if given:
            check, after = self.operated.check_engine, self.engine.args
            await _in_thread(check, given, spec.engine.args, after)
            self.check()  # again, because the check of the engine arguments took time

    def check(self) -> None:
        self.operated.check_revision(self.wanted.if_revision)
        self.operated.check_launcher()
        with as_api_errors():
            self.controller.rolling.check(force=self.wanted.force)

    async def plan(self) -> RollingReport:
        controller, wanted = self.controller, self.wanted
        spec, turn = controller.keeper.spec, controller.rolling.turn()
        reports, drain = SteerReports(controller), Drain("", time.time())
        plans = await asyncio.gather(*(reports.planned(each, drain) for each in turn))
        return shown(
            RollingReport,
            wanted,
            left=turn,
            plan=tuple(_planned_restart(each) for each in plans),
            engine_args=dict(self.engine.args),
            changes_engine=any(spec.engine_of(each) != self.engine for each in turn),
            cold_start_s=controller.autoscaling.cold_start_s,
            dry_run=True,
            changes=True,
            revision=controller.keeper.revision,
        )

    async def carry_out(self, operation: Operation) -> None:
        wanted = self.wanted
        operation.undo = self.undone_by()
        self.controller.rolling.begin(
            RollingOrder(
                operation.cause_id,
                time.time(),
                (),
                at_once=wanted.at_once,
                deadline_s=wanted.deadline_s,
                start_timeout_s=wanted.start_timeout_s,
                warm_s=wanted.warm_s,
                force=wanted.force,
                actor=operation.actor,
                reason=wanted.reason,
                engine=self.engine,
            )
        )


async def _in_thread(check: Callable[..., None], *given: object) -> None:
    """Makes the check on another thread. Raises ApiError for what it refuses."""
    try:
        await asyncio.to_thread(check, *given)
    except UsageError as error:
        raise ApiError(400, "bad_setting", error.message, error.hint) from error


class StopRollingHandler(_OnRolling[RollingStopRequest]):
    row = StopRolling

    def check(self) -> None:
        self.operated.check_revision(self.wanted.if_revision)
        if not self.controller.rolling.goes:
            raise ApiError(409, "not_rolling", "no rolling restart goes on", "llumctl status")

    async def carry_out(self, operation: Operation) -> None:
        reason = self.wanted.reason
        why = f"stopped: {reason}" if reason else "stopped by an operator"
        self.controller.rolling.stop(why, operation.actor)

    @classmethod
    def why_not(cls, operated: Operated, entry_id: str, undo: Undo, known: Found) -> str:
        rolling = operated.controller.keeper.spec.rolling
        same = rolling is not None and rolling.goes and rolling.order_id == entry_id
        return "" if same else "that rolling restart is over"


class DismissRollingHandler(_OnRolling[RollingDismissRequest]):
    """Carries out a dismissal. If there is nothing to dismiss, the order changes nothing and does
    not fail."""

    row = DismissRolling

    async def look(self) -> None:
        self.check()
        order = self.controller.rolling.order
        if order is not None and order.goes:
            raise ApiError(409, "rolling", "the rolling restart goes on", "llumctl restart --stop")
        self.changes = order is not None and not order.dismissed

    def check(self) -> None:
        self.operated.check_revision(self.wanted.if_revision)

    async def carry_out(self, _: Operation) -> None:
        self.controller.rolling.dismiss()


class SetHandler(Handler[SettingsPatch, SettingChanges]):
    row = SetSettings

    async def look(self) -> None:
        self.planned: PlannedChanges = self.operated.settings.planned(self.wanted)
        self.answer = self.planned.answer

    async def plan(self) -> SettingChanges:
        return self.answer

    def deeds(self) -> Sequence[Deed]:
        """One action of the audit log for each setting whose value changes; before them, one more
        if the change releases auto-scaling."""
        release = [("release auto-scaling", self.whole)] if self.answer.releases_autoscale else []
        return release + [
            (
                f"set {each.key} = {setting_value(each.value)}, was {setting_value(each.previous)}",
                each.key,
            )
            for each in self.answer.changes
        ]

    def named_deeds(self) -> Sequence[Deed]:
        """Settings that all models share name no model."""
        return self.deeds() if self.planned.shared else super().named_deeds()

    async def carry_out(self, operation: Operation) -> None:
        self.answer = made = self.operated.settings.make(self.planned)
        if made.releases_autoscale:
            self.controller.autoscaling.tell_released(operation.cause_id, operation.actor)
        if made.changes:
            operation.undo = self.undone_by(
                {each.key: each.previous for each in made.changes},
                {each.key: each.value for each in made.changes},
            )
            if self.planned.shared:
                operation.undo = operation.undo.model_copy(update={"model": ""})

    async def report(self) -> SettingChanges:
        return self.answer

    @classmethod
    def why_not(cls, operated: Operated, entry_id: str, undo: Undo, known: Found) -> str:
        now = {each.key: each.value for each in operated.settings.listed().settings}
        for key, made in undo.made.items():
            if now.get(key) != made:
                return f"{key} is {setting_value(now.get(key))} by now"
        return ""


class ScaleHandler(Handler[ScaleRequest, ScaleReport]):
    row = Scale

    def __init__(self, operated: Operated, order: Order[ScaleRequest, ScaleReport]) -> None:
        super().__init__(operated, order)
        self.reports = SteerReports(operated.controller)
        self.added: Sequence[str] = ()

    async def look(self) -> None:
        """Makes the plan. The revision is not checked if the cluster already has the wanted size:
        an earlier call, whose answer got lost, may have changed the revision."""
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
        self.revision = self.controller.keeper.revision

    def check(self) -> None:
        """Checks that this very plan can still be carried out, because the audit log names it."""
        self.operated.check_revision(self.wanted.if_revision)
        with as_api_errors():
            self.controller.scaling.check_still(self.scaling, force=self.wanted.force)

    async def plan(self) -> ScaleReport:
        return await self.reports.planned_scale(self.scaling, self.wanted)

    def deeds(self) -> Sequence[Deed]:
        """One action for the scaling, one for auto-scaling if it is held, and one for each instance
        that is undrained or will be removed."""
        plan = self.scaling
        if not (plan.changes or self.holds):
            return ()
        deeds = [(f"scale {plan.previous} to {plan.target}", self.whole)]
        deeds += [(f"hold auto-scaling at {plan.target}", self.whole)] if self.holds else []
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
        claim = caused_by(operation, remove_claim(self.wanted))
        self.added = self.controller.scaling.carry_out(plan, claim, hold)
        if hold is not None:
            autoscaling.tell_held(operation.cause_id, hold)
        self.revision = self.controller.keeper.revision

    async def report(self) -> ScaleReport:
        plan = self.scaling
        going = await self.reports.several(plan.drained, self.revision)
        return self.reports.scaled(plan, self.revision, self.added, going)

    @classmethod
    def why_not(cls, operated: Operated, entry_id: str, undo: Undo, known: Found) -> str:
        planned = operated.controller.scaling.num_planned
        same = planned == undo.made["instances"]
        return "" if same else f"{planned} instances are planned by now"


HANDLERS = (ScaleHandler, SetHandler, RollingHandler, StopRollingHandler, DismissRollingHandler)


def _planned_restart(report: DrainReport) -> PlannedRestart:
    return PlannedRestart(
        instance_id=report.instance_id,
        num_requests=len(report.plan),
        num_blocks=sum(each.num_blocks for each in report.plan),
        num_cannot_move=len(report.cannot_move),
        estimate_s=report.estimate_s,
    )
