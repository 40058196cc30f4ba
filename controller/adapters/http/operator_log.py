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
from controller.api.wire.audit import Undo
from controller.runtime.controller.journal import Journal
from controller.runtime.controller.operations.spec_keeper import RevisionConflictError

log = logging.getLogger(__name__)

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
