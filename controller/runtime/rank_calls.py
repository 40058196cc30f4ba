"""Telling a request's frontend that its priority changes, and waiting for what it says."""

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass

from controller.runtime.steer_messages import RankChangeAnswered, RankChangeAsked

# A frontend answers within milliseconds; its event loop may be held up by a large body.
PATIENCE_S = 2.0


class FrontendDiedError(Exception):
    """It will not answer any more, and its requests ended with it."""


@dataclass(frozen=True, slots=True)
class _Pending:
    frontend_id: str
    answer: asyncio.Future[RankChangeAnswered]


class RankCalls:
    """`send` takes a frontend's id; `epoch` keeps apart what a controller before this one asked."""

    def __init__(self, send: Callable[[str, RankChangeAsked], None], epoch: str) -> None:
        self._send = send
        self._epoch = epoch
        self._pending: dict[str, _Pending] = {}
        self._query_ids = itertools.count()

    async def change(
        self,
        frontend_id: str,
        request_id: str,
        rank: int,
        *,
        cause_id: str = "",
        actor: str = "",
        reason: str = "",
        dry_run: bool = False,
    ) -> RankChangeAnswered:
        """Raises TimeoutError (it may still be changed) and FrontendDiedError."""
        query_id = f"{self._epoch}-{next(self._query_ids)}"
        asked = RankChangeAsked(query_id, request_id, rank, cause_id, actor, reason, dry_run)
        answer: asyncio.Future[RankChangeAnswered] = asyncio.get_running_loop().create_future()
        self._pending[query_id] = _Pending(frontend_id, answer)
        try:
            self._send(frontend_id, asked)
            return await asyncio.wait_for(answer, PATIENCE_S)
        finally:
            del self._pending[query_id]

    def answered(self, answered: RankChangeAnswered) -> None:
        pending = self._pending.get(answered.query_id)
        if pending is not None and not pending.answer.done():
            pending.answer.set_result(answered)

    def frontend_died(self, frontend_id: str) -> None:
        for pending in self._pending.values():
            if pending.frontend_id == frontend_id and not pending.answer.done():
                pending.answer.set_exception(FrontendDiedError(frontend_id))
