"""`llumctl abort`: end a live request."""

from typing import TYPE_CHECKING

import typer

from controller.api.errors import EXIT_WOULD_CHANGE
from llumctl import choices, connect
from llumctl.commands.options import Cluster, DryRun, OutputFormat, Reason, Reference, one_line
from llumctl.text import output
from llumctl.text.output import Format

if TYPE_CHECKING:
    from controller.api.wire.operations import AbortReport


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
        from controller.api.operations.on_requests import Abort
        from controller.api.wire.operations import AbortRequest

        request_id = client.whole_id(reference, any_choice=True)
        report = client.send(Abort(request_id, AbortRequest(reason=reason, dry_run=dry_run)))
    output.emit(_text(report, output_format))
    if dry_run:
        raise typer.Exit(EXIT_WOULD_CHANGE)


def _text(report: "AbortReport", output_format: Format) -> str:
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
