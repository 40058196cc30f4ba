"""Questions to members, and what they answer."""

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from controller.runtime.messages.message import Message
from controller.runtime.messages.moves import MoveAnswered, MoveRefusalsAnswered
from controller.runtime.messages.operations import RankChangeAnswered
from controller.runtime.messages.requests import RequestsAnswered

Answer = RequestsAnswered | RankChangeAnswered | MoveAnswered | MoveRefusalsAnswered

# A frontend answers within milliseconds, an instance between two steps; the event loop of either
# may be held up by a large body.
PATIENCE_S = 2.0


class MemberDiedError(Exception):
    """It will not answer any more."""


@dataclass(frozen=True, slots=True)
class _Pending:
    member_id: str
    answer: asyncio.Future[Any]


class MemberQueries:
    """`send` takes a member's id; `epoch` keeps apart what a controller before this one asked."""

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
        """What comes to `answered` for the query whose id `asked` gets. `patience_s`: None for the
        usual. Raises TimeoutError, and MemberDiedError."""
        query_id = f"{self._epoch}-{next(self._query_ids)}"
        answer = asyncio.get_running_loop().create_future()
        self._pending[query_id] = _Pending(member_id, answer)
        try:
            self._send(member_id, asked(query_id))
            return await asyncio.wait_for(answer, PATIENCE_S if patience_s is None else patience_s)
        finally:
            del self._pending[query_id]

    def answered(self, answer: Answer) -> None:
        """An answer that nobody waits for is no matter."""
        pending = self._pending.get(answer.query_id)
        if pending is not None and not pending.answer.done():
            pending.answer.set_result(answer)

    def member_died(self, member_id: str) -> None:
        for pending in self._pending.values():
            if pending.member_id == member_id and not pending.answer.done():
                pending.answer.set_exception(MemberDiedError(member_id))
