"""Requests on the control API: listed, and one of them with its history."""

import time

from pydantic import BaseModel, ConfigDict, Field

from controller.adapters.http.errors import ApiError
from controller.adapters.http.views import request_detail, request_model
from controller.api.models import RequestDetail, RequestList, RequestState
from controller.core.request_record import Match
from controller.core.request_record import RequestState as CoreState
from controller.runtime.controller import Controller

_LISTED_MATCHES = 10


class RequestsQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    instance: str | None = Field(None, max_length=64)
    state: tuple[RequestState, ...] = ()
    limit: int = Field(1000, ge=1, le=10_000)


async def list_requests(controller: Controller, query: RequestsQuery) -> RequestList:
    """Raises ApiError for an instance that there is not."""
    known = [member.member_id for member in controller.roster.instances()]
    if query.instance is not None and query.instance not in known:
        raise ApiError(
            404, "no_such_instance", f"there is no instance {query.instance!r}", "llumctl status"
        )
    found = await controller.queries.ask(
        _serving_frontends(controller),
        instance_id=query.instance,
        states=tuple(CoreState(state.value) for state in query.state),
        max_requests=query.limit,
    )
    now_s = time.time()
    return RequestList(
        requests=tuple(request_model(record, now_s) for record in found.requests),
        num_matching=found.num_matching,
        silent_frontends=(*found.silent, *_absent_frontends(controller)),
    )


async def find_request(controller: Controller, reference: str) -> RequestDetail:
    """By id, by the client's id, or by the beginning of an id. Raises ApiError."""
    if not reference or len(reference) > 256:
        raise ApiError(400, "bad_request", "a request is named by an id or the beginning of one")
    found = await controller.queries.ask(
        _serving_frontends(controller), matching=reference, history=True, max_requests=100
    )
    # The best come first.
    best = found.requests[0].match(reference) if found.requests else Match.NONE
    matches = [record for record in found.requests if record.match(reference) is best]
    if len(matches) == 1:
        return request_detail(matches[0], time.time())
    if matches:
        # Of those that begin with it there may be more than were asked for.
        num = found.num_matching if best is Match.BEGINNING else len(matches)
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


def _serving_frontends(controller: Controller) -> list[str]:
    return [member.member_id for member in controller.roster.frontends() if member.serving]


def _absent_frontends(controller: Controller) -> list[str]:
    """Those that served and do not now: what they had is not in any list."""
    return [m.member_id for m in controller.roster.frontends() if m.incarnation and not m.serving]
