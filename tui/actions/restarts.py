"""The order to replace an instance's process, once its requests have moved."""

from dataclasses import dataclass, field
from typing import ClassVar

from controller.api.client import ControlClient
from controller.api.errors import LastInstanceError
from controller.api.text import drains as words
from controller.api.wire.operations import DrainReport, RestartRequest
from tui.actions.drains import emptying
from tui.actions.order import Outcome, Plan
from tui.actions.progress import awaited
from tui.actions.spec_order import SpecOrder


@dataclass(frozen=True, slots=True)
class Restart(SpecOrder):
    instance_id: str
    wanted: RestartRequest = field(default_factory=RestartRequest)
    action_id: ClassVar[str] = "restart"
    word: ClassVar[str] = "Restart"

    @property
    def title(self) -> str:
        return f"restart {self.instance_id}"

    @property
    def command(self) -> str:
        return f"llumctl restart {self.instance_id}{' --force' if self.wanted.force else ''}"

    @property
    def question(self) -> str:
        return f"Restart {self.instance_id}?"

    def plan(self, client: ControlClient) -> Plan:
        """The last instance is restarted only by its name."""
        name = ""
        try:
            report = client.restart(self.instance_id, RestartRequest(dry_run=True))
        except LastInstanceError:
            name = self.instance_id
            report = client.restart(self.instance_id, RestartRequest(dry_run=True, force=True))
        if not report.changes:
            return Plan((f"{self.instance_id} is being restarted already",), None)
        summary, *rest = emptying(report, client.status())
        lines = (f"{summary}, then its process is replaced", *rest)
        wanted = RestartRequest(force=bool(name), if_revision=report.revision)
        return Plan(lines, Restart(self.instance_id, wanted), name)

    def post(self, client: ControlClient, key: str) -> DrainReport:
        return client.restart(self.instance_id, self.wanted, key=key)

    def told(self, client: ControlClient, key: str) -> DrainReport:
        return client.answer(DrainReport, key)

    def outcome(self, report: DrainReport) -> Outcome:
        """It is taken back as a drain is, until the process has ended."""
        text = words.progress(report).removeprefix(f"{self.instance_id}: ")
        return Outcome(text, can_undo=report.changes, awaits=awaited(report))
