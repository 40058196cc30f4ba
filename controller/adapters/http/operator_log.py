"""Records what operators do: in the audit log before and after each operation, and in the
cluster's events."""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from starlette.types import Scope

from controller.adapters.http.errors import ApiError
from controller.api.errors import LlumctlError
from controller.api.state.audit import AuditLog, one_short_line
from controller.api.wire.operations import Undo
from controller.runtime.controller.journal import Journal
from controller.runtime.controller.operations.operated_cluster import RevisionConflictError

log = logging.getLogger(__name__)

# Whoever holds the view token may send calls that are refused, as often as he likes; each entry
# takes the disk's time and room, and pushes an event out of the log.
REFUSALS_EVERY_S = 600.0

Deed = tuple[str, str]
"""(action, target)."""


@dataclass(slots=True)
class Operation:
    """`outcome`, and what takes the operation back, may be set until it is over."""

    cause_id: str
    actor: str
    outcome: str = "done"
    undo: Undo | None = None


class OperatorLog:
    def __init__(self, audit: AuditLog, journal: Journal) -> None:
        self._audit = audit
        self._journal = journal
        self._last_refused = ("", "", "")
        """(action, actor, code)."""
        self._num_refused = 0
        """Refused calls that no entry tells of yet."""
        self._next_refusals: asyncio.TimerHandle | None = None
        self._telling: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def operation(
        self, scope: Scope, *deeds: Deed, reason: str = "", lasts: bool = False
    ) -> AsyncIterator[Operation]:
        """Records the `with` block as begun, and afterwards with its outcome, which is a failure if
        the block raises. `lasts`: the beginning is an event too.

        Raises ApiError if the beginning cannot be recorded: nothing is done then.
        """
        operation = Operation(f"op-{secrets.token_hex(4)}", actor_of(scope))
        await self._write(operation, deeds, "begun", reason)
        if lasts:
            self._tell(operation, deeds, "begun", reason)
        try:
            yield operation
        except BaseException as error:
            operation.outcome = _failure(error)
            raise
        finally:
            self._tell(operation, deeds, operation.outcome, reason)
            await self._write_end(operation, deeds, reason)

    async def note(
        self, scope: Scope, action: str, target: str, outcome: str, reason: str = ""
    ) -> None:
        """Records an operation that is over at once. Raises ApiError as `operation` does."""
        operation = Operation(f"op-{secrets.token_hex(4)}", actor_of(scope))
        deeds = ((action, target),)
        await self._write(operation, deeds, outcome, reason)
        self._tell(operation, deeds, outcome, reason)

    async def refused(self, scope: Scope, code: str) -> None:
        """Records a call that its token does not allow: the first one now, and those that follow
        within ten minutes in one entry at their end. Does not raise, as the call is refused in any
        case, also if the disk is full."""
        action = one_short_line(f"{scope['method']} {scope['path']}")
        self._last_refused = action, actor_of(scope), code
        self._num_refused += 1
        if self._next_refusals is None:
            self._wait_for_refusals()
            await self._tell_refusals()

    async def close(self) -> None:
        """Records what was refused since the last entry."""
        if self._next_refusals is not None:
            self._next_refusals.cancel()
        if self._num_refused:
            await self._tell_refusals()

    def _wait_for_refusals(self) -> None:
        loop = asyncio.get_running_loop()
        self._next_refusals = loop.call_later(REFUSALS_EVERY_S, self._sum_refusals_up)

    def _sum_refusals_up(self) -> None:
        self._next_refusals = None
        if self._num_refused:
            self._wait_for_refusals()
            self._telling = asyncio.get_running_loop().create_task(self._tell_refusals())

    async def _tell_refusals(self) -> None:
        num, self._num_refused = self._num_refused, 0
        action, actor, code = self._last_refused
        if num > 1:
            action = f"{num} calls, the last of them {action}"
        operation = Operation(f"op-{secrets.token_hex(4)}", actor)
        deeds = ((action, ""),)
        self._tell(operation, deeds, f"refused: {code}", "")
        try:
            await self._write(operation, deeds, f"refused: {code}", "")
        except ApiError as error:
            log.error("%s: a refused call is not in the audit log: %s", operation.cause_id, error)

    async def _write(
        self,
        operation: Operation,
        deeds: tuple[Deed, ...],
        outcome: str,
        reason: str,
        undo: Undo | None = None,
    ) -> None:
        known = {} if undo is None else {"undo": undo.model_dump(mode="json")}
        try:
            await asyncio.to_thread(
                self._audit.write_all,
                deeds,
                actor=operation.actor,
                outcome=outcome,
                cause_id=operation.cause_id,
                reason=reason,
                **known,
            )
        except LlumctlError as error:
            raise ApiError(500, "not_audited", f"{error.message}; nothing was done") from error

    async def _write_end(self, operation: Operation, deeds: tuple[Deed, ...], reason: str) -> None:
        """Does not raise: the operation has happened, and its caller gets the answer, also if the
        disk is full."""
        try:
            failed = operation.outcome.startswith(("failed", "unknown"))
            undo = None if failed else operation.undo
            await self._write(operation, deeds, operation.outcome, reason, undo)
        except ApiError as error:
            log.error("%s: how it ended is not in the audit log: %s", operation.cause_id, error)

    def _tell(
        self, operation: Operation, deeds: tuple[Deed, ...], outcome: str, reason: str
    ) -> None:
        because = f": {one_short_line(reason)}" if reason else ""
        for action, _ in deeds:
            self._journal.operator(
                operation.cause_id, operation.actor, f"{action} ({outcome}){because}"
            )


def actor_of(scope: Scope) -> str:
    """The caller's name, which is not checked, and address."""
    claimed = dict(scope["headers"]).get(b"x-llumctl-actor", b"someone").decode("latin-1")
    client = scope.get("client")
    return one_short_line(f"{claimed} from {client[0] if client else 'here'}")


def _failure(error: BaseException) -> str:
    if isinstance(error, ApiError):
        # An operation that was not over in time goes on.
        return f"{'unknown' if error.status == 504 else 'failed'}: {error.body.code}"
    if isinstance(error, RevisionConflictError):
        return "failed: revision_conflict"
    if isinstance(error, LlumctlError):
        return f"failed: {error.message}"
    if isinstance(error, asyncio.CancelledError):
        return "unknown: the controller stopped"
    return "failed: internal"
