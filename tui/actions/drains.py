"""Orders to empty an instance, and to take that back."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from controller.api.client import ControlClient
from controller.api.errors import LastInstanceError
from controller.api.text import drains as words
from controller.api.wire.models import ClusterStatus
from controller.api.wire.operations import (
    DrainReport,
    DrainRequest,
    PlannedDeparture,
    UndrainRequest,
)
from tui.actions.order import Outcome, Plan
from tui.actions.progress import awaited
from tui.actions.spec_order import SpecOrder


@dataclass(frozen=True, slots=True)
class Drain(SpecOrder):
    instance_id: str
    wanted: DrainRequest = field(default_factory=DrainRequest)
    action_id: ClassVar[str] = "drain"
    word: ClassVar[str] = "Drain"

    @property
    def title(self) -> str:
        return f"drain {self.instance_id}"

    @property
    def command(self) -> str:
        return f"llumctl drain {self.instance_id}{' --force' if self.wanted.force else ''}"

    @property
    def question(self) -> str:
        return f"Drain {self.instance_id}?"

    def plan(self, client: ControlClient) -> Plan:
        """The last instance is drained only by its name."""
        name, others = "", self.wanted.with_ids
        asked = DrainRequest(dry_run=True, with_ids=others)
        try:
            report = client.drain(self.instance_id, asked)
        except LastInstanceError:
            name = self.instance_id
            report = client.drain(self.instance_id, asked.model_copy(update={"force": True}))
        if not report.changes:
            return Plan((f"{self.instance_id} is being drained already",), None)
        wanted = DrainRequest(force=bool(name), if_revision=report.revision, with_ids=others)
        lines = emptying(report, client.status(), others)
        return Plan(lines, Drain(self.instance_id, wanted), name)

    def post(self, client: ControlClient, key: str) -> DrainReport:
        return client.drain(self.instance_id, self.wanted, key=key)

    def told(self, client: ControlClient, key: str) -> DrainReport:
        return client.answer(DrainReport, key)

    def outcome(self, report: DrainReport) -> Outcome:
        text = words.progress(report).removeprefix(f"{self.instance_id}: ")
        return Outcome(text, can_undo=report.changes, awaits=awaited(report))


@dataclass(frozen=True, slots=True)
class Undrain(SpecOrder):
    instance_id: str
    wanted: UndrainRequest = field(default_factory=UndrainRequest)
    action_id: ClassVar[str] = "undrain"
    word: ClassVar[str] = "Undrain"

    @property
    def title(self) -> str:
        return f"undrain {self.instance_id}"

    @property
    def question(self) -> str:
        return f"Undrain {self.instance_id}?"

    @property
    def command(self) -> str:
        return f"llumctl undrain {self.instance_id}"

    def plan(self, client: ControlClient) -> Plan:
        """Needed for several at once, and for what takes a drain back by the audit log."""
        report = client.undrain(self.instance_id, UndrainRequest(dry_run=True))
        order = Undrain(self.instance_id, UndrainRequest(if_revision=report.revision))
        return Plan((f"{self.instance_id} would get requests again",), order)

    def post(self, client: ControlClient, key: str) -> DrainReport:
        return client.undrain(self.instance_id, self.wanted, key=key)

    def told(self, client: ControlClient, key: str) -> DrainReport:
        return client.answer(DrainReport, key)

    def outcome(self, _: DrainReport) -> Outcome:
        return Outcome("it gets requests again", can_undo=True)


def drains(instance_ids: Sequence[str]) -> list[Drain]:
    """One for each; none of them is where the requests of another would go."""
    return [
        Drain(each, DrainRequest(with_ids=tuple(i for i in instance_ids if i != each)))
        for each in instance_ids
    ]


def emptying(
    report: DrainReport, status: ClusterStatus, others: Sequence[str] = ()
) -> tuple[str, ...]:
    """What emptying an instance would take, and what would be left; `others` are emptied too."""
    return (
        words.would_move(report),
        words.capacity(status, (report.instance_id, *others)),
        *(departure(each) for each in report.plan),
    )


def departure(item: PlannedDeparture) -> str:
    goes = f"to {item.to_instance_id}" if item.to_instance_id else f"stays: {item.why or item.code}"
    return f"  {item.request_id}  {item.num_blocks} blocks  {goes}"
