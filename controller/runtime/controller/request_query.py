"""Asking the frontends about their requests: the controller keeps no request table."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from controller.core.record.request_record import RequestRecord, RequestState, found_order
from controller.runtime.controller.queries import MemberDiedError, MemberQueries
from controller.runtime.messages.requests import RequestsAnswered, RequestsAsked


@dataclass(frozen=True, slots=True)
class Found:
    """`silent`: frontends that did not answer in time, or died."""

    requests: tuple[RequestRecord, ...]
    num_matching: int
    silent: tuple[str, ...]


async def find_requests(
    queries: MemberQueries,
    frontend_ids: Sequence[str],
    *,
    instance_id: str | None = None,
    states: tuple[RequestState, ...] = (),
    matching: str | None = None,
    history: bool = False,
    max_requests: int = 1000,
) -> Found:
    """Those that match at all frontends: the best matches first, else in listing order."""

    async def ask(frontend_id: str) -> RequestsAnswered | None:
        try:
            answer: RequestsAnswered = await queries.ask(
                frontend_id,
                lambda query_id: RequestsAsked(
                    query_id, instance_id, states, matching, history, max_requests
                ),
            )
        except (TimeoutError, MemberDiedError):
            return None
        return answer

    answers = await asyncio.gather(*map(ask, frontend_ids))
    heard = [answer for answer in answers if answer is not None]
    requests = sorted(
        (record for answer in heard for record in answer.requests),
        key=partial(found_order, matching),
    )
    return Found(
        tuple(requests[:max_requests]),
        sum(answer.num_matching for answer in heard),
        tuple(sorted(i for i, a in zip(frontend_ids, answers, strict=True) if a is None)),
    )
