"""Draining, undraining and scaling on the control API: looked at, planned or begun.

One lock covers the checks of a call and its change of the spec, so that of two operators who act
on the same revision the second gets a conflict.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from controller.adapters.http.answers import json_answer
from controller.adapters.http.errors import ApiError, no_such_instance
from controller.adapters.http.operation_reports import (
    SteerReports,
    as_drain,
    deadline_of,
    differs,
    restart_differs,
)
from controller.adapters.http.operator_log import Deed, Operation
from controller.adapters.http.steering import Steering
from controller.adapters.http.views.launcher import CANNOT_RESTART, refuse_without_launcher
from controller.api.text.quantities import duration
from controller.api.wire.audit import Undo
from controller.api.wire.operations import (
    DrainList,
    DrainRequest,
    EvacuateRequest,
    RestartRequest,
    ScaleRequest,
    UndrainRequest,
)
from controller.core.operations.cluster_spec import DrainOrder
from controller.core.operations.scaling import ScalePlan
from controller.runtime.controller.operations.drains import OperationRefusedError


class SteerApi:
    def __init__(self, steering: Steering) -> None:
        self._controller, self._log = steering.controller, steering.log
        self._changing, once = steering.changing, steering.once
        self._check_running, self._check_revision = steering.check_running, steering.check_revision
        self._reports = SteerReports(steering.controller)
        self.routes = [
            Route("/v1/drains", self._drains, methods=["GET"]),
            Route("/v1/instances/{instance_id}/drain", once(self._drain), methods=["POST"]),
            Route("/v1/instances/{instance_id}/undrain", once(self._undrain), methods=["POST"]),
            Route("/v1/instances/{instance_id}/restart", once(self._restart), methods=["POST"]),
            Route("/v1/instances/{instance_id}/evacuate", once(self._evacuate), methods=["POST"]),
            Route("/v1/scale", once(self._scale), methods=["POST"]),
        ]

    # -- routes --------------------------------------------------------------------------

    async def _drains(self, _request: Request) -> Response:
        keeper = self._controller.keeper
        reports = await self._reports.several(
            sorted(keeper.spec.drains), keeper.spec.revision, lately=True
        )
        # A drain may have ended while the frontends were asked.
        return json_answer(DrainList(drains=tuple(r for r in reports if r.drain_id)))

    async def _drain(self, request: Request) -> Response:
        wanted = DrainRequest.model_validate_json(await request.body() or b"{}")
        instance_id = self._instance_id(request)
        if wanted.dry_run:
            self._check_drain(instance_id, wanted)
            return json_answer(await self._reports.planned(instance_id, wanted, wanted.with_ids))
        async with self._changing:
            self._check_drain(instance_id, wanted)
            keeper = self._controller.keeper
            changes = differs(keeper.spec.drains.get(instance_id), wanted)
            revision = keeper.spec.revision
            if changes:
                revision = await self._begin_drain(request, instance_id, wanted)
        report = await self._reports.of(instance_id, revision)
        return json_answer(report.model_copy(update={"changes": changes}))

    async def _begin_drain(self, request: Request, instance_id: str, wanted: DrainRequest) -> int:
        """Begins the drain and returns the spec's new revision."""
        deed = (f"drain {instance_id}{_until(wanted)}", instance_id)
        async with self._log.operation(request.scope, deed, reason=wanted.reason) as operation:
            self._check_drain(instance_id, wanted)  # again: writing the audit log took time
            if instance_id not in self._controller.keeper.spec.drains:
                operation.undo = Undo(kind="undrain", target=instance_id, previous={}, made={})
            self._controller.drains.begin([_order(instance_id, wanted, operation)])
            return self._controller.keeper.spec.revision

    async def _restart(self, request: Request) -> Response:
        wanted = RestartRequest.model_validate_json(await request.body() or b"{}")
        instance_id = self._instance_id(request)
        if wanted.dry_run:
            self._check_restart(instance_id, wanted)
            return json_answer(await self._reports.planned_restart(instance_id, wanted))
        async with self._changing:
            nonce = self._check_restart(instance_id, wanted)
            keeper = self._controller.keeper
            changes = restart_differs(keeper.spec.drains.get(instance_id), wanted)
            member = self._controller.roster.members[instance_id]
            known = {"changes": changes, "incarnation": member.incarnation, "pid": member.pid}
            revision = keeper.spec.revision
            if changes:
                revision = await self._begin_restart(request, instance_id, wanted, nonce)
        report = await self._reports.of(instance_id, revision)
        return json_answer(report.model_copy(update=known))

    async def _begin_restart(
        self, request: Request, instance_id: str, wanted: RestartRequest, nonce: str
    ) -> int:
        """Begins the restart of the process with this nonce; the spec's new revision."""
        drain = as_drain(wanted)
        deed = (f"restart {instance_id}{' at once' if wanted.now else _until(drain)}", instance_id)
        async with self._log.operation(request.scope, deed, reason=wanted.reason) as operation:
            self._check_restart(instance_id, wanted)  # again: writing the audit log took time
            order = _order(instance_id, drain, operation)
            order = replace(order, restarts=nonce, at_once=wanted.now)
            if not wanted.now and instance_id not in self._controller.keeper.spec.drains:
                operation.undo = Undo(kind="undrain", target=instance_id, previous={}, made={})
            self._controller.drains.begin([order])
            return self._controller.keeper.spec.revision

    async def _evacuate(self, request: Request) -> Response:
        """An evacuation that goes on gets another deadline by another call."""
        wanted = EvacuateRequest.model_validate_json(await request.body() or b"{}")
        instance_id = self._instance_id(request)
        if wanted.dry_run:
            self._check_evacuate(instance_id, wanted)
            return json_answer(await self._reports.planned_evacuation(instance_id, wanted))
        async with self._changing:
            self._check_evacuate(instance_id, wanted)
            deed = (f"evacuate {instance_id} within {duration(wanted.within_s)}", instance_id)
            async with self._log.operation(request.scope, deed, reason=wanted.reason) as operation:
                self._check_evacuate(instance_id, wanted)  # again: the audit log took time
                drains = self._controller.keeper.spec.drains
                if instance_id not in drains:
                    operation.undo = Undo(kind="undrain", target=instance_id, previous={}, made={})
                drain = DrainRequest(deadline_s=wanted.within_s, reason=wanted.reason)
                order = _order(instance_id, drain, operation)
                self._controller.drains.begin([replace(order, removes=True, evacuates=True)])
                revision = self._controller.keeper.spec.revision
        report = await self._reports.of(instance_id, revision)
        return json_answer(report.model_copy(update={"changes": True}))

    async def _undrain(self, request: Request) -> Response:
        wanted = UndrainRequest.model_validate_json(await request.body() or b"{}")
        instance_id = self._instance_id(request)
        if wanted.dry_run:
            self._check_undrain(instance_id, wanted)
            report = await self._reports.of(instance_id, self._controller.keeper.spec.revision)
            return json_answer(report.model_copy(update={"dry_run": True, "changes": True}))
        async with self._changing:
            self._check_undrain(instance_id, wanted)
            async with self._log.operation(
                request.scope, (f"undrain {instance_id}", instance_id), reason=wanted.reason
            ) as operation:
                self._check_undrain(instance_id, wanted)  # again: writing the audit log took time
                operation.undo = Undo(kind="drain", target=instance_id, previous={}, made={})
                why_ended = f"undrained: {wanted.reason}" if wanted.reason else "undrained"
                was_to_go = self._controller.keeper.spec.drains[instance_id].removes
                self._controller.drains.end(instance_id, why_ended, operation.actor)
                if was_to_go:
                    self._controller.autoscaling.hold_planned(operation.cause_id, operation.actor)
                revision = self._controller.keeper.spec.revision
        report = await self._reports.of(instance_id, revision)
        return json_answer(report.model_copy(update={"changes": True}))

    async def _scale(self, request: Request) -> Response:
        wanted = ScaleRequest.model_validate_json(await request.body())
        if wanted.dry_run:
            return json_answer(await self._reports.planned_scale(self._scale_plan(wanted), wanted))
        keeper = self._controller.keeper
        async with self._changing:
            plan = self._scale_plan(wanted)
            autoscaling = self._controller.autoscaling
            if not plan.changes and not autoscaling.would_hold(plan.target):
                return json_answer(self._reports.scaled(plan, keeper.spec.revision))
            if not plan.changes:
                self._check_revision(wanted.if_revision)
            deeds = _scale_deeds(plan, wanted, holds=autoscaling.would_hold(plan.target))
            async with self._log.operation(
                request.scope, *deeds, reason=wanted.reason
            ) as operation:
                self._check_scale(plan, wanted)  # again: writing the audit log took time
                if plan.changes:
                    operation.undo = Undo(
                        kind="scale",
                        previous={"instances": plan.previous},
                        made={"instances": plan.target},
                    )
                hold = autoscaling.hold(operation.actor, plan.target)
                order = _order("", wanted, operation)
                added = self._controller.scaling.carry_out(plan, order, hold)
                if hold is not None:
                    autoscaling.tell_held(operation.cause_id, hold)
                revision = keeper.spec.revision
        reports = await self._reports.several(plan.drained, revision)
        return json_answer(self._reports.scaled(plan, revision, added, reports))

    # -- checks --------------------------------------------------------------------------

    def _instance_id(self, request: Request) -> str:
        instance_id: str = request.path_params["instance_id"]
        self._check_still_there(instance_id)
        return instance_id

    def _check_still_there(self, instance_id: str) -> None:
        member = self._controller.roster.members.get(instance_id)
        if member is None or member.kind != "instance":
            raise no_such_instance(instance_id)

    def _check_drain(self, instance_id: str, wanted: DrainRequest) -> None:
        """Checks the other drains of the same command too, as it begins all of them or none."""
        self._check_revision(wanted.if_revision)
        together = list(dict.fromkeys((instance_id, *wanted.with_ids)))
        for each in together:
            self._check_still_there(each)
        if wanted.force or set(together) <= set(self._controller.keeper.spec.drains):
            return
        with as_api_errors():
            self._controller.drains.check(together)

    def _check_restart(self, instance_id: str, wanted: RestartRequest) -> str:
        """Gives the nonce of the process that would be replaced."""
        self._check_revision(wanted.if_revision)
        self._check_still_there(instance_id)
        refuse_without_launcher(self._controller.launcher_loss, CANNOT_RESTART)
        member = self._controller.roster.members[instance_id]
        if not member.nonce:
            raise ApiError(
                409, "not_started", f"{instance_id} has not started yet", "llumctl status"
            )
        order = self._controller.keeper.spec.drains.get(instance_id)
        if order is not None and order.removes:
            raise ApiError(
                409,
                "leaving",
                f"{instance_id} is to be removed once it is empty",
                f"llumctl undrain {instance_id}",
            )
        if member.serving and not (wanted.force or wanted.now or order is not None):
            with as_api_errors():
                self._controller.drains.check([instance_id], "restart {} --now")
        return member.nonce

    def _check_evacuate(self, instance_id: str, wanted: EvacuateRequest) -> None:
        self._check_revision(wanted.if_revision)
        self._check_still_there(instance_id)
        goes = instance_id in self._controller.keeper.spec.drains
        if not (wanted.force or goes):
            with as_api_errors():
                self._controller.drains.check([instance_id], "evacuate {} --force")

    def _check_undrain(self, instance_id: str, wanted: UndrainRequest) -> None:
        self._check_revision(wanted.if_revision)
        self._check_still_there(instance_id)
        if instance_id not in self._controller.keeper.spec.drains:
            raise ApiError(
                409, "not_draining", f"{instance_id} is not being drained", "llumctl status"
            )

    def _scale_plan(self, wanted: ScaleRequest) -> ScalePlan:
        """Plans without a look at the revision if nothing is left to change: an earlier call, whose
        answer got lost, may have changed it."""
        self._check_running()
        scaling = self._controller.scaling
        target = wanted.target
        if target is None:
            target = scaling.num_planned + (wanted.change or 0)
        if target != scaling.num_planned:
            self._check_revision(wanted.if_revision)
        with as_api_errors():
            return scaling.plan(target, force=wanted.force, agreed=wanted.draining)

    def _check_scale(self, plan: ScalePlan, wanted: ScaleRequest) -> None:
        """Raises ApiError unless this very plan, which the audit log names, can be carried out."""
        self._check_revision(wanted.if_revision)
        with as_api_errors():
            self._controller.scaling.check_still(plan, force=wanted.force)


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


def _until(wanted: DrainRequest | ScaleRequest) -> str:
    if wanted.deadline_s is None:
        return ""
    return f" within {duration(wanted.deadline_s)}, then {wanted.on_deadline}"


def _scale_deeds(plan: ScalePlan, wanted: ScaleRequest, *, holds: bool) -> list[Deed]:
    """One deed for the scaling, one for what it `holds`, and one for each instance that is removed
    or kept after all."""
    deeds = [(f"scale {plan.previous} to {plan.target}", "the cluster")]
    deeds += [(f"hold auto-scaling at {plan.target}", "the cluster")] if holds else []
    deeds += [(f"undrain {each}", each) for each in plan.undrained]
    deeds += [(f"remove {each} once drained{_until(wanted)}", each) for each in plan.drained]
    return deeds


@contextmanager
def as_api_errors() -> Iterator[None]:
    try:
        yield
    except OperationRefusedError as error:
        # More than max_instances is wrong in any state of the cluster.
        status = 400 if error.code == "max_instances" else 409
        raise ApiError(status, error.code, error.message, error.hint) from error
