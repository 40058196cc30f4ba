"""`llumctl migrate`: move a live request to another instance."""

import sys
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
from llumctl.commands.options import Cluster, OutputFormat, Reason, Reference, one_line, positive
from llumctl.text import output
from llumctl.text.output import Format

if TYPE_CHECKING:
    from controller.api.wire.moves import MigrationReport

DEFAULT_TIMEOUT_S = 60.0
# The controller waits no longer.
MAX_TIMEOUT_S = 600.0


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
        from controller.api.operations.on_requests import Migrate
        from controller.api.wire.moves import MigrateRequest

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
    output.emit(_text(report, output_format))
    if report.outcome == "would_move":
        raise typer.Exit(EXIT_WOULD_CHANGE)
    if report.outcome != "migrated":
        raise _failure(report)


def _text(report: "MigrationReport", output_format: Format) -> str:
    if output_format is Format.NAME:
        return report.attempts[-1].migration_id if report.attempts else report.request_id
    if output_format in (Format.TABLE, Format.WIDE):
        from llumctl.text import migrations as migration_text

        return migration_text.render(report, colours=output.use_colours(sys.stdout))
    return output.encode(output_format, report, (report,))


def _failure(report: "MigrationReport") -> LlumctlError:
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
