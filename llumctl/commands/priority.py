"""`llumctl priority`: another priority for a live request."""

from typing import TYPE_CHECKING, Annotated

import typer

from controller.api.errors import EXIT_WOULD_CHANGE
from llumctl import choices, connect
from llumctl.commands.options import Cluster, DryRun, OutputFormat, Reason, Reference, one_line
from llumctl.text import output
from llumctl.text.output import Format

if TYPE_CHECKING:
    from controller.api.wire.operations import PriorityReport

MAX_LEVEL_CHARS = 64


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
        from controller.api.operations.on_requests import SetPriority
        from controller.api.wire.operations import PriorityRequest

        wanted = PriorityRequest(level=level[:MAX_LEVEL_CHARS], reason=reason, dry_run=dry_run)
        report = client.send(SetPriority(client.whole_id(reference), wanted))
    output.emit(_text(report, output_format))
    if report.previous == report.level:
        output.say("nothing to change")
    elif dry_run:
        raise typer.Exit(EXIT_WOULD_CHANGE)


def _text(report: "PriorityReport", output_format: Format) -> str:
    if output_format is Format.NAME:
        return report.request_id
    if output_format in (Format.TABLE, Format.WIDE):
        from controller.api.text.levels import priority_effect

        facts = (
            ("request", report.request_id),
            ("client-id", report.client_id or "-"),
            ("instance", report.instance_id or "-"),
            ("level", f"{report.previous} -> {report.level}"),
            *([] if report.effect is None else priority_effect(report.effect)),
        )
        return output.facts(facts)
    return output.encode(output_format, report, (report,))
