"""Drains and scalings as the control API reports them: under way, planned, or begun just now."""

import asyncio
import time
from collections.abc import Iterable, Sequence

from controller.api.wire.operations import (
    REPLAYS,
    CannotMove,
    DrainReport,
    DrainRequest,
    EvacuateRequest,
    PlannedDeparture,
    RestartRequest,
    ScaleReport,
    ScaleRequest,
)
from controller.core.migration.refusals import MoveRefusal
from controller.core.migration.sentences import why
from controller.core.operations.cluster_spec import DrainOrder
from controller.core.operations.departure_plan import TOO_BUSY, Departure
from controller.core.operations.drain import DrainState
from controller.core.operations.drain_pace import estimate_s, measured_pace
from controller.core.operations.scaling import ScalePlan
from controller.core.rescheduling.choose_destination import NO_DESTINATION
from controller.core.rescheduling.evacuation import evacuation
from controller.core.rescheduling.refusals import SENTENCES, ReliefRefusal
from controller.core.rescheduling.worth import Link
from controller.runtime.controller.controller import Controller
from controller.runtime.controller.operations.departures import Leaving
from controller.runtime.controller.operations.drains import DrainProgress


class SteerReports:
    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    async def several(
        self, instance_ids: Iterable[str], revision: int, *, lately: bool = False
    ) -> list[DrainReport]:
        """The reports are made at once, so frontends that do not answer are waited for once."""
        reports = (self.of(each, revision, lately=lately) for each in instance_ids)
        return list(await asyncio.gather(*reports))

    async def of(self, instance_id: str, revision: int, *, lately: bool = False) -> DrainReport:
        """The drain as it is now; with `lately`, the list of requests that cannot move may be a
        second old. `revision` is the spec's from before this look, or from after the caller's own
        change, so that a client that goes on from it is told of later changes by others."""
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
                "evacuates_instance": order.evacuates,
                "restarts_instance": bool(order.restarts),
            }
        )

    def _so_far(self, progress: DrainProgress, leaving: Leaving, revision: int) -> DrainReport:
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
            incarnation=None if member is None else member.incarnation,
            pid=None if member is None else member.pid,
        )

    async def planned(
        self,
        instance_id: str,
        wanted: DrainRequest | ScaleRequest,
        going: Sequence[str],
        *,
        removes: bool = False,
    ) -> DrainReport:
        """What a drain that began now would do. `going`: instances that are drained with it."""
        revision = self._controller.keeper.spec.revision
        leaving = await self._controller.departures.of(instance_id, going)
        progress = self._controller.drains.progress(instance_id)
        order = progress.order
        return self._so_far(progress, leaving, revision).model_copy(
            update={
                "drain_id": order.drain_id if order else "",
                "estimate_s": self._estimate_s(progress, leaving),
                "deadline_s": deadline_of(wanted),
                "on_deadline": wanted.on_deadline,
                "plan": tuple(_planned_departure(each) for each in leaving.departures),
                "dry_run": True,
                "reason": wanted.reason,
                "removes_instance": removes or bool(order and order.removes),
                "restarts_instance": bool(order and order.restarts),
                "changes": differs(order, wanted),
            }
        )

    async def planned_restart(self, instance_id: str, wanted: RestartRequest) -> DrainReport:
        """What a restart that began now would do."""
        report = await self.planned(instance_id, as_drain(wanted), ())
        plan = report.plan
        if wanted.now:
            why = "it would be replayed elsewhere, or end with an error if it cannot be"
            replayed = {"to_instance_id": None, "code": REPLAYS, "why": why}
            plan = tuple(each.model_copy(update=replayed) for each in plan)
        order = self._controller.keeper.spec.drains.get(instance_id)
        changes = restart_differs(order, wanted)
        known = {"plan": plan, "restarts_instance": True, "changes": changes}
        return report.model_copy(update=known)

    async def planned_evacuation(self, instance_id: str, wanted: EvacuateRequest) -> DrainReport:
        """What an evacuation that began now would do, by the pace of the last moves."""
        drain = DrainRequest(deadline_s=wanted.within_s, reason=wanted.reason)
        report = await self.planned(instance_id, drain, (), removes=True)
        leaving = await self._controller.departures.lately(instance_id)
        pace = measured_pace(move.record for move in self._controller.operator_moves.log.recent)
        link = Link(1, None if pace is None else pace.blocks_per_s)  # in blocks
        requests = (each.request for each in leaving.departures if each.destination_id)
        late = evacuation(requests, link, wanted.within_s).too_late
        code = ReliefRefusal.TOO_LATE
        stays = {"to_instance_id": None, "code": str(code), "why": SENTENCES[code]}
        plan = tuple(
            each.model_copy(update=stays) if each.request_id in late else each
            for each in report.plan
        )
        return report.model_copy(update={"plan": plan, "evacuates_instance": True, "changes": True})

    async def planned_scale(self, plan: ScalePlan, wanted: ScaleRequest) -> ScaleReport:
        """Plans each drain as if it were the only one, but moves no request to an instance that
        would be removed too."""
        revision = self._controller.keeper.spec.revision
        added = self._controller.scaling.added(plan)
        going = await asyncio.gather(
            *(self.planned(each, wanted, plan.drained, removes=True) for each in plan.drained)
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
            holds_autoscale=self._controller.live.autoscale.mode != "off",
        )

    def _estimate_s(self, progress: DrainProgress, leaving: Leaving) -> float | None:
        controller = self._controller
        if leaving.silent:
            return None
        pace = measured_pace(move.record for move in controller.operator_moves.log.recent)
        max_moves = controller.live.limits.max_moves
        left_s = estimate_s(leaving.departures, pace, max_moves, progress.num_left)
        return None if left_s is None else round(left_s, 2)


def as_drain(wanted: RestartRequest) -> DrainRequest:
    """The drain that empties the instance first. At its deadline the restart is given up."""
    return DrainRequest(
        deadline_s=wanted.deadline_s,
        on_deadline="keep" if wanted.deadline_s is None else "abort",
        reason=wanted.reason,
    )


def restart_differs(before: DrainOrder | None, wanted: RestartRequest) -> bool:
    """Whether `wanted` would change the order `before`: as for drains."""
    if before is None or not before.restarts or wanted.deadline_s is not None:
        return True
    return (before.at_once, before.deadline_s, before.reason) != (wanted.now, None, wanted.reason)


def deadline_of(wanted: DrainRequest | ScaleRequest) -> float | None:
    return None if wanted.deadline_s is None else time.time() + wanted.deadline_s


def differs(before: DrainOrder | None, wanted: DrainRequest | ScaleRequest) -> bool:
    """Whether `wanted` would change the drain order `before`. A deadline counts from now, so an
    order with one always differs."""
    if before is None or isinstance(wanted, ScaleRequest) or wanted.deadline_s is not None:
        return True
    if (before.removes or before.restarts) and before.plain is None:
        return True  # a drain by hand must go on after a scale-in is taken back, or a restart
    orders = (before,) if before.plain is None else (before, before.plain)
    held = {(each.deadline_s, each.on_deadline, each.reason) for each in orders}
    return held != {(None, wanted.on_deadline, wanted.reason)}


def _stays(departure: Departure) -> bool:
    return departure.destination_id is None and departure.code != MoveRefusal.MOVING


def _cannot_move(departure: Departure) -> CannotMove:
    request = departure.request
    return CannotMove(
        request_id=request.request_id,
        client_id=departure.client_id,
        code=departure.code,
        why=_why(departure),
    )


def _planned_departure(departure: Departure) -> PlannedDeparture:
    request = departure.request
    return PlannedDeparture(
        request_id=request.request_id,
        client_id=departure.client_id,
        num_tokens=request.num_tokens,
        num_blocks=request.num_blocks,
        to_instance_id=departure.destination_id,
        code=departure.code,
        why=_why(departure),
    )


def _why(departure: Departure) -> str:
    """Why the request cannot move, said of the whole cluster and not of one instance."""
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
