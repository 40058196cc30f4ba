"""Wire models of what operators did lately, and of what takes it back."""

from typing import Literal

from controller.api.wire.base import AnswerModel, WireModel
from controller.api.wire.settings import SettingValue


class Undo(WireModel):
    """The order that takes an operation back, and the state that the operation made: if there is
    another by now, somebody else changed it since."""

    kind: Literal["undrain", "drain", "scale", "priority", "migrate", "set", "stop_rolling"]
    target: str = ""
    """An instance, or a request."""
    previous: dict[str, SettingValue]
    """Values that come back, by key: those of settings, else of `instances`, `level` or
    `instance`."""
    made: dict[str, SettingValue]


class OperationEntry(WireModel):
    """One operation of the audit log. `why_not`: why it cannot be undone now; empty if it can."""

    id: str
    time_s: float
    actor: str
    actions: tuple[str, ...]
    reason: str = ""
    outcome: str
    undo: Undo | None = None
    why_not: str = ""

    @property
    def was_done(self) -> bool:
        return not self.outcome.startswith(("refused", "failed", "unknown"))


class OperationList(AnswerModel):
    """The last operations, the newest first. `revision`: the spec's, at which `why_not` holds."""

    operations: tuple[OperationEntry, ...]
    revision: int = 0
