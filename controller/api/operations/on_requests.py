"""Orders about a request (migrate, priority, abort), each with its body and its report.

The compatibility rules are those of `controller.api.wire`.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from controller.api.operations.order import (
    Controller,
    Danger,
    OnRequest,
    Order,
    OrderBody,
    Outcome,
    Plan,
)
from controller.api.text.quantities import latency, sized
from controller.api.wire import AnswerModel, SettingValue, WireModel
from controller.api.wire.requests import MoveStage, RequestState


class MigrateRequest(OrderBody):
    """Moves a live request. Without `to` the controller chooses the destination, and tries another
    destination if the first one fails. With `dry_run` nothing moves."""

    to: str | None = Field(default=None, min_length=1, max_length=64)
    verify_kv: bool = False
    """Compares a digest of the KV blocks on both sides before the destination takes over."""
    max_stages: Annotated[int | None, Field(ge=1, le=12)] = None
    """How many stages the move may have: 1 is a stop-and-copy; None is as many as needed, at most
    12."""
    timeout_s: float = Field(default=60.0, gt=0, le=600)
    """Seconds that the call waits for the move's end. A move that is not over by then goes on."""


class MoveAttempt(WireModel):
    """One attempt to move a request. `outcome`: migrated; kept (the request never stopped at the
    source); resumed (it stopped, and runs there again); ended (it finished, or its client left);
    refused (the move was not begun); unknown (the source did not say)."""

    migration_id: str
    to_instance_id: str
    outcome: str
    code: str = ""
    why: str = ""
    duration_s: float | None = None
    num_tokens: int | None = None
    num_cached_blocks: int | None = None
    """Blocks that were not copied because the destination's prefix cache had them."""
    stages: tuple[MoveStage, ...] = ()
    inexact: tuple[str, ...] = ()
    """In what the two engines differ: ranks, vllm. If there is anything, the tokens after the move
    may differ, by rounding, from those without it (`migration.allow_inexact`)."""


class MovePlanned(WireModel):
    """What a move would cost. Times are null before the cluster's first move. A request that waits
    has no blocks and no downtime."""

    num_tokens: int
    num_blocks: int
    num_bytes: int
    copy_time_s: float | None = None
    downtime_s: float | None = None


class MigrationReport(AnswerModel):
    """How a move ended, or would end. `outcome`: the outcome of the last attempt; in a dry run
    `would_move` or `refused`. `code` and `why` say why the request does not move."""

    request_id: str
    client_id: str
    from_instance_id: str
    to_instance_id: str | None = None
    dry_run: bool = False
    outcome: str
    code: str = ""
    why: str = ""
    note: str = ""
    hint: str = ""
    """A command that would help, if one is known."""
    num_blocks: int = 0
    num_bytes: int = 0
    """How many bytes the last attempt copied."""
    copy_time_s: float = 0.0
    downtime_s: float | None = None
    """The time from the last token of the source to the first token of the destination, as the
    client received them. Null for a request that waited for memory: its client's pause began before
    the move."""
    excess_s: float | None = None
    """`downtime_s` without the destination's step."""
    plan: MovePlanned | None = None
    attempts: tuple[MoveAttempt, ...] = ()
    """All attempts, the last one last."""


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
        """The controller answers when the move has ended; or, after this time, with the news that
        the move goes on."""
        return self.wanted.timeout_s

    def plan(self, client: Controller) -> Plan[Order[Any, Any]]:
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


class PriorityRequest(OrderBody):
    """Gives a live request another priority level."""

    level: str = Field(min_length=1, max_length=64)


class PriorityEffect(WireModel):
    """What another priority of a running request changes at its instance. `headroom_blocks` are
    kept free on that instance in addition to the blocks of all running requests. Less freeness
    keeps new requests away, and makes other requests move away. `freeness_steps`: null if the
    instance is draining."""

    headroom_blocks_before: int
    headroom_blocks_after: int
    freeness_steps_before: float | None
    freeness_steps_after: float | None


class PriorityReport(AnswerModel):
    """`previous` and `level` are the same if nothing changed. `instance_id`: the request's
    instance, null if it has none. `effect`: computed from the instance's last status; set only in a
    dry run for a request that runs, because a request that waits only gets another place in the
    queue."""

    request_id: str
    client_id: str = ""
    previous: str
    level: str
    instance_id: str | None = None
    dry_run: bool = False
    effect: PriorityEffect | None = None


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

    def plan(self, client: Controller) -> Plan[Order[Any, Any]]:
        """The plan of the order. Only undo asks for it: otherwise the operator chooses a level,
        which is set at once."""
        report = client.send(self.dry())
        lines = [f"{self.request_id}: {report.previous} -> {report.level}"]
        if report.effect is not None:
            lines += [f"  {name} {change}" for name, change in priority_effect(report.effect)]
        return Plan(tuple(lines), self)

    def outcome(self, report: PriorityReport) -> Outcome:
        if report.previous == report.level:
            return Outcome(f"it had {report.level} already")
        return Outcome(f"{report.level}, was {report.previous}", can_undo=True)


class AbortRequest(OrderBody):
    """Ends a live request. Its client gets one error, which does not tell the reason."""


class AbortReport(AnswerModel):
    """`state`, `instance_id` and `num_output_tokens` describe the request at the moment of the
    order; more tokens may have reached the client."""

    request_id: str
    client_id: str = ""
    request_ids: tuple[str, ...] = ()
    """All sequences that ended. The choices of one client's request (`n` > 1) end together."""
    level: str = ""
    state: RequestState
    instance_id: str | None = None
    num_output_tokens: int = 0
    dry_run: bool = False


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

    def plan(self, client: Controller) -> Plan[Order[Any, Any]]:
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
    """What another priority changes at the request's instance, as pairs: the name of a figure, and
    its change."""
    before, after = effect.freeness_steps_before, effect.freeness_steps_after
    return [
        ("headroom", f"{effect.headroom_blocks_before} -> {effect.headroom_blocks_after} blocks"),
        ("freeness", f"{_steps(before)} -> {_steps(after)} steps"),
    ]


def _steps(freeness: float | None) -> str:
    return "-" if freeness is None else f"{freeness:.0f}"
