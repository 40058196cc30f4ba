"""`llumctl requests` and `explain`, and orders about a request: `migrate`, `priority`, `abort`."""

import sys
from collections.abc import Callable, Mapping
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
from llumctl import choices, completion, connect
from llumctl.commands.options import (
    Cluster,
    DryRun,
    OutputFormat,
    Reason,
    Reference,
    one_line,
    positive,
)
from llumctl.text import output
from llumctl.text.output import Format

if TYPE_CHECKING:
    from controller.api.operations.on_requests import AbortReport, MigrationReport, PriorityReport
    from controller.api.wire.requests import Explanation, RequestDetail, RequestList, RequestState

DEFAULT_LIMIT = 100
# The controller lists no more.
MAX_LIMIT = 10_000
DEFAULT_TIMEOUT_S = 60.0
# The controller waits no longer.
MAX_TIMEOUT_S = 600.0
MAX_LEVEL_CHARS = 64


def requests(
    reference: Annotated[
        str | None,
        typer.Argument(
            metavar="[REQUEST]",
            autocompletion=completion.requests,
            help="Show this one with its history: its id (a beginning, or as tables shorten it, is"
            " enough) or the client's id.",
            show_default=False,
        ),
    ] = None,
    instance: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Only those of this instance.",
            autocompletion=completion.instances,
        ),
    ] = None,
    state: Annotated[
        str | None, typer.Option(metavar="S,...", help="Only these states: running,evicted")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("-n", "--limit", metavar="N", help="At most so many (100).")
    ] = None,
    output_format: OutputFormat = Format.TABLE,
    cluster: Cluster = None,
) -> None:
    """Show requests: running first, then waiting (oldest first; what the controller holds in the
    order in which it is to go), then those that ended last."""
    if limit is not None and not 1 <= limit <= MAX_LIMIT:
        raise UsageError(f"--limit: must be between 1 and {MAX_LIMIT}, not {limit}")
    filters = {"--instance": instance, "--state": state, "--limit": limit}
    given = [flag for flag, value in filters.items() if value is not None]
    if reference is not None and given:
        raise UsageError(f"{given[0]}: only for the list, not for one request")
    if reference is not None:
        choices.an_id(reference, "REQUEST")
    if instance is not None:
        choices.an_id(instance, "--instance")
    states = _states(state)
    with connect.client(connect.attached(cluster)) as client:
        if reference is not None:
            output.emit(_detail(client.request(reference), output_format))
            return
        found = client.requests(instance, states, limit or DEFAULT_LIMIT, movable=True)
    if text := _listed(found, output_format):
        output.emit(text)
    _tell_what_is_missing(found)


def _states(text: str | None) -> "tuple[RequestState, ...]":
    if text is None:
        return ()
    from controller.api.wire.requests import RequestState

    found = choices.several_of(text, list(RequestState), "--state", "a state of a request")
    return tuple(map(RequestState, found))


def _listed(found: "RequestList", output_format: Format) -> str:
    """The requests stay in the controller's order."""
    rows = found.requests
    if output_format is Format.NAME:
        return "\n".join(item.id for item in rows)
    if output_format in (Format.TABLE, Format.WIDE):
        from llumctl.text import requests_text as requests_table

        colours = output.use_colours(sys.stdout)
        return requests_table.render(rows, wide=output_format is Format.WIDE, colours=colours)
    return output.encode(output_format, found, rows)


def _detail(found: "RequestDetail", output_format: Format) -> str:
    if output_format is Format.NAME:
        return found.id
    if output_format in (Format.TABLE, Format.WIDE):
        from llumctl.text import requests_text as requests_table

        return requests_table.render_detail(found, colours=output.use_colours(sys.stdout))
    return output.encode(output_format, found, (found,))


def _tell_what_is_missing(found: "RequestList") -> None:
    for frontend in found.silent_frontends:
        output.say(f"frontend {frontend} did not answer: its requests are missing")
    if found.num_matching > len(found.requests):
        shown, more = len(found.requests), min(found.num_matching, MAX_LIMIT)
        hint = f"; more: --limit {more}" if more > shown else ""
        output.say(f"{shown} of {found.num_matching} requests{hint}")


def explain(
    reference: Reference,
    output_format: OutputFormat = Format.TABLE,
    cluster: Cluster = None,
) -> None:
    """Show which instances were considered for a request, what was chosen, what not, and why."""
    choices.an_id(reference, "REQUEST")
    with connect.client(connect.attached(cluster)) as client:
        found = client.explain(reference)
    output.emit(_explained(found, output_format))


def _explained(found: "Explanation", output_format: Format) -> str:
    if output_format is Format.NAME:
        return found.request.id
    if output_format in (Format.TABLE, Format.WIDE):
        from llumctl.text import explain as explain_text

        wide = output_format is Format.WIDE
        return explain_text.render(found, wide=wide, colours=output.use_colours(sys.stdout))
    return output.encode(output_format, found, found.steps)


def migrate(
    reference: Reference,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="The instance; else the freest one that can take it.",
            autocompletion=completion.instances,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what it would take, and move nothing.")
    ] = False,
    verify_kv: Annotated[
        bool,
        typer.Option("--verify-kv", help="Compare the KV blocks of both sides before going on."),
    ] = False,
    reason: Reason = "",
    output_format: OutputFormat = Format.TABLE,
    cluster: Cluster = None,
    timeout: Annotated[
        float, typer.Option(metavar="S", help="How many seconds to wait for its end.")
    ] = DEFAULT_TIMEOUT_S,
) -> None:
    """Move a live request to another instance. Its client does not notice."""
    choices.an_id(reference, "REQUEST")
    if to is not None:
        choices.an_id(to, "--to")
    positive(timeout, "--timeout")
    if timeout > MAX_TIMEOUT_S:
        raise UsageError(f"--timeout: must be at most {MAX_TIMEOUT_S:g} s, not {timeout:g}")
    one_line(reason)
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
        from llumctl.text import migrations as migration_text

        return migration_text.render(report, colours=output.use_colours(sys.stdout))
    return output.encode(output_format, report, (report,))


def _no_move(report: "MigrationReport") -> LlumctlError:
    """The request is where it was, unless nobody knows."""
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
        "kept": f"runs on at {source_id}, the move came to nothing",
        "resumed": f"runs again at {source_id}, the move came to nothing",
        "ended": "is over, the move came to nothing",
    }.get(report.outcome, "may be on either instance")
    return LlumctlError(
        f"request {request_id} {how}: {why}",
        report.hint or f"llumctl requests {request_id}",
        EXIT_FAILED,
    )


def priority(
    reference: Reference,
    level: Annotated[
        str, typer.Argument(metavar="LEVEL", help="A level of the cluster: high, normal.")
    ],
    dry_run: DryRun = False,
    reason: Reason = "",
    output_format: OutputFormat = Format.TABLE,
    cluster: Cluster = None,
) -> None:
    """Change the priority of a live request: in the queues, and in the room kept beside it."""
    choices.an_id(reference, "REQUEST")
    choices.an_id(level[:MAX_LEVEL_CHARS], "LEVEL")
    one_line(reason)
    with connect.client(connect.attached(cluster)) as client:
        from controller.api.operations.on_requests import PriorityRequest, SetPriority

        wanted = PriorityRequest(level=level[:MAX_LEVEL_CHARS], reason=reason, dry_run=dry_run)
        report = client.send(SetPriority(client.whole_id(reference), wanted))
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
    """End a live request: its client gets one error, its instance the memory. There is no undo."""
    choices.an_id(reference, "REQUEST")
    one_line(reason)
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
    "requests": requests,
    "explain": explain,
    "migrate": migrate,
    "priority": priority,
    "abort": abort,
}
