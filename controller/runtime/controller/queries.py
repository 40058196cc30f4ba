"""The controller's questions to members, and their answers.

The controller keeps no request table: it asks the frontends, which know their requests, and the
instances, which know why a request cannot move."""

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from controller.core.record.request_record import RequestRecord, RequestState, found_order
from controller.runtime.messages.members import Message
from controller.runtime.messages.move_messages import (
    MoveAnswered,
    MoveRefusalAsked,
    MoveRefusalsAnswered,
)
from controller.runtime.messages.requests import (
    AbortAnswered,
    RankChangeAnswered,
    RequestsAnswered,
    RequestsAsked,
)

Answer = RequestsAnswered | RankChangeAnswered | AbortAnswered | MoveAnswered | MoveRefusalsAnswered

# A frontend answers within milliseconds, an instance between two steps. A large body may hold up
# the event loop of either of them.
PATIENCE_S = 2.0
# An instance answers between two steps, which take some hundred milliseconds with a long prefill.
REFUSALS_PATIENCE_S = 0.5


class MemberDiedError(Exception):
    """The member died and will not answer any more."""


@dataclass(frozen=True, slots=True)
class _Pending:
    member_id: str
    answer: asyncio.Future[Any]


@dataclass(frozen=True, slots=True)
class Found:
    """The requests that were found. `silent`: the frontends that did not answer in time, or
    died."""

    requests: tuple[RequestRecord, ...]
    num_matching: int
    silent: tuple[str, ...]


class MemberQueries:
    """Asks members. `send` takes a member's id. `epoch` distinguishes this controller's questions
    from those of its predecessor."""

    def __init__(self, send: Callable[[str, Message], None], epoch: str) -> None:
        self._send = send
        self._epoch = epoch
        self._pending: dict[str, _Pending] = {}
        self._query_ids = itertools.count()

    async def ask(
        self,
        member_id: str,
        asked: Callable[[str], Message],
        patience_s: float | None = None,
    ) -> Any:
        """Sends the question that `asked` makes of a query id, and returns its answer.
        `patience_s`: how long to wait; None means PATIENCE_S. Raises TimeoutError and
        MemberDiedError."""
        query_id = f"{self._epoch}-{next(self._query_ids)}"
        answer = asyncio.get_running_loop().create_future()
        self._pending[query_id] = _Pending(member_id, answer)
        try:
            self._send(member_id, asked(query_id))
            return await asyncio.wait_for(answer, PATIENCE_S if patience_s is None else patience_s)
        finally:
            del self._pending[query_id]

    async def requests(
        self,
        frontend_ids: Sequence[str],
        *,
        instance_id: str | None = None,
        states: tuple[RequestState, ...] = (),
        matching: str | None = None,
        request_ids: frozenset[str] | None = None,
        history: bool = False,
        max_requests: int = 1000,
    ) -> Found:
        """The requests of these frontends that match: the best matches first, and equally good ones
        in listing order."""
        asked = partial(
            RequestsAsked,
            instance_id=instance_id,
            states=states,
            matching=matching,
            request_ids=request_ids,
            history=history,
            max_requests=max_requests,
        )
        answers = await self._ask_each(dict.fromkeys(frontend_ids, asked))
        requests = sorted(
            (record for answer in answers.values() for record in answer.requests),
            key=partial(found_order, matching),
        )
        return Found(
            tuple(requests[:max_requests]),
            sum(answer.num_matching for answer in answers.values()),
            tuple(sorted(set(frontend_ids) - set(answers))),
        )

    async def refusals(
        self, request_ids: Mapping[str, Sequence[str]]
    ) -> dict[str, Mapping[str, str]]:
        """For each instance that answered: the codes of those requests that cannot move now, by
        request id."""
        asked = {
            instance_id: partial(MoveRefusalAsked, request_ids=tuple(ids))
            for instance_id, ids in request_ids.items()
        }
        answers = await self._ask_each(asked, REFUSALS_PATIENCE_S)
        return {instance_id: dict(answer.refusals) for instance_id, answer in answers.items()}

    async def _ask_each(
        self, asked: Mapping[str, Callable[[str], Message]], patience_s: float | None = None
    ) -> dict[str, Any]:
        """The answer of each member, by member id. Members that did not answer in time, or died,
        are missing."""

        async def answer_of(member_id: str) -> Any:
            try:
                return await self.ask(member_id, asked[member_id], patience_s)
            except (TimeoutError, MemberDiedError):
                return None

        answers = await asyncio.gather(*map(answer_of, asked))
        return {m: answer for m, answer in zip(asked, answers, strict=True) if answer is not None}

    def answered(self, answer: Answer) -> None:
        """Takes an answer. An answer for which nobody waits is dropped."""
        pending = self._pending.get(answer.query_id)
        if pending is not None and not pending.answer.done():
            pending.answer.set_result(answer)

    def member_died(self, member_id: str) -> None:
        for pending in self._pending.values():
            if pending.member_id == member_id and not pending.answer.done():
                pending.answer.set_exception(MemberDiedError(member_id))
