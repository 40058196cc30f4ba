"""Takes operations back that the audit log has, for the command line and the dashboard alike."""

from controller.api.client import ControlClient
from controller.api.errors import RefusedError
from controller.api.text.quantities import setting_value
from controller.api.text.settings import assignments
from controller.api.wire.audit import OperationEntry, OperationList, Undo
from controller.api.wire.moves import MigrateRequest
from controller.api.wire.operations import (
    DrainRequest,
    PriorityRequest,
    ScaleRequest,
    UndrainRequest,
)
from controller.api.wire.rolling import RollingStopRequest
from controller.api.wire.settings import SettingsPatch

LIST = "llumctl undo --list"
MAX_LISTED = 200
"""Operations among which one is looked for by its id, or the last one that was done: before it may
be many that failed."""

Inverse = (
    UndrainRequest
    | DrainRequest
    | RollingStopRequest
    | ScaleRequest
    | PriorityRequest
    | MigrateRequest
    | SettingsPatch
)


def chosen(done: OperationList, entry_id: str = "") -> OperationEntry:
    """The operation to take back: the last one that was done, or the named one. Raises RefusedError
    for one that cannot be taken back now."""
    found = [
        each for each in done.operations if each.id == entry_id or (not entry_id and each.was_done)
    ]
    if not found:
        what = f"there is no operation {entry_id[:60]!r}" if entry_id else "nobody did anything"
        raise RefusedError(f"{what} among the last ones", LIST)
    entry = found[0]
    if entry.why_not:
        actions = "; ".join(entry.actions)
        raise RefusedError(f"{entry.id} ({actions}) cannot be undone: {entry.why_not}", LIST)
    return entry


def words(undo: Undo) -> str:
    """`set migration.max_moves=4`: what takes it back, as it can be typed after `llumctl`."""
    if undo.kind in ("undrain", "drain"):
        return f"{undo.kind} {undo.target}"
    if undo.kind == "stop_rolling":
        return "restart --stop"
    if undo.kind == "migrate":
        return f"migrate {undo.target} --to {undo.previous['instance']}"
    if undo.kind == "set":
        return f"set {assignments(undo.previous.items())}"
    values = " ".join(setting_value(value) for value in undo.previous.values())
    return " ".join(filter(None, (undo.kind, undo.target, values)))


def reason_of(entry: OperationEntry) -> str:
    """The reason of an order that takes the operation back."""
    return f"undo of {entry.id}"


def inverse(entry: OperationEntry, revision: int, reason: str) -> Inverse:
    """The order that takes the operation back. It is refused if the cluster's spec has another
    revision by then: what was found to be undoable is undone, or nothing."""
    undo, reason = entry.undo, reason or reason_of(entry)
    assert undo is not None
    match undo.kind:
        case "undrain":
            return UndrainRequest(reason=reason, if_revision=revision)
        case "drain":
            return DrainRequest(reason=reason, if_revision=revision)
        case "stop_rolling":
            return RollingStopRequest(reason=reason, if_revision=revision)
        case "scale":
            target = int(undo.previous["instances"] or 0)
            return ScaleRequest(target=target, reason=reason, if_revision=revision)
        case "priority":
            return PriorityRequest(level=str(undo.previous["level"]), reason=reason)
        case "migrate":
            return MigrateRequest(to=str(undo.previous["instance"]), reason=reason)
        case "set":
            return SettingsPatch(changes=undo.previous, reason=reason, if_revision=revision)


def give(client: ControlClient, target: str, order: Inverse) -> None:
    """Sends what `inverse` made; `target` is the operation's. Raises LlumctlError."""
    match order:
        case UndrainRequest():
            client.undrain(target, order)
        case DrainRequest():
            client.drain(target, order)
        case RollingStopRequest():
            client.stop_rolling(order)
        case ScaleRequest():
            client.scale(order)
        case PriorityRequest():
            client.set_priority(target, order)
        case MigrateRequest():
            client.migrate(target, order)
        case SettingsPatch():
            client.change_settings(order)
