"""The order to empty an instance that will be ended, and to remove it then."""

from dataclasses import dataclass, field
from typing import ClassVar

from controller.api.client import ControlClient
from controller.api.errors import LastInstanceError
from controller.api.text import drains as words
from controller.api.text.quantities import duration
from controller.api.wire.operations import DrainReport, EvacuateRequest
from tui.actions.drains import emptying
from tui.actions.order import Outcome, Plan
from tui.actions.progress import awaited
from tui.actions.spec_order import SpecOrder


@dataclass(frozen=True, slots=True)
class Evacuate(SpecOrder):
    instance_id: str
    wanted: EvacuateRequest = field(default_factory=EvacuateRequest)
    action_id: ClassVar[str] = "evacuate"
    word: ClassVar[str] = "Evacuate"

    @property
    def title(self) -> str:
        return f"evacuate {self.instance_id}"

    @property
    def command(self) -> str:
        command = f"llumctl evacuate {self.instance_id}"
        return f"{command} --force" if self.wanted.force else command

    @property
    def question(self) -> str:
        return f"Evacuate {self.instance_id}?"

    def plan(self, client: ControlClient) -> Plan:
        """The last instance is evacuated only by its name."""
        name, asked = "", EvacuateRequest(dry_run=True)
        try:
            report = client.evacuate(self.instance_id, asked)
        except LastInstanceError:
            name = self.instance_id
            report = client.evacuate(self.instance_id, asked.model_copy(update={"force": True}))
        summary, *rest = emptying(report, client.status())
        goes = f"after {duration(asked.within_s)} at the latest it is removed, with what is left"
        wanted = EvacuateRequest(force=bool(name), if_revision=report.revision)
        return Plan((summary, goes, *rest), Evacuate(self.instance_id, wanted), name)

    def post(self, client: ControlClient, key: str) -> DrainReport:
        return client.evacuate(self.instance_id, self.wanted, key=key)

    def told(self, client: ControlClient, key: str) -> DrainReport:
        return client.answer(DrainReport, key)

    def outcome(self, report: DrainReport) -> Outcome:
        """It is taken back as a drain is, while the instance is there."""
        text = words.progress(report).removeprefix(f"{self.instance_id}: ")
        return Outcome(text, can_undo=report.changes, awaits=awaited(report))
