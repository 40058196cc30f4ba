"""`llumctl set`: change settings of a running cluster."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from controller.api.errors import EXIT_WOULD_CHANGE
from controller.api.text.quantities import setting_value
from llumctl import connect
from llumctl.commands.options import (
    Cluster,
    DryRun,
    IfRevision,
    OutputFormat,
    Reason,
    not_negative,
    one_line,
)
from llumctl.config import config_file
from llumctl.text import output
from llumctl.text import settings as setting_text
from llumctl.text.output import Format

if TYPE_CHECKING:
    from controller.api.wire.settings import SettingChanges


def set_settings(
    assignments: Annotated[
        list[str],
        typer.Argument(metavar="KEY=VALUE...", help="As migration.max_moves=2; see llumctl get."),
    ],
    dry_run: DryRun = False,
    reason: Reason = "",
    if_revision: IfRevision = None,
    output_format: OutputFormat = Format.TABLE,
    cluster: Cluster = None,
) -> None:
    """Change settings of the running cluster: all or, if one is wrong, none."""
    changes = setting_text.parse(assignments)
    one_line(reason)
    not_negative(if_revision, "--if-revision")
    with connect.client(config_file.cluster_name(cluster)) as client:
        from controller.api.wire.settings import SettingsPatch

        patch = SettingsPatch(
            changes=changes, dry_run=dry_run, reason=reason, if_revision=if_revision
        )
        found = client.change_settings(patch)
    if text := _text(found, output_format):
        output.emit(text)
    if not found.changes:
        output.say("nothing to change")
    elif dry_run:
        raise typer.Exit(EXIT_WOULD_CHANGE)
    else:
        output.say(f"revision {found.revision}")


def _text(found: "SettingChanges", output_format: Format) -> str:
    if output_format is Format.NAME:
        return "\n".join(change.key for change in found.changes)
    if output_format in (Format.TABLE, Format.WIDE):
        if not found.changes:
            return ""
        text = setting_value
        rows = [(each.key, text(each.previous), text(each.value)) for each in found.changes]
        header = ("KEY", "PREVIOUS", "NOW" if not found.dry_run else "WOULD-BE")
        return output.table(header, rows, colours=output.use_colours(sys.stdout))
    return output.encode(output_format, found, found.changes)
