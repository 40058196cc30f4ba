"""The order for another number of instances."""

import re
from dataclasses import dataclass
from typing import ClassVar

from controller.api.client import ControlClient
from controller.api.text import drains as words
from controller.api.text.autoscale import RELEASE
from controller.api.wire.operations import ScaleReport, ScaleRequest
from tui.actions.drains import departure
from tui.actions.order import Outcome, Plan
from tui.actions.progress import awaited_of_scale
from tui.actions.spec_order import SpecOrder


@dataclass(frozen=True, slots=True)
class Scale(SpecOrder):
    """`wanted`: a target, or a change that its plan turns into one."""

    wanted: ScaleRequest
    action_id: ClassVar[str] = "scale"
    word: ClassVar[str] = "Scale"

    @staticmethod
    def to(text: str) -> "Scale":
        """`4`, `+1` or `-1`. Raises ValueError."""
        if not re.fullmatch(r"[+-]?[0-9]{1,9}", text):
            raise ValueError(text)
        if text[0] in "+-":
            return Scale(ScaleRequest(change=int(text), dry_run=True))
        return Scale(ScaleRequest(target=int(text)))

    @property
    def _number(self) -> str:
        wanted = self.wanted
        return str(wanted.target) if wanted.change is None else f"{wanted.change:+d}"

    @property
    def title(self) -> str:
        return f"scale {self._number}"

    @property
    def command(self) -> str:
        return f"llumctl scale {self._number}"

    @property
    def question(self) -> str:
        return f"Scale {'to ' if self.wanted.change is None else ''}{self._number}?"

    def plan(self, client: ControlClient) -> Plan:
        """The order names the instances that would go, so that no others do."""
        report = client.scale(self.wanted.model_copy(update={"dry_run": True}))
        going = tuple(drain.instance_id for drain in report.draining)
        if not (report.added or report.undrained or going):
            return Plan((f"there are {report.target} instances already",), None)
        lines = [f"{report.previous} -> {report.target} instances"]
        lines += [f"{each} would start" for each in report.added]
        lines += [f"{each} would stay after all" for each in report.undrained]
        if going:
            lines += [f"{words.would_move(each)}, then it is removed" for each in report.draining]
            lines.append(words.capacity(client.status(), going))
            lines += [departure(item) for each in report.draining for item in each.plan]
        if report.holds_autoscale:
            lines.append(f"auto-scaling would leave it there, until {RELEASE}")
        wanted = ScaleRequest(target=report.target, draining=going, if_revision=report.revision)
        return Plan(tuple(lines), Scale(wanted))

    def post(self, client: ControlClient, key: str) -> ScaleReport:
        return client.scale(self.wanted, key=key)

    def told(self, client: ControlClient, key: str) -> ScaleReport:
        return client.answer(ScaleReport, key)

    def outcome(self, report: ScaleReport) -> Outcome:
        facts = [f"{report.previous} -> {report.target} instances"]
        facts += [f"{each} starts" for each in report.added]
        facts += [f"{each} stays" for each in report.undrained]
        facts += [f"{each.instance_id} goes" for each in report.draining]
        if report.holds_autoscale:
            facts.append(f"auto-scaling leaves it there, until {RELEASE}")
        changed = report.added or report.undrained or report.draining
        return Outcome(", ".join(facts), can_undo=bool(changed), awaits=awaited_of_scale(report))
