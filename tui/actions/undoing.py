"""Takes back an operation that the audit log has, whoever did it: the same that `llumctl undo`
does, with what it would do shown first."""

from dataclasses import dataclass, replace
from datetime import tzinfo
from typing import Any, assert_never

from controller.api import undo as undoing
from controller.api.client import ControlClient
from controller.api.text.quantities import time_of_day
from controller.api.wire.audit import Undo
from controller.api.wire.operations import ScaleRequest
from controller.api.wire.settings import SettingsPatch
from tui.actions.drains import Drain, Undrain
from tui.actions.order import Plan
from tui.actions.requests import Migrate, SetPriority
from tui.actions.rolling import StopRolling
from tui.actions.scaling import Scale
from tui.actions.tuning import SetSettings

Inverse = Undrain | Drain | Scale | StopRolling | SetPriority | Migrate | SetSettings


@dataclass(frozen=True, slots=True)
class TakeBack:
    """`entry_id`: of the operation; empty: the last one that was done, by anybody. What is found to
    be undoable at a revision is undone at that one, or nothing is."""

    entry_id: str = ""
    zone: tzinfo | None = None

    @property
    def question(self) -> str:
        return f"Take {self.entry_id} back?" if self.entry_id else "Take the last operation back?"

    @property
    def word(self) -> str:
        return "Undo"

    def plan(self, client: ControlClient) -> Plan:
        """Raises RefusedError that says why the operation cannot be taken back."""
        done = client.operations(undoing.MAX_LISTED)
        entry = undoing.chosen(done, self.entry_id)
        assert entry.undo is not None
        found = inverse(entry.undo).plan(client)
        because = f" ({entry.reason})" if entry.reason else ""
        lines = [f"{time_of_day(entry.time_s, self.zone)} {entry.actor}{because}:"]
        lines += [f"  {action}" for action in entry.actions]
        lines += [f"It is taken back by: {undoing.words(entry.undo)}", *found.lines]
        order = found.order
        if isinstance(order, Inverse):
            order = _because(order.at(done.revision), undoing.reason_of(entry))
        return Plan(tuple(lines), order, found.name_to_type)


def inverse(undo: Undo) -> Inverse:
    """The order that takes an operation back."""
    match undo.kind:
        case "undrain":
            return Undrain(undo.target)
        case "drain":
            return Drain(undo.target)
        case "stop_rolling":
            return StopRolling()
        case "scale":
            return Scale(ScaleRequest(target=int(undo.previous["instances"] or 0)))
        case "priority":
            return SetPriority(undo.target, str(undo.previous["level"]))
        case "migrate":
            return Migrate(undo.target, str(undo.previous["instance"]))
        case "set":
            return SetSettings(SettingsPatch(changes=undo.previous))
    assert_never(undo.kind)


def _because(order: Inverse, reason: str) -> Inverse:
    """The same order with the reason that the audit log is to have."""
    if isinstance(order, SetPriority | Migrate):
        return replace(order, reason=reason)
    wanted: Any = order.wanted.model_copy(update={"reason": reason})
    return replace(order, wanted=wanted)
