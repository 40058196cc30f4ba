"""Rolling restarts on the control API: looked at, planned, begun or stopped."""

import asyncio
import time
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from controller.adapters.http.answers import json_answer
from controller.adapters.http.errors import ApiError
from controller.adapters.http.idempotency import Endpoint
from controller.adapters.http.operation_reports import SteerReports
from controller.adapters.http.operations import as_api_errors
from controller.adapters.http.operator_log import OperatorLog
from controller.adapters.http.rolling_view import rolling_report
from controller.api.text.quantities import duration
from controller.api.wire.audit import Undo
from controller.api.wire.operations import DrainReport, DrainRequest
from controller.api.wire.rolling import (
    PlannedRestart,
    RollingReport,
    RollingRequest,
    RollingStopRequest,
)
from controller.core.operations.rolling import RollingOrder
from controller.runtime.controller.controller import Controller


class RollingApi:
    """The arguments are as of `SteerApi`."""

    def __init__(
        self,
        controller: Controller,
        log: OperatorLog,
        changing: asyncio.Lock,
        once: Callable[[Endpoint], Endpoint],
    ) -> None:
        self._controller = controller
        self._reports = SteerReports(controller)
        self._log = log
        self._changing = changing
        self.routes = [
            Route("/v1/rolling-restart", self._look, methods=["GET"]),
            Route("/v1/rolling-restart", once(self._begin), methods=["POST"]),
            Route("/v1/rolling-restart/stop", once(self._stop), methods=["POST"]),
        ]

    async def _look(self, _request: Request) -> Response:
        return json_answer(rolling_report(self._controller))

    async def _begin(self, request: Request) -> Response:
        wanted = RollingRequest.model_validate_json(await request.body() or b"{}")
        controller = self._controller
        if wanted.dry_run:
            self._check(wanted)
            return json_answer(await self._planned(wanted))
        async with self._changing:
            self._check(wanted)
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

    # -- inside --------------------------------------------------------------------------

    def _check(self, wanted: RollingRequest) -> None:
        self._check_revision(wanted.if_revision)
        with as_api_errors():
            self._controller.rolling.check(force=wanted.force)

    def _check_goes(self, wanted: RollingStopRequest) -> None:
        self._check_revision(wanted.if_revision)
        if not self._controller.rolling.goes:
            raise ApiError(409, "not_rolling", "no rolling restart goes on", "llumctl status")

    def _check_revision(self, if_revision: int | None) -> None:
        if self._controller.stopping:
            raise ApiError(409, "stopping", "the cluster is being stopped", "llumctl up")
        self._controller.keeper.check_revision(if_revision)

    async def _planned(self, wanted: RollingRequest) -> RollingReport:
        controller = self._controller
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
            cold_start_s=controller.autoscaling.starts.cold_start_s,
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
    return words
