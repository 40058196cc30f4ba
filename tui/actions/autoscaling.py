"""The order for another mode of auto-scaling, and what it is chosen from."""

from dataclasses import dataclass
from typing import ClassVar

from controller.api.client import ControlClient
from controller.api.wire.autoscale import AutoscaleStatus
from controller.api.wire.settings import SettingChanges, SettingsPatch
from tui.actions.choice import Choice, Choices
from tui.actions.order import Outcome, Plan
from tui.actions.spec_order import SpecOrder

KEY = "autoscale.mode"
_MODES = {
    "off": "instances come and go by hand only",
    "dry-run": "it decides, and only says what it would do",
    "on": "instances come and go with the load",
}
MODES = tuple(_MODES)


@dataclass(frozen=True, slots=True)
class Autoscale(SpecOrder):
    wanted: SettingsPatch
    action_id: ClassVar[str] = "autoscale"
    word: ClassVar[str] = "Set"

    @staticmethod
    def to(mode: str) -> "Autoscale":
        return Autoscale(SettingsPatch(changes={KEY: mode}))

    @property
    def title(self) -> str:
        return f"autoscale {self.wanted.changes[KEY]}"

    @property
    def command(self) -> str:
        return f"llumctl {self.title}"

    @property
    def question(self) -> str:
        return f"Auto-scaling {self.wanted.changes[KEY]}?"

    def plan(self, client: ControlClient) -> Plan:
        """Needed for what takes a change back: else the mode is chosen and set at once."""
        found = client.change_settings(self.wanted.model_copy(update={"dry_run": True}))
        return Plan((self.outcome(found).text,), self.at(found.revision))

    def post(self, client: ControlClient, key: str) -> SettingChanges:
        return client.change_settings(self.wanted, key=key)

    def told(self, client: ControlClient, key: str) -> SettingChanges:
        return client.answer(SettingChanges, key)

    def outcome(self, report: SettingChanges) -> Outcome:
        facts = [f"was {each.previous}" for each in report.changes]
        if report.releases_autoscale:
            facts.append("an operator's scale held it, and does no more")
        return Outcome(", ".join(facts) or "it was so already", can_undo=bool(report.changes))


def modes(status: AutoscaleStatus, revision: int) -> Choices:
    """The present mode is named. `revision`: the cluster's that is on the screen."""
    return Choices(
        "Auto-scaling?",
        tuple(
            Choice(mode, text + _beside(mode, status), Autoscale.to(mode).at(revision))
            for mode, text in _MODES.items()
        ),
    )


def _beside(mode: str, status: AutoscaleStatus) -> str:
    if mode != status.mode:
        return ""
    return "; now" if status.held is None else "; now, and held by an operator's scale"
