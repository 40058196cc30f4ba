"""`llumctl requests`, and the orders about a request: `migrate`, `priority`, `abort`.

In their output a dash stands for a value that is unknown or does not exist yet.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from controller.api.errors import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_REFUSED,
    EXIT_WOULD_CHANGE,
    LlumctlError,
    UsageError,
)
from controller.api.text.quantities import duration, latency, printable, sized, time_of_day
from llumctl import arguments, connect, meant, output
from llumctl.commands.options import (
    Cluster,
    DryRun,
    Model,
    OutputFormat,
    Reason,
    Reference,
    complete_instances,
    complete_requests,
)
from llumctl.output import Format

if TYPE_CHECKING:
    from controller.api.client import ControlClient
    from controller.api.operations.on_requests import (
        AbortReport,
        MigrationReport,
        MoveAttempt,
        MovePlanned,
        PriorityReport,
    )
    from controller.api.wire.requests import (
        Considered,
        RequestDetail,
        RequestLife,
        RequestList,
        RequestState,
        RequestStatus,
        Step,
    )

DEFAULT_LIMIT = 100
# The most requests that the controller lists.
MAX_LIMIT = 10_000
DEFAULT_TIMEOUT_S = 60.0
# The longest time that the controller waits.
MAX_TIMEOUT_S = 600.0
MAX_LEVEL_CHARS = 64


def requests(
    reference: Annotated[
        str | None,
        typer.Argument(
            metavar="[REQUEST]",
            autocompletion=complete_requests,
            help="Explain this request, given by its id (the beginning, or the shortened form in"
            " tables, is enough) or by the client's id.",
            show_default=False,
        ),
    ] = None,
    instance: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Only requests on this instance.",
            autocompletion=complete_instances,
        ),
    ] = None,
    state: Annotated[
        str | None, typer.Option(metavar="S,...", help="Only in these states: running,evicted")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("-n", "--limit", metavar="N", help="At most N requests (100).")
    ] = None,
    output_format: OutputFormat = Format.TABLE,
    cluster: Cluster = None,
    model: Model = None,  # noqa: ARG001  # its callback notes it
) -> None:
    """Show requests, or explain why one of them is where it is.

    For one request, each decision about it is shown with the instances that were considered. The
    list begins with running requests. Waiting requests follow, oldest first; requests that the
    controller holds are in the order in which they will be dispatched. The requests that ended last
    are at the end.
    """
    arguments.within(1, limit, "--limit", MAX_LIMIT)
    filters = {"--instance": instance, "--state": state, "--limit": limit}
    given = [flag for flag, value in filters.items() if value is not None]
    if reference is not None and given:
        raise UsageError(f"{given[0]}: only for the list, not for one request")
    if reference is not None:
        arguments.an_id(reference, "REQUEST")
    if instance is not None:
        arguments.an_id(instance, "--instance")
    states = _states(state)
    with connect.client(connect.attached(cluster)) as client:
        if reference is not None:
            output.emit(_detail(_asked(client, reference), output_format))
            return
        found = client.requests(instance, states, limit or DEFAULT_LIMIT, movable=True)
    if text := _listed(found, output_format):
        output.emit(text)
    _tell_what_is_missing(found)


def _states(text: str | None) -> "tuple[RequestState, ...]":
    if text is None:
        return ()
    from controller.api.wire.requests import RequestState

    found = arguments.several_of(text, list(RequestState), "--state", "a state of a request")
    return tuple(map(RequestState, found))


def _listed(found: "RequestList", output_format: Format) -> str:
    """The list as text, in the controller's order."""
    rows = found.requests
    if output_format is Format.NAME:
        return "\n".join(item.id for item in rows)
    if output_format in (Format.TABLE, Format.WIDE):
        return _table(rows, wide=output_format is Format.WIDE)
    return output.encode(output_format, found, rows)


def _asked(client: "ControlClient", reference: str) -> "RequestLife":
    """Asks for the request and its explanation. The second question uses the whole id, because a
    moment later the reference may mean another request."""
    from controller.api.wire.requests import RequestLife

    detail = client.request(reference)
    return RequestLife(**dict(detail), explanation=client.explain(detail.id))


def _detail(found: "RequestLife", output_format: Format) -> str:
    if output_format is Format.NAME:
        return found.id
    if output_format in (Format.TABLE, Format.WIDE):
        wide = output_format is Format.WIDE
        return _life(found, wide=wide)
    return output.encode(output_format, found, (found,))


def _tell_what_is_missing(found: "RequestList") -> None:
    for frontend in found.silent_frontends:
        output.say(f"frontend {frontend} did not answer: its requests are missing")
    if found.num_matching > len(found.requests):
        shown, more = len(found.requests), min(found.num_matching, MAX_LIMIT)
        hint = f"; more: --limit {more}" if more > shown else ""
        output.say(f"{shown} of {found.num_matching} requests{hint}")


_Column = tuple[str, "Callable[[RequestStatus], str]"]

_COLUMNS: tuple[_Column, ...] = (
    ("ID", lambda item: item.id),
    ("CLIENT-ID", lambda item: item.client_id),
    ("STATE", lambda item: item.state),
    ("LEVEL", lambda item: item.level),
    ("INSTANCE", lambda item: "controller" if item.held else item.instance_id or ""),
    ("AGE", lambda item: duration(item.age_s)),
    ("TTFT", lambda item: latency(item.ttft_s)),
    ("TOK-IN", lambda item: str(item.num_prompt_tokens)),
    ("TOK-OUT", lambda item: str(item.num_output_tokens)),
    ("EVICT", lambda item: str(item.num_evictions)),
    ("MOVABLE", lambda item: _movable(item)),
)
_MODEL_COLUMNS: tuple[_Column, ...] = (("MODEL", lambda item: item.model),)
"""Columns that are shown only if the cluster serves several models."""
_HELD_COLUMNS: tuple[_Column, ...] = (
    ("PLACE", lambda item: str(item.held.place) if item.held else ""),
    ("NEEDS", lambda item: _needed_blocks(item.held.demand_blocks) if item.held else ""),
    ("KEPT", lambda item: (item.held and item.held.instance_id) or ""),
    ("WHY", lambda item: item.held.why if item.held else ""),
)
"""Columns that are shown only if the controller holds one of the requests."""
_WIDE_COLUMNS: tuple[_Column, ...] = (
    *_COLUMNS,
    ("BLOCKS", lambda item: "" if item.num_blocks is None else str(item.num_blocks)),
    ("LAST", lambda item: latency(item.last_token_age_s)),
    ("MOVES", lambda item: str(item.num_moves)),
    ("REPLAYS", lambda item: str(item.num_replays)),
    ("ADAPTER", lambda item: item.adapter),
    ("FRONTEND", lambda item: item.frontend_id),
    ("ARRIVED", lambda item: time_of_day(item.arrival_time_s, millis=True)),
    ("PARENT", lambda item: item.parent_id or ""),
    ("END", lambda item: item.finish_reason or ""),
)


def _needed_blocks(number: int | None) -> str:
    return "" if number is None else str(number)


def _movable(item: "RequestStatus") -> str:
    """yes, or the code of the reason (docs/metrics.md)."""
    if item.movable is None:
        return ""
    return "yes" if item.movable else item.why_not_movable or "no"


def _table(requests: "Sequence[RequestStatus]", *, wide: bool) -> str:
    """The rows are in the controller's order."""
    columns = _WIDE_COLUMNS if wide else _COLUMNS
    if any(item.model for item in requests) and not meant.model():
        columns = (*columns[:2], *_MODEL_COLUMNS, *columns[2:])
    if any(item.held for item in requests):
        columns += _HELD_COLUMNS
    rows = [[cell(item) for _, cell in columns] for item in requests]
    names = [name for name, _ in columns]
    return output.table(names, rows, ids=("CLIENT-ID", "ID"))


def _life(item: "RequestLife", *, wide: bool) -> str:
    """The request's fields, then each decision about it, with the instances that were considered.
    If `wide`, its events follow in the order in which they came."""
    from controller.api import explain

    columns = (*_WIDE_COLUMNS, *(_MODEL_COLUMNS if item.model else ()))
    columns += _HELD_COLUMNS if item.held else ()
    facts = {name.lower(): cell(item) or "-" for name, cell in columns}
    if movable := explain.movable(item.explanation):
        facts["movable"] = movable
    if item.explanation.waiting is not None:
        facts["waits"] = explain.waits(item.explanation.waiting)
    parts = [output.facts(list(facts.items()))]
    for step in item.explanation.steps:
        since = _since(item, step.time_s)
        parts.append(_step(step, since, wide=wide))
    if wide:
        parts.append(_history(item))
    return "\n\n".join(parts)


def _since(item: "RequestStatus", time_s: float) -> str:
    return f"+{latency(max(0.0, time_s - item.arrival_time_s))}"


def _history(item: "RequestDetail") -> str:
    from controller.api.text.events import where, why

    rows = [
        (_since(item, event.time_s), event.kind, where(event), why(event)) for event in item.history
    ]
    return output.table(("SINCE", "WHAT", "WHERE", "WHY"), rows)


_INDENT = "    "


def _step(step: "Step", since: str, *, wide: bool) -> str:
    from controller.api import explain
    from controller.api.wire.requests import DispatchStep, MoveStep, NotMovedStep

    headline, figures = explain.told(step)
    lines = [f"{since}  {headline}" + (f"  ({step.cause_id})" if wide and step.cause_id else "")]
    lines += [f"{_INDENT}{text}" for text in figures if text]
    lines = [printable(line) for line in lines]
    if isinstance(step, DispatchStep):
        lines += _candidates(step.candidates, step.instance_id, "SCORE")
    elif isinstance(step, MoveStep | NotMovedStep):
        chosen = step.to_instance_id
        lines += _candidates(step.candidates, chosen, "FREENESS")
    return "\n".join(lines)


def _candidates(candidates: "tuple[Considered, ...]", chosen: str, unit: str) -> list[str]:
    """The instances that were considered. The chosen one need not be the first, as the freest one
    may be the destination of another source."""
    if not candidates:
        return []
    rows = [
        (
            item.instance_id,
            "-" if item.figure is None else f"{item.figure:.0f}",
            "chosen" if item.instance_id == chosen else "-",
        )
        for item in candidates
    ]
    header = ("INSTANCE", unit, "")
    return [_INDENT + line for line in output.table(header, rows).splitlines()]


def migrate(
    reference: Reference,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Destination. Default: the freest instance that can take the request.",
            autocompletion=complete_instances,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what the move would take; move nothing.")
    ] = False,
    verify_kv: Annotated[
        bool,
        typer.Option(
            "--verify-kv", help="Compare the KV blocks of both instances before going on."
        ),
    ] = False,
    reason: Reason = "",
    output_format: OutputFormat = Format.TABLE,
    cluster: Cluster = None,
    timeout: Annotated[
        float, typer.Option(metavar="S", help="How many seconds to wait for the move's end.")
    ] = DEFAULT_TIMEOUT_S,
) -> None:
    """Move a live request to another instance. Its client does not notice it."""
    arguments.an_id(reference, "REQUEST")
    if to is not None:
        arguments.an_id(to, "--to")
    arguments.within(0, timeout, "--timeout", MAX_TIMEOUT_S, above=True)
    with connect.client(connect.attached(cluster)) as client:
        from controller.api.operations.on_requests import Migrate, MigrateRequest

        wanted = MigrateRequest(
            to=to, dry_run=dry_run, verify_kv=verify_kv, reason=reason, timeout_s=timeout
        )
        request_id = client.whole_id(reference)
        try:
            report = client.send(Migrate(request_id, wanted))
        except KeyboardInterrupt:
            if dry_run:
                raise
            output.say("no longer watching: the move goes on, even if it still waits for its turn")
            output.say(f"try:   llumctl requests {request_id}      llumctl status")
            raise typer.Exit(EXIT_INTERRUPTED) from None
    output.emit(_moved(report, output_format))
    if report.outcome == "would_move":
        raise typer.Exit(EXIT_WOULD_CHANGE)
    if report.outcome != "migrated":
        raise _no_move(report)


def _moved(report: "MigrationReport", output_format: Format) -> str:
    if output_format is Format.NAME:
        return report.attempts[-1].migration_id if report.attempts else report.request_id
    if output_format in (Format.TABLE, Format.WIDE):
        return _move(report)
    return output.encode(output_format, report, (report,))


def _no_move(report: "MigrationReport") -> LlumctlError:
    """The error for a move that failed: the request is still at its source, or nobody knows where
    it is."""
    request_id, source_id = report.request_id, report.from_instance_id
    why = ": ".join(words for words in (report.why, report.note) if words) or "it ended"
    if report.outcome == "refused":
        target = f" to {report.to_instance_id}" if report.to_instance_id else ""
        return LlumctlError(
            f"request {request_id} cannot move from {source_id}{target}: {why}",
            report.hint or "llumctl status      llumctl requests",
            EXIT_REFUSED,
        )
    how = {
        "kept": f"still runs at {source_id}, the move failed",
        "resumed": f"runs again at {source_id}, the move failed",
        "ended": "ended before it could move",
    }.get(report.outcome, "may be on either instance")
    return LlumctlError(
        f"request {request_id} {how}: {why}",
        report.hint or f"llumctl requests {request_id}",
        EXIT_FAILED,
    )


_Fact = tuple[str, str]

_NO_DOWNTIME = "none, the request waits for memory"


def _move(report: "MigrationReport") -> str:
    """The figures of the move, the stages of its latest attempt, and all attempts if there were
    several."""
    facts = [
        ("request", report.request_id),
        ("client-id", report.client_id),
        ("from", report.from_instance_id),
        ("to", report.to_instance_id or "-"),
        ("outcome", report.outcome.replace("_", " ")),
        *([("why", report.why)] if report.why else []),
        *([("note", report.note)] if report.note else []),
    ]
    last = report.attempts[-1] if report.attempts else None
    if report.plan is not None:
        facts += _planned_facts(report.plan)
    elif last is not None and last.duration_s is not None:
        facts += _moved_facts(report, last)
    parts = [output.facts(facts)]
    if last is not None and last.stages:
        parts.append(_stages(last))
    if len(report.attempts) > 1:
        parts.append(_attempts(report.attempts))
    return "\n\n".join(parts)


_ENGINES_DIFFER = {"ranks": "parallel size", "vllm": "version of vLLM"}


def _planned_facts(plan: "MovePlanned") -> list[_Fact]:
    return [
        ("tokens", str(plan.num_tokens)),
        ("blocks", str(plan.num_blocks)),
        ("bytes", sized(plan.num_bytes)),
        ("copy", _millis(plan.copy_time_s)),
        ("downtime", _expected_downtime(plan)),
    ]


def _expected_downtime(plan: "MovePlanned") -> str:
    if not plan.num_blocks:
        return _NO_DOWNTIME
    return f"about {_millis(plan.downtime_s)}" if plan.downtime_s else "-"


def _moved_facts(report: "MigrationReport", last: "MoveAttempt") -> list[_Fact]:
    cached = f", {last.num_cached_blocks} were there" if last.num_cached_blocks else ""
    return [
        ("migration", last.migration_id),
        ("tokens", "-" if last.num_tokens is None else str(last.num_tokens)),
        ("blocks", f"{report.num_blocks}{cached}"),
        ("bytes", sized(report.num_bytes)),
        ("copy", _millis(report.copy_time_s)),
        ("took", _millis(last.duration_s)),
        ("downtime", _downtime(report, last)),
        ("excess", _millis(report.excess_s)),
        *_inexact(last),
    ]


def _inexact(last: "MoveAttempt") -> list[_Fact]:
    if not last.inexact:
        return []
    differs = " and ".join(_ENGINES_DIFFER.get(part, part) for part in last.inexact)
    return [("exact", f"no: the engines differ in {differs}; later tokens may differ by rounding")]


def _downtime(report: "MigrationReport", last: "MoveAttempt") -> str:
    """The downtime. If no block was moved, the request was waiting for memory and had none."""
    if report.downtime_s is None and not (report.num_blocks or last.num_cached_blocks):
        return _NO_DOWNTIME
    return _millis(report.downtime_s)


def _stages(attempt: "MoveAttempt") -> str:
    rows = [
        (str(index), str(stage.num_blocks), sized(stage.num_bytes), _millis(stage.copy_time_s))
        for index, stage in enumerate(attempt.stages)
    ]
    return output.table(("STAGE", "BLOCKS", "BYTES", "COPY"), rows)


def _attempts(attempts: "tuple[MoveAttempt, ...]") -> str:
    rows = [(each.migration_id, each.to_instance_id, each.outcome, each.why) for each in attempts]
    return output.table(("MIGRATION", "TO", "OUTCOME", "WHY"), rows)


def _millis(seconds: float | None) -> str:
    """A time with tenths of a millisecond, because a decode step takes only some milliseconds."""
    if seconds is None:
        return "-"
    return f"{seconds:.2f}s" if seconds >= 1 else f"{1000 * seconds:.1f}ms"


def priority(
    reference: Reference,
    level: Annotated[
        str, typer.Argument(metavar="LEVEL", help="A priority level of the cluster: high, normal.")
    ],
    dry_run: DryRun = False,
    reason: Reason = "",
    output_format: OutputFormat = Format.TABLE,
    cluster: Cluster = None,
) -> None:
    """Change a live request's priority.

    It counts in queues, and for the memory that is kept free while the request runs.
    """
    arguments.an_id(reference, "REQUEST")
    arguments.an_id(level[:MAX_LEVEL_CHARS], "LEVEL")
    with connect.client(connect.attached(cluster)) as client:
        from controller.api.operations.on_requests import PriorityRequest, SetPriority

        wanted = PriorityRequest(level=level[:MAX_LEVEL_CHARS], reason=reason, dry_run=dry_run)
        request_id = client.whole_id(reference)
        with arguments.about("LEVEL"):
            report = client.send(SetPriority(request_id, wanted))
    output.emit(_changed(report, output_format))
    if report.previous == report.level:
        output.say("nothing to change")
    elif dry_run:
        raise typer.Exit(EXIT_WOULD_CHANGE)


def _changed(report: "PriorityReport", output_format: Format) -> str:
    if output_format is Format.NAME:
        return report.request_id
    if output_format in (Format.TABLE, Format.WIDE):
        from controller.api.operations.on_requests import priority_effect

        facts = (
            ("request", report.request_id),
            ("client-id", report.client_id or "-"),
            ("instance", report.instance_id or "-"),
            ("level", f"{report.previous} -> {report.level}"),
            *([] if report.effect is None else priority_effect(report.effect)),
        )
        return output.facts(facts)
    return output.encode(output_format, report, (report,))


def abort(
    reference: Reference,
    dry_run: DryRun = False,
    reason: Reason = "",
    output_format: OutputFormat = Format.TABLE,
    cluster: Cluster = None,
) -> None:
    """End a live request: its client gets an error.

    Its memory is freed. There is no undo.
    """
    arguments.an_id(reference, "REQUEST")
    with connect.client(connect.attached(cluster)) as client:
        from controller.api.operations.on_requests import Abort, AbortRequest

        request_id = client.whole_id(reference, any_choice=True)
        report = client.send(Abort(request_id, AbortRequest(reason=reason, dry_run=dry_run)))
    output.emit(_aborted(report, output_format))
    if dry_run:
        raise typer.Exit(EXIT_WOULD_CHANGE)


def _aborted(report: "AbortReport", output_format: Format) -> str:
    if output_format is Format.NAME:
        return "\n".join(report.request_ids)
    if output_format in (Format.TABLE, Format.WIDE):
        would = "would be aborted" if report.dry_run else "aborted"
        facts = [
            ("request", report.request_id),
            ("client-id", report.client_id or "-"),
            ("instance", report.instance_id or "-"),
            ("state", f"{report.state} -> {would}"),
            ("tokens", f"{report.num_output_tokens} written so far"),
        ]
        siblings = [each for each in report.request_ids if each != report.request_id]
        facts += [("with it", each) for each in siblings]
        return output.facts(facts)
    return output.encode(output_format, report, (report,))


COMMANDS: Mapping[str, Callable[..., None]] = {
    "migrate": migrate,
    "priority": priority,
    "abort": abort,
}
