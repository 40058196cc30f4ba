"""Another priority for a live request, on the control API: checked, planned or done."""

from dataclasses import dataclass

from controller.adapters.http.errors import ApiError
from controller.adapters.http.live_requests import LiveRequest
from controller.adapters.http.requests import find_for_order
from controller.api.state.audit import one_short_line
from controller.api.wire.operations import PriorityEffect, PriorityReport, PriorityRequest
from controller.core.load.freeness import finite, freeness, with_another_rank
from controller.core.load.snapshot import Level
from controller.core.load.virtual_usage import total_headroom_blocks
from controller.core.record.request_record import RequestRecord, RequestState
from controller.runtime.controller.controller import Controller
from controller.runtime.messages.operations import RankChangeAnswered, RankChangeAsked


@dataclass(frozen=True, slots=True)
class PriorityChange:
    """A change of a live request's priority to `level`."""

    request: LiveRequest
    level: Level
    wanted: PriorityRequest

    @property
    def record(self) -> RequestRecord:
        return self.request.record

    @property
    def action(self) -> str:
        """For the audit log."""
        return f"priority {self.record.request_id} {self.level.name}, was {self.record.level}"

    @property
    def is_so(self) -> bool:
        """The request has that level already."""
        return self.record.level == self.level.name

    def present(self) -> PriorityReport:
        return self._report(self.record.level, self.record.instance_id)

    async def run(self, cause_id: str = "", actor: str = "") -> PriorityReport:
        """Returns when the request's frontend has noted the new level, which counts from then on
        wherever the request is. Raises ApiError."""
        record, wanted = self.record, self.wanted
        answer: RankChangeAnswered = await self.request.ask(
            lambda query_id: RankChangeAsked(
                query_id,
                record.request_id,
                self.level.rank,
                cause_id=cause_id,
                actor=actor,
                reason=one_short_line(wanted.reason),
                dry_run=wanted.dry_run,
            )
        )
        return self._report(answer.previous_level, answer.instance_id)

    def _report(self, previous: str, instance_id: str | None) -> PriorityReport:
        return PriorityReport(
            request_id=self.record.request_id,
            client_id=self.record.client_request_id,
            previous=previous,
            level=self.level.name,
            instance_id=instance_id,
            dry_run=self.wanted.dry_run,
            effect=self._effect(instance_id) if self.wanted.dry_run else None,
        )

    def _effect(self, instance_id: str | None) -> PriorityEffect | None:
        controller, record = self.request.controller, self.record
        status = controller.statuses.get(instance_id or "")
        if status is None or record.state is not RequestState.RUNNING:
            return None
        levels = controller.live.scheduler.levels
        before = status.snapshot
        after = with_another_rank(before, record.rank, self.level.rank)
        return PriorityEffect(
            headroom_blocks_before=total_headroom_blocks(before, levels),
            headroom_blocks_after=total_headroom_blocks(after, levels),
            freeness_steps_before=finite(freeness(before, levels)),
            freeness_steps_after=finite(freeness(after, levels)),
        )


async def find_priority_change(
    controller: Controller, request_id: str, wanted: PriorityRequest
) -> PriorityChange:
    """Raises ApiError for an unknown level, and for a request that has ended or is unknown."""
    levels = {level.name: level for level in controller.live.scheduler.levels}
    level = levels.get(wanted.level)
    if level is None:
        raise ApiError(
            400,
            "no_such_level",
            f"there is no priority level {wanted.level!r}; there are {', '.join(levels)}",
            f"llumctl priority REQ {next(iter(levels))}",
        )
    record = await find_for_order(controller, request_id)
    cannot = f"the priority of request {record.request_id} cannot change"
    request = LiveRequest(controller, record, cannot, "change the priority")
    return PriorityChange(request, level, wanted)
