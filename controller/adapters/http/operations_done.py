"""What operators did lately, out of the audit log, and whether each could be undone now."""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from controller.adapters.http.perform import Handler, Operated
from controller.adapters.http.requests import find_by_ids
from controller.api.operations.order import Kind
from controller.api.operations.table import ORDERS
from controller.api.state.audit import AuditLog
from controller.api.wire.operations import OperationEntry, OperationList
from controller.runtime.controller.queries import Found

NOT_UNDOABLE = "it cannot be undone"


class OperationsQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    limit: int = Field(default=20, ge=1, le=200)


async def operations_done(
    operated: Operated,
    handlers: Mapping[str, type[Handler[Any, Any]]],
    audit: AuditLog,
    *,
    since_s: float,
    limit: int,
) -> OperationList:
    """`handlers`: by kind. `since_s`: when the cluster was started, as the audit log outlives
    it."""
    found = [
        each
        for each in _entries(audit.tail())
        # A call that was refused is nothing that an operator did, and there may be many.
        if each.time_s >= since_s and not each.outcome.startswith("refused: ")
    ][:limit]
    undos = [each.undo for each in found if each.undo is not None]
    ids = [each.target for each in undos if ORDERS[each.kind].about is Kind.REQUEST]
    known = await find_by_ids(operated.controller, ids)
    revision = operated.controller.keeper.spec.revision
    judged = [
        each.model_copy(update={"why_not": _why_not(each, operated, handlers, known)})
        for each in found
    ]
    return OperationList(operations=tuple(judged), revision=revision)


def _entries(lines: Iterable[Mapping[str, Any]]) -> list[OperationEntry]:
    """One entry for each operation, by its last lines: it may have several deeds."""
    found: dict[str, OperationEntry] = {}
    for line in lines:
        try:
            entry = OperationEntry(
                id=line["cause_id"],
                time_s=line["time_s"],
                actor=line["actor"],
                actions=(line["action"],),
                reason=line["reason"],
                outcome=line["outcome"],
                undo=line.get("undo"),
            )
        except (KeyError, ValidationError):
            continue  # cut by a full disk, or of another llumctl
        before = found.pop(entry.id, None)
        if before is not None and before.outcome == entry.outcome:
            entry = entry.model_copy(update={"actions": before.actions + entry.actions})
        found[entry.id] = entry
    return list(reversed(found.values()))


def _why_not(
    entry: OperationEntry,
    operated: Operated,
    handlers: Mapping[str, type[Handler[Any, Any]]],
    known: Found,
) -> str:
    if entry.outcome == "begun":
        return "it is not over"
    if not entry.was_done:
        return "it was not done"
    if entry.undo is None:
        return NOT_UNDOABLE
    return handlers[entry.undo.kind].why_not(operated, entry.id, entry.undo, known)
