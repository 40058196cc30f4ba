"""What operators did lately, out of the audit log, and whether each could be undone now."""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from controller.adapters.http.live_settings import LiveSettings
from controller.adapters.http.requests import find_by_ids
from controller.api.state.audit import AuditLog
from controller.api.text.quantities import setting_value
from controller.api.wire.audit import OperationEntry, OperationList, Undo
from controller.core.record.request_record import ENDED
from controller.runtime.controller.controller import Controller
from controller.runtime.controller.queries import Found

NOT_UNDOABLE = "it cannot be undone"


class OperationsQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    limit: int = Field(default=20, ge=1, le=200)


async def operations_done(
    controller: Controller,
    audit: AuditLog,
    settings: LiveSettings,
    *,
    since_s: float,
    limit: int,
) -> OperationList:
    """`since_s`: when the cluster was started, as the audit log outlives it."""
    found = [
        each
        for each in _entries(audit.tail())
        # A call that was refused is nothing that an operator did, and there may be many.
        if each.time_s >= since_s and not each.outcome.startswith("refused: ")
    ][:limit]
    undos = [each.undo for each in found if each.undo is not None]
    ids = [each.target for each in undos if each.kind in ("priority", "migrate")]
    known = await find_by_ids(controller, ids)
    revision = controller.keeper.spec.revision
    judged = [
        each.model_copy(update={"why_not": _why_not(each, controller, settings, known)})
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
    entry: OperationEntry, controller: Controller, settings: LiveSettings, known: Found
) -> str:
    undo = entry.undo
    if entry.outcome == "begun":
        return "it is not over"
    if not entry.was_done:
        return "it was not done"
    if undo is None:
        return NOT_UNDOABLE
    spec = controller.keeper.spec
    match undo.kind:
        case "undrain":
            order = spec.drains.get(undo.target)
            same = order is not None and order.drain_id == entry.id
            return "" if same else f"{undo.target} is not being drained by it any more"
        case "drain":
            if undo.target not in spec.instance_ids:
                return f"{undo.target} is gone"
            return f"{undo.target} is being drained" if undo.target in spec.drains else ""
        case "stop_rolling":
            rolling = spec.rolling
            same = rolling is not None and rolling.goes and rolling.order_id == entry.id
            return "" if same else "that rolling restart is over"
        case "scale":
            planned = controller.scaling.num_planned
            same = planned == undo.made["instances"]
            return "" if same else f"{planned} instances are planned by now"
        case "priority" | "migrate":
            return _why_not_request(known, undo)
        case "set":
            return _why_not_set(settings, undo)


def _why_not_request(known: Found, undo: Undo) -> str:
    record = next((each for each in known.requests if each.request_id == undo.target), None)
    if record is None:
        silent = f": {', '.join(known.silent)} may know it and did not answer"
        return f"request {undo.target} is not known any more{silent if known.silent else ''}"
    if record.state in ENDED:
        return f"request {undo.target} has ended"
    if undo.kind == "migrate":
        same = record.instance_id == undo.made["instance"]
        return "" if same else f"it is on {record.instance_id or 'no instance'} by now"
    same = record.level == undo.made["level"]
    return "" if same else f"its priority is {record.level} by now"


def _why_not_set(settings: LiveSettings, undo: Undo) -> str:
    now = {each.key: each.value for each in settings.listed().settings}
    for key, made in undo.made.items():
        if now.get(key) != made:
            return f"{key} is {setting_value(now.get(key))} by now"
    return ""
