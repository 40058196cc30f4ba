"""Asking instances about moves, and waiting for what they say."""

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controller.core.instance_ref import InstanceRef
from controller.runtime.message import Message
from controller.runtime.move_messages import (
    MoveAnswered,
    MoveAsked,
    MoveRefusalAsked,
    MoveRefusalsAnswered,
)

# Between two steps, which take up to some hundred milliseconds with a long prefill.
REFUSALS_PATIENCE_S = 0.5
PLAN_PATIENCE_S = 2.0


class SourceDiedError(Exception):
    """The instance that was asked will not answer any more."""


@dataclass(frozen=True, slots=True)
class _Pending:
    instance_id: str
    answer: asyncio.Future[Any]


class MoveCalls:
    """`epoch` keeps apart what a controller before this one asked."""

    def __init__(self, send: Callable[[str, Message], None], epoch: str) -> None:
        self._send = send
        self._epoch = epoch
        self._pending: dict[str, _Pending] = {}
        self._query_ids = itertools.count()

    async def move(
        self,
        source_id: str,
        migration_id: str,
        request_id: str,
        destination: InstanceRef,
        reason: str,
        *,
        verify_kv: bool,
        max_stages: int,
        patience_s: float,
    ) -> MoveAnswered:
        """Raises TimeoutError (the move goes on) and SourceDiedError."""
        asked = MoveAsked(
            self._next_id(),
            migration_id,
            request_id,
            destination,
            reason,
            dry_run=False,
            verify_kv=verify_kv,
            max_stages=max_stages,
        )
        answer: MoveAnswered = await self._ask(source_id, asked.query_id, asked, patience_s)
        return answer

    async def plan(self, source_id: str, request_id: str, destination: InstanceRef) -> MoveAnswered:
        """Raises TimeoutError and SourceDiedError."""
        asked = MoveAsked(self._next_id(), "", request_id, destination, "", True, False)
        answer: MoveAnswered = await self._ask(source_id, asked.query_id, asked, PLAN_PATIENCE_S)
        return answer

    async def refusals(
        self, request_ids: Mapping[str, Sequence[str]]
    ) -> dict[str, Mapping[str, str]]:
        """By instance that answered: the code of each request that cannot move now."""

        async def ask(instance_id: str, ids: Sequence[str]) -> Mapping[str, str] | None:
            asked = MoveRefusalAsked(self._next_id(), tuple(ids))
            try:
                answer: MoveRefusalsAnswered = await self._ask(
                    instance_id, asked.query_id, asked, REFUSALS_PATIENCE_S
                )
            except (TimeoutError, SourceDiedError):
                return None
            return dict(answer.refusals)

        found = await asyncio.gather(*(ask(*item) for item in request_ids.items()))
        return {
            instance_id: answer
            for instance_id, answer in zip(request_ids, found, strict=True)
            if answer is not None
        }

    def answered(self, answer: MoveAnswered | MoveRefusalsAnswered) -> None:
        pending = self._pending.get(answer.query_id)
        if pending is not None and not pending.answer.done():
            pending.answer.set_result(answer)

    def instance_died(self, instance_id: str) -> None:
        for pending in self._pending.values():
            if pending.instance_id == instance_id and not pending.answer.done():
                pending.answer.set_exception(SourceDiedError(instance_id))

    async def _ask(self, instance_id: str, query_id: str, asked: Message, patience_s: float) -> Any:
        answer = asyncio.get_running_loop().create_future()
        self._pending[query_id] = _Pending(instance_id, answer)
        try:
            self._send(instance_id, asked)
            return await asyncio.wait_for(answer, patience_s)
        finally:
            del self._pending[query_id]

    def _next_id(self) -> str:
        return f"{self._epoch}-{next(self._query_ids)}"
