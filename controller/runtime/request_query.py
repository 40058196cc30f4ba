"""Asking the frontends about their requests: the controller keeps no request table."""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from controller.core.request_record import RequestRecord, RequestState, found_order
from controller.runtime.messages import RequestsAnswered, RequestsAsked

# A frontend answers within milliseconds; one that is stuck must not stop the listing.
PATIENCE_S = 2.0


@dataclass(frozen=True, slots=True)
class Found:
    """`silent`: frontends that did not answer in time."""

    requests: tuple[RequestRecord, ...]
    num_matching: int
    silent: tuple[str, ...]


@dataclass(slots=True)
class _Pending:
    silent: set[str]
    answers: list[RequestsAnswered]
    complete: asyncio.Event


class RequestQueries:
    def __init__(self, send: Callable[[str, RequestsAsked], None]) -> None:
        self._send = send
        self._pending: dict[str, _Pending] = {}
        self._ids = itertools.count()

    async def ask(
        self,
        frontend_ids: Sequence[str],
        *,
        instance_id: str | None = None,
        states: tuple[RequestState, ...] = (),
        matching: str | None = None,
        history: bool = False,
        max_requests: int = 1000,
    ) -> Found:
        """Those that match at all frontends: the best matches first, else in listing order."""
        query_id = f"q-{next(self._ids)}"
        pending = self._pending[query_id] = _Pending(set(frontend_ids), [], asyncio.Event())
        asked = RequestsAsked(query_id, instance_id, states, matching, history, max_requests)
        try:
            for frontend_id in frontend_ids:
                self._send(frontend_id, asked)
            if frontend_ids:
                await asyncio.wait_for(pending.complete.wait(), PATIENCE_S)
        except TimeoutError:
            pass  # said by `silent`
        finally:
            del self._pending[query_id]
        requests = sorted(
            (record for answer in pending.answers for record in answer.requests),
            key=partial(found_order, matching),
        )
        return Found(
            tuple(requests[:max_requests]),
            sum(answer.num_matching for answer in pending.answers),
            tuple(sorted(pending.silent)),
        )

    def answered(self, answer: RequestsAnswered) -> None:
        pending = self._pending.get(answer.query_id)
        if pending is None or answer.frontend_id not in pending.silent:
            return
        pending.silent.discard(answer.frontend_id)
        pending.answers.append(answer)
        if not pending.silent:
            pending.complete.set()
