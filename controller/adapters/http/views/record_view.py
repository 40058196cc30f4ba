"""Requests and events as they were recorded, as the control API shows them."""

from controller.api.wire.holding import HeldPlaceStatus
from controller.api.wire.models import (
    Event,
    RequestDetail,
    RequestState,
    RequestStatus,
)
from controller.core.record.event_log import LoggedEvent
from controller.core.record.request_record import RequestRecord


def event_model(event: LoggedEvent, position: str = "") -> Event:
    return Event(
        position=position,
        kind=event.kind,
        time_s=round(event.time_s, 4),
        cause_id=event.cause_id,
        reason=event.reason,
        instance_id=event.instance_id,
        incarnation=event.incarnation,
        frontend_id=event.frontend_id,
        request_id=event.request_id,
        level=event.level,
        actor=event.actor,
        numbers=dict(event.numbers),
        labels=dict(event.labels),
    )


def request_model(
    record: RequestRecord,
    now_s: float,
    refusal: str | None = None,
    held: HeldPlaceStatus | None = None,
) -> RequestStatus:
    """`now_s`: seconds since the epoch. `refusal`: why the request cannot move now; empty if it
    can, None if its instance did not say. What is held waits: at the controller, not at an
    instance."""
    first_s = record.first_token_time_s
    until_s = now_s if record.end_time_s is None else record.end_time_s
    return RequestStatus(
        id=record.request_id,
        client_id=record.client_request_id,
        parent_id=record.parent_id,
        state=RequestState(record.state) if held is None else RequestState.WAITING,
        level=record.level,
        frontend_id=record.frontend_id,
        instance_id=record.instance_id,
        arrival_time_s=round(record.arrival_time_s, 4),
        age_s=round(max(0.0, until_s - record.arrival_time_s), 4),
        ttft_s=None if first_s is None else round(first_s - record.arrival_time_s, 4),
        num_prompt_tokens=record.num_prompt_tokens,
        num_output_tokens=record.num_output_tokens,
        num_evictions=record.num_evictions,
        num_moves=record.num_moves,
        num_replays=record.num_replays,
        not_replayable=record.not_replayable,
        movable=None if refusal is None else not refusal,
        why_not_movable=refusal or None,
        finish_reason=record.finish_reason,
        held=held,
    )


def request_detail(
    record: RequestRecord,
    now_s: float,
    refusal: str | None = None,
    held: HeldPlaceStatus | None = None,
) -> RequestDetail:
    history = tuple(event_model(event) for event in record.history)
    status = request_model(record, now_s, refusal, held)
    return RequestDetail(**dict(status), history=history, num_forgotten=record.num_forgotten)
