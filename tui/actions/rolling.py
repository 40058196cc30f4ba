"""The orders to restart all instances, one after the other, and to stop that."""

from dataclasses import dataclass, field
from typing import ClassVar

from controller.api.client import ControlClient
from controller.api.errors import LastInstanceError
from controller.api.text import rolling as words
from controller.api.wire.rolling import RollingReport, RollingRequest, RollingStopRequest
from tui.actions.order import Outcome, Plan
from tui.actions.progress import Awaited, End
from tui.actions.spec_order import SpecOrder

ALL = "all"
"""What an operator types to restart the last instance that serves, too."""


@dataclass(frozen=True, slots=True)
class Rolling(SpecOrder):
    wanted: RollingRequest = field(default_factory=RollingRequest)
    action_id: ClassVar[str] = "rolling"
    word: ClassVar[str] = "Restart"
    title: ClassVar[str] = "rolling restart"
    question: ClassVar[str] = "Restart all, one after the other?"

    @property
    def command(self) -> str:
        command = "llumctl restart --rolling"
        return f"{command} --force" if self.wanted.force else command

    def plan(self, client: ControlClient) -> Plan:
        """Where no other instance would serve, it is done only by a typed word."""
        name, asked = "", RollingRequest(dry_run=True)
        try:
            report = client.begin_rolling(asked)
        except LastInstanceError:
            name = ALL
            report = client.begin_rolling(asked.model_copy(update={"force": True}))
        wanted = RollingRequest(force=bool(name), if_revision=report.revision)
        return Plan(words.plan(report), Rolling(wanted), name)

    def post(self, client: ControlClient, key: str) -> RollingReport:
        return client.begin_rolling(self.wanted, key=key)

    def told(self, client: ControlClient, key: str) -> RollingReport:
        return client.answer(RollingReport, key)

    def outcome(self, report: RollingReport) -> Outcome:
        """The instances' own states show each step; this order is over with the last one."""
        awaits = (Awaited("", End.ROLLED, report.rolling_id),) if report.rolling_id else ()
        text = words.progress(report).removeprefix("rolling restart: ")
        return Outcome(text, can_undo=True, awaits=awaits)


@dataclass(frozen=True, slots=True)
class StopRolling(SpecOrder):
    wanted: RollingStopRequest = field(default_factory=RollingStopRequest)
    action_id: ClassVar[str] = "stop_rolling"
    word: ClassVar[str] = "Stop"
    title: ClassVar[str] = "stop the rolling restart"
    command: ClassVar[str] = "llumctl restart --stop"
    question: ClassVar[str] = "Stop the rolling restart?"

    def plan(self, client: ControlClient) -> Plan:
        report = client.stop_rolling(RollingStopRequest(dry_run=True))
        left = " ".join(report.left) or "none"
        lines = (words.progress(report), f"these would keep their process: {left}")
        return Plan(lines, StopRolling(RollingStopRequest(if_revision=report.revision)))

    def post(self, client: ControlClient, key: str) -> RollingReport:
        return client.stop_rolling(self.wanted, key=key)

    def told(self, client: ControlClient, key: str) -> RollingReport:
        return client.answer(RollingReport, key)

    def outcome(self, report: RollingReport) -> Outcome:
        return Outcome(words.progress(report).removeprefix("rolling restart: "))
