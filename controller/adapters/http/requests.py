"""Requests on the control API: a list of them, one request with its history, and an explanation of
what happened to a request and what it waits for now. Orders also find their request here."""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence

from pydantic import BaseModel, ConfigDict, Field

from controller.adapters.http.calls import ApiError, no_such_instance
from controller.adapters.http.cluster_view import place_status
from controller.api.explain import explain, held_back
from controller.api.wire.requests import (
    LIVE_STATES,
    Event,
    Explanation,
    RequestDetail,
    RequestList,
    RequestName,
    RequestState,
    RequestStatus,
    Waiting,
)
from controller.api.wire.status import HeldPlaceStatus
from controller.core.admission.placement import QueueReason, WaitingView, queue_reason
from controller.core.load.snapshot import InstanceSnapshot
from controller.core.migration.refusals import why
from controller.core.record.event_log import EventKind, LoggedEvent
from controller.core.record.request_record import ENDED, Match, RequestRecord
from controller.core.record.request_record import RequestState as CoreState
from controller.runtime.controller.cluster import ControllerProcess
from controller.runtime.controller.queries import Found

MAX_REFERENCE_CHARS = 256
MAX_MATCHES = 200
"""How many requests may match a reference: more than one client's request can have choices."""
MAX_REQUESTS = 10_000
_LISTED_MATCHES = 10
_ON_AN_INSTANCE = (CoreState.RUNNING, CoreState.EVICTED, CoreState.WAITING)
_WHILE_HELD = frozenset({EventKind.INSTANCE_RESERVED, EventKind.OVERTAKEN, EventKind.ROOM_NOT_MADE})
_QUEUE_WORDS = {
    QueueReason.BATCH_FULL: "as many requests run there as the batch has places",
    QueueReason.MEMORY: "it needs more blocks than are free in all instances together",
    QueueReason.FRAGMENTED: "it needs more blocks than are free there; all together have enough",
    QueueReason.NEXT_STEP: "there is room: its turn comes within the next steps",
}


class RequestsQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    instance: str | None = Field(default=None, max_length=64)
    state: tuple[RequestState, ...] = ()
    limit: int = Field(default=1000, ge=1, le=MAX_REQUESTS)
    movable: bool = False
    """Whether to ask the instances, between two steps, which requests could move now."""


class NameQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    any_choice: bool = False
    """Whether any choice of a client's request will do (see `find_record`)."""


async def list_requests(controller: ControllerProcess, query: RequestsQuery) -> RequestList:
    """Lists requests. Held requests are listed as waiting, in their order. Raises ApiError if the
    instance is unknown."""
    known = [member.member_id for member in controller.roster.instances()]
    if query.instance is not None and query.instance not in known:
        raise no_such_instance(query.instance)
    found = await _matching(controller, query)
    refusals = await refusals_of(controller, found.requests) if query.movable else {}
    now_s, view = time.time(), controller.scheduler.waiting_view()
    listed = [
        request_model(
            record,
            now_s,
            refusals.get(record.request_id),
            place_of(view, record),
            _snapshot(controller, record),
        )
        for record in found.requests
    ]
    listed.sort(key=listed_at)
    return RequestList(
        requests=tuple(listed[: query.limit]),
        num_matching=found.num_matching,
        silent_frontends=(*found.silent, *_absent_frontends(controller)),
    )


async def _matching(controller: ControllerProcess, query: RequestsQuery) -> Found:
    """The requests that match the query. Frontends do not know which requests the controller holds:
    to them these requests are dispatching. So if only waiting or only dispatching requests are
    wanted, all dispatching requests are asked for, and are sorted out here."""
    frontends, states = _serving_frontends(controller), {CoreState(s.value) for s in query.state}
    both = {CoreState.WAITING, CoreState.DISPATCHING}
    is_sorted = len(states & both) != 1 or query.instance is not None
    told = states if is_sorted else states - {CoreState.DISPATCHING}
    ask = controller.queries.requests
    asked = []
    if told or not states:
        asked.append(
            ask(
                frontends,
                instance_id=query.instance,
                states=tuple(sorted(told)),
                max_requests=query.limit,
            )
        )
    if not is_sorted:
        asked.append(ask(frontends, states=(CoreState.DISPATCHING,), max_requests=MAX_REQUESTS))
    # All are asked at once, so that frontends that do not answer are waited for only once.
    answers = await asyncio.gather(*asked)
    found = answers[0] if told or not states else Found((), 0, ())
    if is_sorted:
        return found
    others = answers[-1]
    view = controller.scheduler.waiting_view()
    held_wanted = CoreState.WAITING in states
    wanted = [r for r in others.requests if (place_of(view, r) is not None) == held_wanted]
    return Found(
        (*found.requests, *wanted),
        found.num_matching + len(wanted),
        tuple(sorted({*found.silent, *others.silent})),
    )


def listed_at(item: RequestStatus) -> tuple[int, int]:
    """The place of a request in a list. Held requests come behind requests that wait on instances;
    others stay in their order."""
    is_live = item.state in LIVE_STATES
    place = LIVE_STATES.index(item.state) if is_live else len(LIVE_STATES)
    return (place, item.held.place if item.held else 0)


def place_of(view: WaitingView, record: RequestRecord) -> HeldPlaceStatus | None:
    """The place of a request that the controller holds; None if the controller does not hold it."""
    if record.state is not CoreState.DISPATCHING:
        return None
    found = view.find((record.frontend_id, record.request_id))
    return None if found is None else place_status(found)


async def find_request(controller: ControllerProcess, reference: str) -> RequestDetail:
    """Returns the request with its history, and whether it could move. Raises ApiError."""
    record = await find_record(controller, reference)
    refusals = await refusals_of(controller, (record,))
    view = controller.scheduler.waiting_view()
    refusal, held = refusals.get(record.request_id), place_of(view, record)
    return request_detail(record, time.time(), refusal, held, _snapshot(controller, record))


async def name_request(
    controller: ControllerProcess, reference: str, query: NameQuery
) -> RequestName:
    """Returns the whole id of the request that a reference names. Raises ApiError."""
    record = await find_record(controller, reference, any_choice=query.any_choice)
    return RequestName(request_id=record.request_id, client_id=record.client_request_id)


async def find_for_order(controller: ControllerProcess, request_id: str) -> RequestRecord:
    """Finds the request of an order. Only its whole id is accepted: a shorter reference may name
    another request when the order arrives, as requests come and go, and an order that was carried
    out on the wrong request cannot be taken back. Raises ApiError."""
    _check_length(request_id)
    found = await controller.queries.requests(
        _serving_frontends(controller), matching=request_id, max_requests=1
    )
    # The best match comes first, and the whole id is the best possible match.
    if found.requests and found.requests[0].match(request_id) is Match.ID:
        return found.requests[0]
    silent = f" (no answer from {', '.join(found.silent)})" if found.silent else ""
    raise ApiError(
        404,
        "no_such_request",
        f"there is no request with the id {request_id!r}{silent}; an order names its request by"
        " the whole id",
        "llumctl requests -o name",
    )


async def find_by_ids(controller: ControllerProcess, request_ids: Iterable[str]) -> Found:
    """Finds requests by their whole ids, if they live or their frontends still remember them. Each
    frontend is asked once for all of them."""
    wanted = frozenset(request_ids)
    if not wanted:
        return Found((), 0, ())
    return await controller.queries.requests(_serving_frontends(controller), request_ids=wanted)


def _check_length(reference: str) -> None:
    if not reference or len(reference) > MAX_REFERENCE_CHARS:
        raise ApiError(
            400,
            "bad_request",
            "a request is named by an id or the beginning of one,"
            f" of up to {MAX_REFERENCE_CHARS} characters",
            "llumctl requests",
        )


async def find_record(
    controller: ControllerProcess, reference: str, *, any_choice: bool = False
) -> RequestRecord:
    """Finds a request to look at. `reference`: its id, the client's id, the beginning of an id, or
    an id as tables shorten it. If several requests match equally well and only one of them is live,
    that one is meant, because clients use the same ids again. `any_choice`: if the live requests
    are choices of one client's request, any of them will do. Raises ApiError."""
    _check_length(reference)
    found = await controller.queries.requests(
        _serving_frontends(controller),
        matching=reference,
        history=True,
        max_requests=MAX_MATCHES,
    )
    # The best matches come first, and live requests first among them.
    best = found.requests[0].match(reference) if found.requests else Match.NONE
    matches = [record for record in found.requests if record.match(reference) is best]
    live = [record for record in matches if record.state not in ENDED]
    if len(matches) == 1 or len(live) == 1:
        return (live or matches)[0]
    one_client = (
        len({(record.frontend_id, record.parent_id or record.request_id) for record in live}) == 1
    )
    if any_choice and one_client and len(found.requests) < MAX_MATCHES:
        return live[0]
    if matches:
        # More requests may begin with the reference than the answer lists.
        num = found.num_matching if best >= Match.BEGINNING else len(matches)
        ids = ", ".join(record.request_id for record in matches[:_LISTED_MATCHES])
        more = f" and {num - _LISTED_MATCHES} more" if num > _LISTED_MATCHES else ""
        raise ApiError(
            409,
            "ambiguous",
            f"{reference!r} names {num} sequences: {ids}{more}",
            f"llumctl requests {matches[0].request_id}",
        )
    silent = f" (no answer from {', '.join(found.silent)})" if found.silent else ""
    raise ApiError(
        404, "no_such_request", f"there is no request {reference!r}{silent}", "llumctl requests"
    )


async def refusals_of(
    controller: ControllerProcess, records: Iterable[RequestRecord]
) -> Mapping[str, str]:
    """Why each request cannot move; an empty text if it can. Requests whose instance did not answer
    are left out."""
    by_instance: dict[str, list[str]] = {}
    for record in records:
        member = controller.roster.members.get(record.instance_id or "")
        if record.state in _ON_AN_INSTANCE and member is not None and member.serving:
            by_instance.setdefault(member.member_id, []).append(record.request_id)
    answers = await controller.queries.refusals(by_instance)
    return {
        request_id: answer.get(request_id, "")
        for instance_id, answer in answers.items()
        for request_id in by_instance[instance_id]
    }


def _serving_frontends(controller: ControllerProcess) -> list[str]:
    return [member.member_id for member in controller.roster.frontends() if member.serving]


def _absent_frontends(controller: ControllerProcess) -> list[str]:
    """Frontends that served before and do not serve now. Their requests are in no list."""
    return [m.member_id for m in controller.roster.frontends() if m.incarnation and not m.serving]


async def explain_request(controller: ControllerProcess, reference: str) -> Explanation:
    """Explains a request that lives or that its frontend still remembers. Raises ApiError."""
    record = await find_record(controller, reference)
    refusal = (await refusals_of(controller, (record,))).get(record.request_id)
    history = [event_model(event) for event in _history(controller, record)]
    held = place_of(controller.scheduler.waiting_view(), record)
    return Explanation(
        request=request_model(record, time.time(), refusal, held, _snapshot(controller, record)),
        steps=explain(history, record.num_forgotten),
        waiting=held_back(held) if held is not None else _waiting(controller, record),
        why_not_movable=why(refusal) if refusal else "",
        could_move_to=_could_move_to(controller, record) if refusal == "" else None,
    )


def _history(controller: ControllerProcess, record: RequestRecord) -> Sequence[LoggedEvent]:
    """The events of the request that its frontend knows and, with late binding, the events that the
    controller recorded while it held the request. If the frontend has forgotten some events, only
    the frontend's events are used."""
    if controller.scheduler.placement is None or record.num_forgotten:
        return record.history
    own = controller.journal.log.about(record.request_id, _WHILE_HELD)
    return sorted((*record.history, *own), key=lambda event: event.time_s)


def _waiting(controller: ControllerProcess, record: RequestRecord) -> Waiting | None:
    if record.state is CoreState.DISPATCHING:
        return Waiting(code="dispatching", why="the controller is being asked for an instance")
    if record.state not in (CoreState.WAITING, CoreState.EVICTED):
        return None
    snapshot = _snapshot(controller, record)
    if snapshot is None or snapshot.queue_head is None:
        return None  # the instance has not reported the request yet
    head = snapshot.queue_head
    if head.request_id != record.request_id:
        return Waiting(
            code="behind",
            why=f"others are before it in the queue of {snapshot.instance_id}",
            figures={"num_waiting_reqs": snapshot.num_queued},
        )
    cluster = controller.scheduler.schedulable_snapshots()
    reason = queue_reason(snapshot, cluster)
    assert reason is not None
    return Waiting(
        code=str(reason),
        why=_QUEUE_WORDS[reason],
        figures={
            "needed_blocks": head.demand_blocks,
            "free_blocks": max(0, snapshot.admissible_blocks),
            "cluster_free_blocks": sum(max(0, each.admissible_blocks) for each in cluster),
            "num_running_reqs": snapshot.num_running,
        },
    )


def _could_move_to(controller: ControllerProcess, record: RequestRecord) -> str | None:
    snapshot = _snapshot(controller, record)
    if snapshot is None:
        return None
    num_blocks = held_blocks(record, snapshot)
    return controller.operator_moves.choose(snapshot.instance_id, num_blocks)


def _snapshot(controller: ControllerProcess, record: RequestRecord) -> InstanceSnapshot | None:
    """The last status of the request's instance, if the process that sent it still runs."""
    known = controller.scheduler.instances.get(record.instance_id or "")
    return None if known is None or known.incarnation != record.incarnation else known.snapshot


def held_blocks(record: RequestRecord, snapshot: InstanceSnapshot) -> int:
    """The number of blocks that the request holds; a waiting request holds none."""
    if record.state is not CoreState.RUNNING:
        return 0
    return snapshot.demand_for(record.num_prompt_tokens + record.num_output_tokens)


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
    snapshot: InstanceSnapshot | None = None,
) -> RequestStatus:
    """The wire model of a request. `now_s`: seconds since the epoch. `refusal`: why the request
    cannot move now; empty if it can, None if its instance did not say. `held`: the request's place
    at the controller, if the controller holds it. `snapshot`: the last status of its instance."""
    first_s, last_s = record.first_token_time_s, record.last_token_time_s
    ended = record.end_time_s is not None
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
        last_token_age_s=None if ended or last_s is None else round(max(0.0, now_s - last_s), 4),
        num_prompt_tokens=record.num_prompt_tokens,
        num_output_tokens=record.num_output_tokens,
        num_blocks=None if snapshot is None else held_blocks(record, snapshot),
        num_evictions=record.num_evictions,
        num_continued=record.num_continued,
        num_moves=record.num_moves,
        num_replays=record.num_replays,
        not_replayable=record.not_replayable,
        adapter=record.adapter,
        model=record.model,
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
    snapshot: InstanceSnapshot | None = None,
) -> RequestDetail:
    history = tuple(event_model(event) for event in record.history)
    status = request_model(record, now_s, refusal, held, snapshot)
    return RequestDetail(**dict(status), history=history, num_forgotten=record.num_forgotten)
