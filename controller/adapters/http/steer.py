"""Draining, undraining and scaling on the control API: looked at, planned or begun.

What is asked for is checked and carried out under one lock with what else changes the spec, so
that of two operators who act on the same revision one is told so.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from controller.adapters.http.errors import ApiError
from controller.adapters.http.idempotency import Endpoint
from controller.adapters.http.operator_log import Deed, Operation, OperatorLog
from controller.api.models import WireModel
from controller.api.steer_models import (
    CannotMove,
    DrainList,
    DrainReport,
    DrainRequest,
    PlannedDeparture,
    ScaleReport,
    ScaleRequest,
    UndrainRequest,
)
from controller.api.words import duration
from controller.core.choose_destination import NO_DESTINATION
from controller.core.cluster_spec import DrainOrder
from controller.core.departure_plan import TOO_BUSY, Departure
from controller.core.drain import DrainState
from controller.core.drain_pace import estimate_s, measured_pace
from controller.core.migration.refusals import MoveRefusal
from controller.core.migration.words import why
from controller.core.scaling import ScalePlan
from controller.runtime.controller import Controller
from controller.runtime.departures import Leaving
from controller.runtime.drains import DrainProgress, SteerRefusedError


class SteerApi:
    """`changing`: held by whoever checks a revision and then changes the spec. `once`: of an
    endpoint that carries out an order but once (`idempotency`)."""

    def __init__(
        self,
        controller: Controller,
        log: OperatorLog,
        changing: asyncio.Lock,
        once: Callable[[Endpoint], Endpoint],
    ) -> None:
        self._controller = controller
        self._log = log
        self._changing = changing
        self.routes = [
            Route("/v1/drains", self._drains, methods=["GET"]),
            Route("/v1/instances/{instance_id}/drain", once(self._drain), methods=["POST"]),
            Route("/v1/instances/{instance_id}/undrain", once(self._undrain), methods=["POST"]),
            Route("/v1/scale", once(self._scale), methods=["POST"]),
        ]

    # -- routes --------------------------------------------------------------------------

    async def _drains(self, _request: Request) -> Response:
        keeper = self._controller.keeper
        reports = await self._reports(sorted(keeper.spec.drains), keeper.revision, lately=True)
        # One may have ended while the frontends were asked.
        return _json(DrainList(drains=tuple(r for r in reports if r.drain_id)))

    async def _drain(self, request: Request) -> Response:
        wanted = DrainRequest.model_validate_json(await request.body() or b"{}")
        instance_id = self._instance_id(request)
        if wanted.dry_run:
            self._check_drain(instance_id, wanted)
            return _json(await self._planned(instance_id, wanted, wanted.with_ids))
        async with self._changing:
            self._check_drain(instance_id, wanted)
            deed = (f"drain {instance_id}{_until(wanted)}", instance_id)
            async with self._log.operation(request.scope, deed, reason=wanted.reason) as operation:
                self._check_drain(instance_id, wanted)  # the disk may have taken its time
                self._controller.drains.begin([_order(instance_id, wanted, operation)])
                revision = self._controller.keeper.revision
        report = await self._report(instance_id, revision)
        return _json(report.model_copy(update={"changes": True}))

    async def _undrain(self, request: Request) -> Response:
        wanted = UndrainRequest.model_validate_json(await request.body() or b"{}")
        instance_id = self._instance_id(request)
        async with self._changing:
            self._check_undrain(instance_id, wanted)
            revision = self._controller.keeper.revision
            if wanted.dry_run:
                report = await self._report(instance_id, revision)
                return _json(report.model_copy(update={"dry_run": True, "changes": True}))
            async with self._log.operation(
                request.scope, (f"undrain {instance_id}", instance_id), reason=wanted.reason
            ) as operation:
                self._check_undrain(instance_id, wanted)  # the disk may have taken its time
                why_ended = f"undrained: {wanted.reason}" if wanted.reason else "undrained"
                self._controller.drains.end(instance_id, why_ended, operation.actor)
                revision = self._controller.keeper.revision
        report = await self._report(instance_id, revision)
        return _json(report.model_copy(update={"changes": True}))

    async def _scale(self, request: Request) -> Response:
        wanted = ScaleRequest.model_validate_json(await request.body())
        if wanted.dry_run:
            return _json(await self._planned_scale(self._scale_plan(wanted), wanted))
        keeper = self._controller.keeper
        async with self._changing:
            plan = self._scale_plan(wanted)
            if not plan.changes:
                return _json(_scale_report(plan, keeper.revision))
            deeds = _scale_deeds(plan, wanted)
            async with self._log.operation(
                request.scope, *deeds, reason=wanted.reason
            ) as operation:
                self._check_scale(plan, wanted)  # a drain may have ended meanwhile
                added = self._controller.scaling.carry_out(plan, _order("", wanted, operation))
                revision = keeper.revision
        reports = await self._reports(plan.drained, revision)
        return _json(_scale_report(plan, revision, added, reports))

    # -- checks --------------------------------------------------------------------------

    def _instance_id(self, request: Request) -> str:
        instance_id: str = request.path_params["instance_id"]
        self._check_still_there(instance_id)
        return instance_id

    def _check_still_there(self, instance_id: str) -> None:
        member = self._controller.roster.members.get(instance_id)
        if member is None or member.kind != "instance":
            raise ApiError(
                404,
                "no_such_instance",
                f"there is no instance {instance_id[:64]!r}",
                "llumctl status",
            )

    def _check_revision(self, if_revision: int | None) -> None:
        """Raises RevisionConflictError."""
        self._check_running()
        self._controller.keeper.check_revision(if_revision)

    def _check_running(self) -> None:
        if self._controller.stopping:
            raise ApiError(409, "stopping", "the cluster is being stopped", "llumctl up")

    def _check_drain(self, instance_id: str, wanted: DrainRequest) -> None:
        """Those of the same command too: it begins all of their drains or none."""
        self._check_revision(wanted.if_revision)
        together = list(dict.fromkeys((instance_id, *wanted.with_ids)))
        for each in together:
            self._check_still_there(each)
        if wanted.force or set(together) <= set(self._controller.keeper.spec.drains):
            return
        with _as_api_errors():
            self._controller.drains.check(together)

    def _check_undrain(self, instance_id: str, wanted: UndrainRequest) -> None:
        self._check_revision(wanted.if_revision)
        self._check_still_there(instance_id)
        if instance_id not in self._controller.keeper.spec.drains:
            raise ApiError(
                409, "not_draining", f"{instance_id} is not being drained", "llumctl status"
            )

    def _scale_plan(self, wanted: ScaleRequest) -> ScalePlan:
        self._check_revision(wanted.if_revision)
        scaling = self._controller.scaling
        target = wanted.target
        if target is None:
            target = scaling.num_planned + (wanted.change or 0)
        with _as_api_errors():
            return scaling.plan(target, force=wanted.force, agreed=wanted.draining)

    def _check_scale(self, plan: ScalePlan, wanted: ScaleRequest) -> None:
        """Whether it still can be carried out. Another one would not be what is on the record."""
        self._check_revision(wanted.if_revision)
        with _as_api_errors():
            self._controller.scaling.check_still(plan, force=wanted.force)

    # -- reports -------------------------------------------------------------------------

    async def _reports(
        self, instance_ids: Iterable[str], revision: int, *, lately: bool = False
    ) -> list[DrainReport]:
        """Side by side: frontends that do not answer are waited for once."""
        reports = (self._report(each, revision, lately=lately) for each in instance_ids)
        return list(await asyncio.gather(*reports))

    async def _report(
        self, instance_id: str, revision: int, *, lately: bool = False
    ) -> DrainReport:
        """As it is by now; with `lately`, what cannot move may be from a second ago. `revision`:
        from before it was looked at, or as it was left; one who goes on from there is told of what
        others changed meanwhile."""
        controller = self._controller
        progress = controller.drains.progress(instance_id)
        leaving = Leaving()
        if progress.state is DrainState.DRAINING:
            look = controller.departures.lately if lately else controller.departures.of
            leaving = await look(instance_id)
            progress = controller.drains.progress(instance_id)
        report = self._so_far(progress, leaving, revision)
        order = progress.order
        if order is None:
            return report
        return report.model_copy(
            update={
                "drain_id": order.drain_id,
                "estimate_s": self._estimate_s(progress, leaving),
                "deadline_s": order.deadline_s,
                "on_deadline": order.on_deadline,
                "reason": order.reason,
                "actor": order.actor,
                "removes_instance": order.removes,
            }
        )

    def _so_far(self, progress: DrainProgress, leaving: Leaving, revision: int) -> DrainReport:
        gone = progress.instance_id not in self._controller.roster.members
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
        )

    async def _planned(
        self,
        instance_id: str,
        wanted: DrainRequest | ScaleRequest,
        going: Sequence[str],
        *,
        removes: bool = False,
    ) -> DrainReport:
        """What a drain that began now would do. `going`: others that are drained with it."""
        revision = self._controller.keeper.revision
        leaving = await self._controller.departures.of(instance_id, going)
        progress = self._controller.drains.progress(instance_id)
        order = progress.order
        return self._so_far(progress, leaving, revision).model_copy(
            update={
                "drain_id": order.drain_id if order else "",
                "estimate_s": self._estimate_s(progress, leaving),
                "deadline_s": _deadline(wanted),
                "on_deadline": wanted.on_deadline,
                "plan": tuple(_planned_departure(each) for each in leaving.departures),
                "dry_run": True,
                "reason": wanted.reason,
                "removes_instance": removes or bool(order and order.removes),
                "changes": _differs(order, wanted),
            }
        )

    async def _planned_scale(self, plan: ScalePlan, wanted: ScaleRequest) -> ScaleReport:
        """Each drain is planned as if it were the only one, but none goes to another that is to
        go."""
        revision = self._controller.keeper.revision
        added = self._controller.scaling.added(plan)
        going = await asyncio.gather(
            *(self._planned(each, wanted, plan.drained, removes=True) for each in plan.drained)
        )
        report = _scale_report(plan, revision, added, going)
        return report.model_copy(update={"dry_run": True})

    def _estimate_s(self, progress: DrainProgress, leaving: Leaving) -> float | None:
        controller = self._controller
        if leaving.silent:
            return None
        pace = measured_pace(move.record for move in controller.mover.log.recent)
        max_moves = controller.limits.max_moves
        left_s = estimate_s(leaving.departures, pace, max_moves, progress.num_left)
        return None if left_s is None else round(left_s, 2)


def _order(
    instance_id: str, wanted: DrainRequest | ScaleRequest, operation: Operation
) -> DrainOrder:
    """The drain's events have the cause of the operation that began it."""
    return DrainOrder(
        drain_id=operation.cause_id,
        instance_id=instance_id,
        began_s=time.time(),
        deadline_s=_deadline(wanted),
        on_deadline=wanted.on_deadline,
        actor=operation.actor,
        reason=wanted.reason,
    )


def _deadline(wanted: DrainRequest | ScaleRequest) -> float | None:
    return None if wanted.deadline_s is None else time.time() + wanted.deadline_s


def _differs(before: DrainOrder | None, wanted: DrainRequest | ScaleRequest) -> bool:
    """Whether an order given now would be another one than that which holds. A deadline counts
    from now: it is another one each time."""
    if before is None or isinstance(wanted, ScaleRequest) or wanted.deadline_s is not None:
        return True
    held = (before.deadline_s, before.on_deadline, before.reason)
    return held != (None, wanted.on_deadline, wanted.reason)


def _scale_report(
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
    )


def _until(wanted: DrainRequest | ScaleRequest) -> str:
    if wanted.deadline_s is None:
        return ""
    return f" within {duration(wanted.deadline_s)}, then {wanted.on_deadline}"


def _scale_deeds(plan: ScalePlan, wanted: ScaleRequest) -> list[Deed]:
    """One for the whole, and one for each instance that goes or stays after all."""
    deeds = [(f"scale {plan.previous} to {plan.target}", "the cluster")]
    deeds += [(f"undrain {each}", each) for each in plan.undrained]
    deeds += [(f"remove {each} once drained{_until(wanted)}", each) for each in plan.drained]
    return deeds


def _stays(departure: Departure) -> bool:
    return departure.destination_id is None and departure.code != MoveRefusal.MOVING


def _cannot_move(departure: Departure) -> CannotMove:
    request = departure.request
    return CannotMove(
        request_id=request.request_id,
        client_id=request.client_id,
        code=departure.code,
        why=_why(departure),
    )


def _planned_departure(departure: Departure) -> PlannedDeparture:
    request = departure.request
    return PlannedDeparture(
        request_id=request.request_id,
        client_id=request.client_id,
        num_tokens=request.num_tokens,
        num_blocks=departure.num_blocks,
        to_instance_id=departure.destination_id,
        code=departure.code,
        why=_why(departure),
    )


def _why(departure: Departure) -> str:
    """With the figure that is lacking: no one instance is meant here."""
    if departure.destination_id is not None:
        return ""
    if departure.code == MoveRefusal.NO_BLOCKS:
        return f"no instance has {departure.num_blocks} free blocks"
    if departure.code == MoveRefusal.NO_SLOT:
        return "every instance with room for it has a full batch"
    if departure.code == NO_DESTINATION:
        return "no other instance may take requests"
    if departure.code == TOO_BUSY:
        return "no instance with room for it is free enough"
    return why(departure.code)


@contextmanager
def _as_api_errors() -> Iterator[None]:
    try:
        yield
    except SteerRefusedError as error:
        status = 400 if error.code == "max_instances" else 409  # whatever the cluster is like
        raise ApiError(status, error.code, error.message, error.hint) from error


def _json(model: WireModel) -> Response:
    return Response(model.model_dump_json(), media_type="application/json")
