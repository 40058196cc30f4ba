"""Orders about requests: another priority, another instance; and what they are chosen from."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from controller.api.client import ControlClient
from controller.api.text.levels import priority_effect, ranked
from controller.api.text.quantities import latency, sized
from controller.api.wire.models import ClusterStatus, InstanceState
from controller.api.wire.moves import MigrateRequest, MigrationReport
from controller.api.wire.operations import PriorityReport, PriorityRequest
from tui.actions.choice import Choice, Choices, Estimate
from tui.actions.order import Outcome, Plan, Together
from tui.actions.target import Target
from tui.drawing import format as fmt

MAX_ESTIMATES = 20
"""Marked requests of which the controller is asked what moving them would take."""
MOVE_TAKES_S = 60.0
"""How long the controller waits for the end of a move before it answers that the move goes on."""


@dataclass(frozen=True, slots=True)
class SetPriority:
    request_id: str
    level: str
    reason: str = ""
    action_id: ClassVar[str] = "priority"
    takes_s: ClassVar[float] = 0.0
    revision: ClassVar[None] = None

    @property
    def title(self) -> str:
        return f"priority {self.request_id} {self.level}"

    @property
    def command(self) -> str:
        return f"llumctl {self.title}"

    @property
    def lane(self) -> str:
        return self.request_id

    def at(self, _: int) -> "SetPriority":
        return self

    def plan(self, client: ControlClient) -> Plan:
        """Needed for what takes a change back: else the level is chosen and set at once."""
        wanted = PriorityRequest(level=self.level, dry_run=True)
        report = client.set_priority(self.request_id, wanted)
        lines = [f"{self.request_id}: {report.previous} -> {report.level}"]
        if report.effect is not None:
            lines += [f"  {name} {change}" for name, change in priority_effect(report.effect)]
        return Plan(tuple(lines), self)

    def post(self, client: ControlClient, key: str) -> PriorityReport:
        wanted = PriorityRequest(level=self.level, reason=self.reason)
        return client.set_priority(self.request_id, wanted, key=key)

    def told(self, client: ControlClient, key: str) -> PriorityReport:
        return client.answer(PriorityReport, key)

    def outcome(self, report: PriorityReport) -> Outcome:
        if report.previous == report.level:
            return Outcome(f"it had {report.level} already")
        return Outcome(f"{report.level}, was {report.previous}", can_undo=True)


@dataclass(frozen=True, slots=True)
class Migrate:
    request_id: str
    to: str
    reason: str = ""
    action_id: ClassVar[str] = "migrate"
    takes_s: ClassVar[float] = MOVE_TAKES_S
    revision: ClassVar[None] = None

    @property
    def title(self) -> str:
        return f"migrate {self.request_id} to {self.to}"

    @property
    def command(self) -> str:
        return f"llumctl migrate {self.request_id} --to {self.to}"

    @property
    def lane(self) -> str:
        return self.request_id

    def at(self, _: int) -> "Migrate":
        return self

    def plan(self, client: ControlClient) -> Plan:
        found = self.estimate(client)
        return Plan((found.text,), self if found.possible else None)

    def estimate(self, client: ControlClient) -> Estimate:
        report = client.migrate(self.request_id, MigrateRequest(to=self.to, dry_run=True))
        if report.plan is None or report.outcome != "would_move":
            why = report.why or report.code or report.outcome
            return Estimate(f"cannot: {why}", possible=False)
        plan = report.plan
        facts = [f"{plan.num_blocks} blocks, {sized(plan.num_bytes)}"]
        if plan.copy_time_s is not None:
            facts.append(f"copy {latency(plan.copy_time_s)}")
        if plan.downtime_s is not None:
            facts.append(f"downtime about {latency(plan.downtime_s)}")
        return Estimate(", ".join([*facts, *([report.note] if report.note else [])]))

    def post(self, client: ControlClient, key: str) -> MigrationReport:
        wanted = MigrateRequest(to=self.to, reason=self.reason, timeout_s=MOVE_TAKES_S)
        return client.migrate(self.request_id, wanted, key=key)

    def told(self, client: ControlClient, key: str) -> MigrationReport:
        return client.answer(MigrationReport, key)

    def outcome(self, report: MigrationReport) -> Outcome:
        if report.outcome != "migrated":
            why = ": ".join(words for words in (report.why, report.note) if words)
            return Outcome(f"{report.outcome.replace('_', ' ')}: {why}".rstrip(": "), failed=True)
        text = f"migrated, {report.num_blocks} blocks"
        if report.downtime_s is not None:
            text += f", downtime {latency(report.downtime_s)}"
        return Outcome(text, can_undo=True)


def levels(targets: Sequence[Target], status: ClusterStatus) -> Choices:
    """The priority levels, the highest first."""
    return Choices(
        f"Which priority for {_those(targets)}?",
        tuple(
            Choice(
                level.name,
                f"rank {level.rank}",
                Together(tuple(SetPriority(each.request_id, level.name) for each in targets)),
            )
            for level in ranked(status.levels)
        ),
    )


def destinations(targets: Sequence[Target], status: ClusterStatus) -> Choices:
    """The instances that serve and do not have all of the requests, the freest first."""
    sources = {each.instance_id for each in targets}
    found = [
        item
        for item in status.instances
        if sources != {item.id} and item.state is InstanceState.ACTIVE
    ]
    found.sort(key=lambda item: -(item.freeness_steps or 0.0))
    where = next(iter(sources)) if len(sources) == 1 else "where they are"
    return Choices(
        f"Move {_those(targets)} from {where or 'where it is'} to?",
        tuple(
            Choice(
                item.id,
                f"freeness {fmt.number(item.freeness_steps)},"
                f" {fmt.number(item.num_free_blocks)} blocks free",
                Together(moves := _moves(targets, item.id)),
                partial(estimate, moves),
            )
            for item in found
        ),
    )


def estimate(moves: Sequence[Migrate], client: ControlClient) -> Estimate:
    """What all of the moves would take; why not, for those that cannot be made."""
    if len(moves) == 1:
        return moves[0].estimate(client)
    found = [(each, each.estimate(client)) for each in moves[:MAX_ESTIMATES]]
    texts = [f"{each.request_id} {told.text}" for each, told in found]
    if len(moves) > len(found):
        texts.append(f"and {len(moves) - len(found)} more")
    can = sum(told.possible for _, told in found)
    return Estimate(f"{can} of {len(found)} can: {'; '.join(texts)}", possible=can > 0)


def _moves(targets: Sequence[Target], to: str) -> tuple[Migrate, ...]:
    return tuple(Migrate(each.request_id, to) for each in targets if each.instance_id != to)


def _those(targets: Sequence[Target]) -> str:
    """`r1`, or `2 requests (r1, r2)`."""
    ids = [each.request_id for each in targets]
    return ids[0] if len(ids) == 1 else f"{len(ids)} requests ({', '.join(ids)})"
