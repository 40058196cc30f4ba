"""The order to change settings of the running cluster."""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from controller.api.client import ControlClient
from controller.api.settings.from_text import value_of
from controller.api.text import settings as words
from controller.api.text.quantities import setting_value
from controller.api.wire.settings import SettingChanges, SettingsPatch
from tui.actions.order import Outcome, Plan
from tui.actions.spec_order import SpecOrder


@dataclass(frozen=True, slots=True)
class SetSettings(SpecOrder):
    wanted: SettingsPatch
    action_id: ClassVar[str] = "set"
    word: ClassVar[str] = "Set"

    @staticmethod
    def to(assignments: Iterable[str]) -> "SetSettings":
        """`migration.max_moves=2` each, as `llumctl set` takes them; the controller says whether
        there are such settings and values."""
        pairs = (each.partition("=") for each in assignments)
        changes = {key: value_of(key, value) for key, _, value in pairs}
        return SetSettings(SettingsPatch(changes=changes))

    @property
    def _assignments(self) -> str:
        return words.assignments(self.wanted.changes.items())

    @property
    def title(self) -> str:
        return f"set {self._assignments}"

    @property
    def command(self) -> str:
        each = (words.assignments([item]) for item in self.wanted.changes.items())
        return f"llumctl set {shlex.join(each)}"

    @property
    def question(self) -> str:
        return f"Set {self._assignments}?"

    def plan(self, client: ControlClient) -> Plan:
        found = client.change_settings(self.wanted.model_copy(update={"dry_run": True}))
        if not found.changes:
            return Plan(("it is so already",), None)
        return Plan((*_changes(found), *words.preview(found)), self.at(found.revision))

    def post(self, client: ControlClient, key: str) -> SettingChanges:
        return client.change_settings(self.wanted, key=key)

    def told(self, client: ControlClient, key: str) -> SettingChanges:
        return client.answer(SettingChanges, key)

    def outcome(self, report: SettingChanges) -> Outcome:
        if not report.changes:
            return Outcome("it was so already")
        before = ", ".join(setting_value(each.previous) for each in report.changes)
        return Outcome(f"was {before}", can_undo=True)


def _changes(report: SettingChanges) -> list[str]:
    return [
        f"{each.key}: {setting_value(each.previous)} -> {setting_value(each.value)}"
        for each in report.changes
    ]
