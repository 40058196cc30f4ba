"""Drains and scalings as the control API reports them: under way, planned, or begun just now."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from controller.api.operations.on_cluster import ScaleReport, ScaleRequest
from controller.api.operations.on_instances import (
    REPLAYS,
    CannotMove,
    DrainReport,
    DrainRequest,
    EvacuateRequest,
    PlannedDeparture,
    RestartRequest,
)
from controller.core.emptying.claims import Claim, Claims, Drain, Evacuate, Remove, Restart, claimed
from controller.core.emptying.drains import DrainProgress, DrainState
from controller.core.emptying.forecast import TOO_BUSY, Departure, estimate_s
from controller.core.emptying.relief import NO_DESTINATION, Link, evacuation
from controller.core.fleet.cluster_spec import ScalePlan
from controller.core.migration.move_records import measured_pace
from controller.core.migration.refusals import MoveRefusal, ReliefRefusal, why
from controller.runtime.controller.cluster import ControllerProcess
from controller.runtime.controller.operations.drain_runner import Forecast


class SteerReports:
    def __init__(self, controller: ControllerProcess) -> None:
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
            incarnation=None if member is None else member.incarnation,
            pid=None if member is None else member.pid,
        )

    async def planned(
        self, instance_id: str, claim: Claim, going: Sequence[str] = ()
    ) -> DrainReport:
        """What would come of this claim if it was made now. `going`: instances that are drained
        with it."""
        revision = self._controller.keeper.spec.revision
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
        """What a restart that began now would do."""
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
        """What an evacuation that began now would do, by the pace of the last moves."""
        report = await self.planned(instance_id, claim)
        leaving = await self._controller.drain_forecasts.lately(instance_id)
        pace = measured_pace(move.record for move in self._controller.operator_moves.log.recent)
        link = Link(1, None if pace is None else pace.blocks_per_s)  # in blocks
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
        """Plans each drain as if it were the only one, but moves no request to an instance that
        would be removed too."""
        revision = self._controller.keeper.spec.revision
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
        left_s = estimate_s(leaving.departures, pace, max_moves, progress.num_left)
        return None if left_s is None else round(left_s, 2)


def drain_claim(wanted: DrainRequest) -> Drain:
    """This and the next ones make claims of which nobody knows yet what caused them, and who."""
    return Drain("", time.time(), deadline_of(wanted), wanted.on_deadline, reason=wanted.reason)


def restart_claim(wanted: RestartRequest, nonce: str) -> Restart:
    """At its deadline the restart is given up. `nonce`: that of the process that is to go."""
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
    )


def remove_claim(wanted: ScaleRequest) -> Remove:
    return Remove("", time.time(), deadline_of(wanted), wanted.on_deadline, reason=wanted.reason)


def evacuate_claim(wanted: EvacuateRequest) -> Evacuate:
    now_s = time.time()
    return Evacuate("", now_s, deadline_s=now_s + wanted.within_s, reason=wanted.reason)


def deadline_of(wanted: DrainRequest | RestartRequest | ScaleRequest) -> float | None:
    return None if wanted.deadline_s is None else time.time() + wanted.deadline_s


def _end(claims: Claims) -> dict[str, Any]:
    """What becomes of the instance, and when, as a report has it."""
    strongest = claims.strongest
    return {
        "deadline_s": strongest.deadline_s,
        "on_deadline": strongest.on_deadline,
        "reason": strongest.reason,
        "removes_instance": claims.goes,
        "evacuates_instance": claims.notice is not None,
        "restarts_instance": claims.restarts,
    }


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
