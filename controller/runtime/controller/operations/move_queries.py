"""Asking instances about moves."""

import asyncio
from collections.abc import Mapping, Sequence

from controller.core.instance_ref import InstanceRef
from controller.runtime.controller.queries import MemberDiedError, MemberQueries
from controller.runtime.messages.moves import (
    MoveAnswered,
    MoveAsked,
    MoveRefusalAsked,
    MoveRefusalsAnswered,
)

# Between two steps, which take up to some hundred milliseconds with a long prefill.
REFUSALS_PATIENCE_S = 0.5


async def move(
    queries: MemberQueries,
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
    """Raises TimeoutError (the move goes on) and MemberDiedError."""
    answer: MoveAnswered = await queries.ask(
        source_id,
        lambda query_id: MoveAsked(
            query_id,
            migration_id,
            request_id,
            destination,
            reason,
            dry_run=False,
            verify_kv=verify_kv,
            max_stages=max_stages,
        ),
        patience_s,
    )
    return answer


async def plan(
    queries: MemberQueries, source_id: str, request_id: str, destination: InstanceRef
) -> MoveAnswered:
    """What a move would take. Raises TimeoutError and MemberDiedError."""
    answer: MoveAnswered = await queries.ask(
        source_id,
        lambda query_id: MoveAsked(query_id, "", request_id, destination, "", True, False),
    )
    return answer


async def refusals(
    queries: MemberQueries, request_ids: Mapping[str, Sequence[str]]
) -> dict[str, Mapping[str, str]]:
    """By instance that answered: the code of each request that cannot move now."""

    async def ask(instance_id: str, ids: Sequence[str]) -> Mapping[str, str] | None:
        try:
            answer: MoveRefusalsAnswered = await queries.ask(
                instance_id,
                lambda query_id: MoveRefusalAsked(query_id, tuple(ids)),
                REFUSALS_PATIENCE_S,
            )
        except (TimeoutError, MemberDiedError):
            return None
        return dict(answer.refusals)

    found = await asyncio.gather(*(ask(*item) for item in request_ids.items()))
    return {
        instance_id: answer
        for instance_id, answer in zip(request_ids, found, strict=True)
        if answer is not None
    }
