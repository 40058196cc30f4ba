"""The end of a live request by an operator, on the control API: looked at or done."""

from dataclasses import dataclass

from controller.adapters.http.live_requests import LiveRequest
from controller.adapters.http.requests import find_for_order, place_of
from controller.api.state.audit import one_short_line
from controller.api.wire.models import RequestState
from controller.api.wire.operations import AbortReport, AbortRequest
from controller.core.record.request_record import RequestRecord
from controller.runtime.controller.controller import Controller
from controller.runtime.messages.operations import AbortAnswered, AbortAsked


@dataclass(frozen=True, slots=True)
class Abort:
    request: LiveRequest
    wanted: AbortRequest

    @property
    def record(self) -> RequestRecord:
        return self.request.record

    @property
    def action(self) -> str:
        """For the audit log."""
        return f"abort {self.record.request_id}, was {self._state(self.record.state)}"

    def _state(self, told: str) -> RequestState:
        """What is held waits: its frontend does not know that."""
        scheduler = self.request.controller.scheduler
        if place_of(scheduler.held_view(self.request.controller.now_s()), self.record) is None:
            return RequestState(told)
        return RequestState.WAITING

    async def run(self, cause_id: str = "", actor: str = "") -> AbortReport:
        """Returns when the request's frontend has ended it: the client's error is on its way, and
        the instances that have blocks of it are told. Raises ApiError."""
        record, wanted = self.record, self.wanted
        before = self._state(record.state)
        answer: AbortAnswered = await self.request.ask(
            lambda query_id: AbortAsked(
                query_id,
                record.request_id,
                cause_id=cause_id,
                actor=actor,
                reason=one_short_line(wanted.reason),
                dry_run=wanted.dry_run,
            )
        )
        return AbortReport(
            request_id=record.request_id,
            client_id=record.client_request_id,
            request_ids=answer.request_ids,
            level=record.level,
            state=RequestState(answer.state or before) if answer.state != record.state else before,
            instance_id=answer.instance_id,
            num_output_tokens=answer.num_output_tokens,
            dry_run=wanted.dry_run,
        )


async def find_abort(controller: Controller, request_id: str, wanted: AbortRequest) -> Abort:
    """Raises ApiError for a request that has ended or is unknown."""
    record = await find_for_order(controller, request_id)
    cannot = f"request {record.request_id} cannot be aborted"
    return Abort(LiveRequest(controller, record, cannot, "end it"), wanted)
