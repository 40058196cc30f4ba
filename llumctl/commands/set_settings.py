"""`llumctl set`: change settings of a running cluster."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controller.api.errors import EXIT_WOULD_CHANGE, LlumctlError, UsageError
from controller.api.text.quantities import setting_value
from llumctl import connect
from llumctl.commands.options import (
    Cluster,
    ClusterConfig,
    DryRun,
    IfRevision,
    OutputFormat,
    Reason,
    not_negative,
    one_line,
)
from llumctl.config import config_file
from llumctl.text import output
from llumctl.text import settings_text as setting_text
from llumctl.text.output import Format

if TYPE_CHECKING:
    from controller.api.client import ControlClient
    from controller.api.operations.on_cluster import SetSettings, SettingChanges
    from llumctl.config.saving import Saving


def set_settings(
    assignments: Annotated[
        list[str],
        typer.Argument(metavar="KEY=VALUE...", help="As migration.max_moves=2; see llumctl get."),
    ],
    save: Annotated[
        bool, typer.Option("--save", help="Write them into the configuration file too.")
    ] = False,
    config: ClusterConfig = None,
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
    if config is not None:
        config_file.find(config)  # what is wrong with it is told without a cluster
        if not save:
            raise UsageError("--config: only --save writes a file", f"{setting_text.HINT} --save")
    name = connect.attached(cluster)
    with connect.client(name) as client:
        from controller.api.operations.on_cluster import SetSettings, SettingsPatch, preview

        patch = SettingsPatch(
            changes=changes, dry_run=dry_run, reason=reason, if_revision=if_revision
        )
        # What cannot be saved is found before anything has changed.
        order = SetSettings(patch)
        saving = _saving(client, order, config, name) if save else None
        found = client.send(order)
    if shown := text(found, output_format):
        output.emit(shown)
    if output_format in (Format.TABLE, Format.WIDE):
        for line in preview(found):
            output.say(line)
    if found.changes and not dry_run:
        output.say(f"revision {found.revision}")
    saves = saving is not None and saving.changes
    if saving is not None and saves:
        _save(saving, found, dry_run=dry_run)
    if not found.changes and not saves:
        output.say("nothing to change")
    elif dry_run:
        raise typer.Exit(EXIT_WOULD_CHANGE)


def _saving(
    client: "ControlClient", order: "SetSettings", config: Path | None, cluster: str
) -> "Saving":
    """Plans the lines of the configuration file, with values as the controller understands them."""
    from llumctl.config import saving

    planned = client.send(order.dry())
    values = {each.key: each.value for each in client.settings().settings}
    values |= {each.key: each.value for each in planned.changes}
    wanted = {key: values[key] for key in order.wanted.changes}
    for variable in saving.overriding(list(wanted)):
        output.say(
            f"{variable} is set here, and wins over the configuration file at the next start"
        )
    return saving.planned(saving.find(config, connect.running(cluster))[0], wanted)


def _save(saving: "Saving", found: "SettingChanges", *, dry_run: bool) -> None:
    if not dry_run:
        try:
            saving.write()
        except LlumctlError as error:
            kept = "the running cluster was changed, but " if found.changes else ""
            raise LlumctlError(f"{kept}{error.message}", error.hint) from error
    output.say(f"{'would be saved' if dry_run else 'saved'} in {saving.path}:")
    for line in saving.lines:
        output.say(line)


def text(found: "SettingChanges", output_format: Format) -> str:
    if output_format is Format.NAME:
        return "\n".join(change.key for change in found.changes)
    if output_format in (Format.TABLE, Format.WIDE):
        if not found.changes:
            return ""
        of = setting_value
        rows = [(each.key, of(each.previous), of(each.value)) for each in found.changes]
        header = ("KEY", "PREVIOUS", "NOW" if not found.dry_run else "WOULD-BE")
        return output.table(header, rows, colours=output.use_colours(sys.stdout))
    return output.encode(output_format, found, found.changes)
