"""Rolling restarts on the control API: looked at, planned, begun or stopped."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from controller.adapters.http.answers import by_method, json_answer
from controller.adapters.http.errors import ApiError
from controller.adapters.http.operation_reports import SteerReports
from controller.adapters.http.operations import as_api_errors
from controller.adapters.http.steering import Steering
from controller.adapters.http.views.launcher import CANNOT_RESTART, refuse_without_launcher
from controller.adapters.http.views.rolling import rolling_report
from controller.api.errors import UsageError
from controller.api.text.engine_arguments import arguments
from controller.api.text.quantities import duration
from controller.api.wire.audit import Undo
from controller.api.wire.operations import DrainReport, DrainRequest
from controller.api.wire.rolling import (
    PlannedRestart,
    RollingDismissRequest,
    RollingReport,
    RollingRequest,
    RollingStopRequest,
)
from controller.core.operations.engine_change import EngineChange
from controller.core.operations.rolling import RollingOrder

Args = Mapping[str, Any]
EngineCheck = Callable[[Args, Args, Args], None]
"""Gets the engine arguments that an operator gives, all that differ from those of the cluster's
start, and all that will differ. Raises UsageError. It may take a while, on any thread."""


def allow_all(given: Args, before: Args, after: Args) -> None:
    """A check that refuses nothing."""


class RollingApi:
    """`check_engine` says which engine arguments may change."""

    def __init__(self, steering: Steering, check_engine: EngineCheck = allow_all) -> None:
        self._controller, self._log = steering.controller, steering.log
        self._changing, once = steering.changing, steering.once
        self._check_revision = steering.check_revision
        self._reports = SteerReports(steering.controller)
        self._check_engine = check_engine
        self.routes = [
            by_method("/v1/rolling-restart", GET=self._look, POST=once(self._begin)),
            Route("/v1/rolling-restart/stop", once(self._stop), methods=["POST"]),
            Route("/v1/rolling-restart/dismiss", once(self._dismiss), methods=["POST"]),
        ]

    async def _look(self, _request: Request) -> Response:
        return json_answer(rolling_report(self._controller))

    async def _begin(self, request: Request) -> Response:
        wanted = RollingRequest.model_validate_json(await request.body() or b"{}")
        controller = self._controller
        if wanted.dry_run:
            self._check(wanted)
            engine = await self._engine(wanted)
            return json_answer(await self._planned(wanted, engine))
        async with self._changing:
            self._check(wanted)
            engine = await self._engine(wanted)
            deed = (f"restart --rolling{_how(wanted)}", "the cluster")
            async with self._log.operation(request.scope, deed, reason=wanted.reason) as operation:
                self._check(wanted)  # again: writing the audit log took time
                operation.undo = Undo(kind="stop_rolling", previous={}, made={})
                controller.rolling.begin(
                    RollingOrder(
                        operation.cause_id,
                        time.time(),
                        (),
                        at_once=wanted.at_once,
                        deadline_s=wanted.deadline_s,
                        start_timeout_s=wanted.start_timeout_s,
                        force=wanted.force,
                        actor=operation.actor,
                        reason=wanted.reason,
                        engine=engine,
                    )
                )
        return json_answer(rolling_report(controller).model_copy(update={"changes": True}))

    async def _stop(self, request: Request) -> Response:
        wanted = RollingStopRequest.model_validate_json(await request.body() or b"{}")
        rolling = self._controller.rolling
        if wanted.dry_run:
            self._check_goes(wanted)
            known = {"dry_run": True, "changes": True}
            return json_answer(rolling_report(self._controller).model_copy(update=known))
        async with self._changing:
            self._check_goes(wanted)
            deed = ("restart --stop", "the cluster")
            async with self._log.operation(request.scope, deed, reason=wanted.reason) as operation:
                self._check_goes(wanted)  # again: writing the audit log took time
                why = f"stopped: {wanted.reason}" if wanted.reason else "stopped by an operator"
                rolling.stop(why, operation.actor)
        return json_answer(rolling_report(self._controller).model_copy(update={"changes": True}))

    async def _dismiss(self, request: Request) -> Response:
        """Nothing changes if there is nothing to dismiss."""
        wanted = RollingDismissRequest.model_validate_json(await request.body() or b"{}")
        rolling = self._controller.rolling
        async with self._changing:
            self._check_revision(wanted.if_revision)
            order = rolling.order
            if order is not None and order.goes:
                raise ApiError(
                    409, "rolling", "the rolling restart goes on", "llumctl restart --stop"
                )
            changes = order is not None and not order.dismissed
            if changes and not wanted.dry_run:
                deed = ("restart --dismiss", "the cluster")
                async with self._log.operation(request.scope, deed, reason=wanted.reason):
                    self._check_revision(wanted.if_revision)  # again: the audit log took time
                    rolling.dismiss()
        known = {"changes": changes, "dry_run": wanted.dry_run}
        return json_answer(rolling_report(self._controller).model_copy(update=known))

    # -- inside --------------------------------------------------------------------------

    def _check(self, wanted: RollingRequest) -> None:
        self._check_revision(wanted.if_revision)
        refuse_without_launcher(self._controller.launcher_loss, CANNOT_RESTART)
        with as_api_errors():
            self._controller.rolling.check(force=wanted.force)

    async def _engine(self, wanted: RollingRequest) -> EngineChange:
        """The arguments with which all are to start. Raises ApiError."""
        spec, given = self._controller.keeper.spec, wanted.engine_args
        after = spec.engine.changed(given, spec.next_generation)
        if given:
            try:
                await asyncio.to_thread(self._check_engine, given, spec.engine.args, after.args)
            except UsageError as error:
                raise ApiError(400, "bad_setting", error.message, error.hint) from error
            self._check(wanted)  # again: that took time
        return after

    def _check_goes(self, wanted: RollingStopRequest) -> None:
        self._check_revision(wanted.if_revision)
        if not self._controller.rolling.goes:
            raise ApiError(409, "not_rolling", "no rolling restart goes on", "llumctl status")

    async def _planned(self, wanted: RollingRequest, engine: EngineChange) -> RollingReport:
        controller = self._controller
        spec = controller.keeper.spec
        revision, turn = controller.keeper.spec.revision, controller.rolling.turn()
        drain = DrainRequest(dry_run=True)
        plans = await asyncio.gather(*(self._reports.planned(each, drain, ()) for each in turn))
        return RollingReport(
            left=turn,
            at_once=wanted.at_once,
            deadline_s=wanted.deadline_s,
            start_timeout_s=wanted.start_timeout_s,
            reason=wanted.reason,
            plan=tuple(_planned_restart(each) for each in plans),
            engine_args=dict(engine.args),
            changes_engine=any(spec.engine_of(each) != engine for each in turn),
            cold_start_s=controller.autoscaling.cold_start_s,
            dry_run=True,
            changes=True,
            revision=revision,
        )


def _planned_restart(report: DrainReport) -> PlannedRestart:
    return PlannedRestart(
        instance_id=report.instance_id,
        num_requests=len(report.plan),
        num_blocks=sum(each.num_blocks for each in report.plan),
        num_cannot_move=len(report.cannot_move),
        estimate_s=report.estimate_s,
    )


def _how(wanted: RollingRequest) -> str:
    words = "" if wanted.at_once == 1 else f" --at-once {wanted.at_once or 'max'}"
    if wanted.deadline_s is not None:
        words += f", each within {duration(wanted.deadline_s)}"
    if args := wanted.engine_args.items():
        words += "".join(f" --engine-arg {arguments({key: each})}" for key, each in args)
    return words
