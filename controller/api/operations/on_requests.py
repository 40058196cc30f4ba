"""Orders about a request: migrate, priority, abort."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from controller.api.operations.order import Danger, OnRequest, Order, Outcome, Plan
from controller.api.text.quantities import latency, sized
from controller.api.wire.base import SettingValue
from controller.api.wire.moves import MigrateRequest, MigrationReport
from controller.api.wire.operations import (
    AbortReport,
    AbortRequest,
    PriorityEffect,
    PriorityReport,
    PriorityRequest,
)

if TYPE_CHECKING:
    from controller.api.client import ControlClient


class Migrate(OnRequest[MigrateRequest, MigrationReport]):
    kind, word = "migrate", "Move"
    key = "m"
    does = "Move a request"
    meaning = "choose where the request of this row is moved"
    typed, usage = "migrate REQUEST [ID]", "llumctl migrate REQUEST --to ID"
    danger = Danger.CHOOSE
    path = "/v1/requests/{request_id}/migrate"
    body = MigrateRequest
    report = MigrationReport
    undone_by = "migrate"

    @classmethod
    def bringing_back(cls, previous: Mapping[str, SettingValue]) -> Mapping[str, Any]:
        return {"to": str(previous["instance"])}

    @property
    def title(self) -> str:
        return f"migrate {self.request_id} to {self.wanted.to or 'the freest'}"

    @property
    def command(self) -> str:
        to = f" --to {self.wanted.to}" if self.wanted.to else ""
        return f"llumctl migrate {self.request_id}{to}"

    @property
    def takes_s(self) -> float:
        """The controller answers when the move is over, or that it goes on."""
        return self.wanted.timeout_s

    def plan(self, client: "ControlClient") -> Plan[Order[Any, Any]]:
        report = client.send(self.dry())
        if report.plan is None or report.outcome != "would_move":
            why = report.why or report.code or report.outcome
            return Plan((f"cannot: {why}",), None)
        plan = report.plan
        facts = [f"{plan.num_blocks} blocks, {sized(plan.num_bytes)}"]
        if plan.copy_time_s is not None:
            facts.append(f"copy {latency(plan.copy_time_s)}")
        if plan.downtime_s is not None:
            facts.append(f"downtime about {latency(plan.downtime_s)}")
        return Plan((", ".join([*facts, *([report.note] if report.note else [])]),), self)

    def outcome(self, report: MigrationReport) -> Outcome:
        if report.outcome != "migrated":
            why = ": ".join(words for words in (report.why, report.note) if words)
            return Outcome(f"{report.outcome.replace('_', ' ')}: {why}".rstrip(": "), failed=True)
        text = f"migrated, {report.num_blocks} blocks"
        if report.downtime_s is not None:
            text += f", downtime {latency(report.downtime_s)}"
        return Outcome(text, can_undo=True)


class SetPriority(OnRequest[PriorityRequest, PriorityReport]):
    kind, word = "priority", "Set"
    key = "p"
    does = "Change a request's priority"
    meaning = "choose the priority of the request of this row"
    typed, usage = "priority REQUEST [LEVEL]", "llumctl priority REQUEST LEVEL"
    danger = Danger.CHOOSE
    path = "/v1/requests/{request_id}/priority"
    body = PriorityRequest
    report = PriorityReport
    wants_body = True
    undone_by = "priority"

    @classmethod
    def bringing_back(cls, previous: Mapping[str, SettingValue]) -> Mapping[str, Any]:
        return {"level": str(previous["level"])}

    @property
    def title(self) -> str:
        return f"priority {self.request_id} {self.wanted.level}"

    def plan(self, client: "ControlClient") -> Plan[Order[Any, Any]]:
        """Needed for what takes a change back: else the level is chosen and set at once."""
        report = client.send(self.dry())
        lines = [f"{self.request_id}: {report.previous} -> {report.level}"]
        if report.effect is not None:
            lines += [f"  {name} {change}" for name, change in priority_effect(report.effect)]
        return Plan(tuple(lines), self)

    def outcome(self, report: PriorityReport) -> Outcome:
        if report.previous == report.level:
            return Outcome(f"it had {report.level} already")
        return Outcome(f"{report.level}, was {report.previous}", can_undo=True)


class Abort(OnRequest[AbortRequest, AbortReport]):
    kind, word = "abort", "Abort"
    key = "a"
    does = "End a request"
    meaning = "end the request of this row"
    typed, usage = "abort REQUEST...", "llumctl abort REQUEST"
    path = "/v1/requests/{request_id}/abort"
    body = AbortRequest
    report = AbortReport
    keyed = True

    def plan(self, client: "ControlClient") -> Plan[Order[Any, Any]]:
        report = client.send(self.dry())
        where = f" on {report.instance_id}" if report.instance_id else ""
        facts = [f"{report.state}{where}", f"{report.num_output_tokens} tokens written"]
        if report.level:
            facts.append(f"priority {report.level}")
        lines = [f"{report.request_id}: {', '.join(facts)}"]
        lines.append("Its client gets an error. There is no undo.")
        if report.client_id and report.client_id != report.request_id:
            lines.append(f"  {report.request_id} is the client's {report.client_id}")
        others = [each for each in report.request_ids if each != report.request_id]
        lines += [f"  {each} ends with it" for each in others]
        return Plan(tuple(lines), Abort(report.request_id, self.wanted))

    def outcome(self, report: AbortReport) -> Outcome:
        more = len(report.request_ids) - 1
        others = f", and {more} more of its client's request" if more > 0 else ""
        return Outcome(f"aborted after {report.num_output_tokens} tokens{others}")


ORDERS: tuple[type[Order[Any, Any]], ...] = (Migrate, SetPriority, Abort)


def priority_effect(effect: PriorityEffect) -> list[tuple[str, str]]:
    """What another priority changes at the request's instance: names and changes."""
    before, after = effect.freeness_steps_before, effect.freeness_steps_after
    return [
        ("headroom", f"{effect.headroom_blocks_before} -> {effect.headroom_blocks_after} blocks"),
        ("freeness", f"{_steps(before)} -> {_steps(after)} steps"),
    ]


def _steps(freeness: float | None) -> str:
    return "-" if freeness is None else f"{freeness:.0f}"
