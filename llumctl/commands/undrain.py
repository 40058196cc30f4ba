"""`llumctl undrain`: take drains back."""

from typing import TYPE_CHECKING, Annotated

import typer

from controller.api.errors import EXIT_WOULD_CHANGE, LlumctlError, NotDrainingError
from llumctl import completion, connect
from llumctl.commands.drain import ids_once, text
from llumctl.commands.options import (
    Cluster,
    DryRun,
    IfRevision,
    OutputFormat,
    Reason,
    not_negative,
    one_line,
)
from llumctl.text import output
from llumctl.text.output import Format

if TYPE_CHECKING:
    from collections.abc import Sequence

    from controller.api.wire.operations import DrainReport


def undrain(
    instance_ids: Annotated[
        list[str],
        typer.Argument(
            metavar="ID...",
            help="Instances that are draining or drained.",
            autocompletion=completion.instances,
        ),
    ],
    dry_run: DryRun = False,
    reason: Reason = "",
    if_revision: IfRevision = None,
    output_format: OutputFormat = Format.TABLE,
    cluster: Cluster = None,
) -> None:
    """Take drains back: the instances get requests again."""
    wanted_ids = ids_once(instance_ids)
    one_line(reason)
    not_negative(if_revision, "--if-revision")
    with connect.client(connect.attached(cluster)) as client:
        from controller.api.operations.on_instances import Undrain
        from controller.api.wire.operations import UndrainRequest

        reports: list[DrainReport] = []
        for each in wanted_ids:
            wanted = UndrainRequest(reason=reason, if_revision=if_revision, dry_run=dry_run)
            try:
                reports.append(client.send(Undrain(each, wanted)))
            except NotDrainingError:
                continue
            except LlumctlError:
                _say_undone(reports, dry_run=dry_run)
                raise
            if if_revision is not None:
                if_revision = reports[-1].revision
    if reports or output_format in (Format.JSON, Format.YAML):
        output.emit(text(reports, output_format))
    if not reports:
        output.say("nothing to change")
    elif dry_run:
        raise typer.Exit(EXIT_WOULD_CHANGE)


def _say_undone(reports: "Sequence[DrainReport]", *, dry_run: bool) -> None:
    """Tells which drains were taken back before one of them failed."""
    undone = " ".join(report.instance_id for report in reports)
    if undone and not dry_run:
        output.say(f"taken back: {undone} (llumctl drain {undone})")
