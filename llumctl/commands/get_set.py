"""`llumctl set`: the settings that may be changed while the cluster runs."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controller.api.errors import EXIT_WOULD_CHANGE, LlumctlError, UsageError
from controller.api.text.quantities import setting_value
from llumctl import arguments, connect
from llumctl.commands.options import (
    Cluster,
    ClusterConfig,
    DryRun,
    Flags,
    IfRevision,
    OutputFormat,
    Reason,
    not_negative,
    one_line,
)
from llumctl.config import config_file, toml_text
from llumctl.text import output
from llumctl.text.output import Format

if TYPE_CHECKING:
    from controller.api.client import ControlClient
    from controller.api.operations.on_cluster import (
        SetSettings,
        Setting,
        SettingChanges,
        SettingList,
    )
    from controller.api.wire.base import SettingValue
    from controller.api.wire.status import LevelStatus
    from llumctl.config.saving import Saving

HINT = "llumctl set migration.max_moves=2"


def set_settings(
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE...|KEY]",
            help="As migration.max_moves=2. One without a value is shown; without any, all are.",
            show_default=False,
        ),
    ] = None,
    save: Annotated[
        bool, typer.Option("--save", help="Write them into the configuration file too.")
    ] = False,
    toml: Annotated[
        bool,
        typer.Option(
            "--toml", help="Show those that differ from the configuration file, as lines for it."
        ),
    ] = False,
    config: ClusterConfig = None,
    dry_run: DryRun = False,
    reason: Reason = "",
    if_revision: IfRevision = None,
    output_format: OutputFormat = Format.TABLE,
    cluster: Cluster = None,
) -> None:
    """Show the running cluster's settings, or change some.

    All that are given are changed or, if one is wrong, none.
    """
    if given and (len(given) > 1 or "=" in given[0]):
        if toml:
            raise UsageError("--toml: only where nothing is changed", "llumctl set --toml")
        flags = Flags(cluster, dry_run, True, reason, if_revision, output_format)
        _change(given, flags, config, save=save)
        return
    changing = {"--save": save, "--dry-run": dry_run, "--reason": reason}
    changing |= {"--if-revision": if_revision is not None}
    for flag, value in changing.items():
        if value:
            raise UsageError(f"{flag}: only with KEY=VALUE", f"{HINT} {flag}")
    _show(given[0] if given else None, output_format, cluster, config, toml=toml)


def _show(
    key: str | None, output_format: Format, cluster: str | None, config: Path | None, *, toml: bool
) -> None:
    if key is not None:
        arguments.an_id(key, "KEY")
    if toml and output_format is not Format.TABLE:
        raise UsageError("--toml: give either this or --output", "llumctl set --toml")
    if config is not None:
        config_file.find(config)  # what is wrong with it is told without a cluster
        if not toml:
            raise UsageError("--config: only --toml looks at a file", "llumctl set --toml")
    name = connect.attached(cluster)
    with connect.client(name) as client:
        found = client.settings()
        levels = client.status().levels if toml else ()
    if key is not None:
        known = [setting.key for setting in found.settings]
        arguments.one_of(key, known, "KEY", "a setting of a running cluster")
        only = tuple(setting for setting in found.settings if setting.key == key)
        found = found.model_copy(update={"settings": only})
    if toml:
        _emit_toml(found, levels, config, name)
        return
    output.emit(_listed(found, output_format))
    if output_format in (Format.TABLE, Format.WIDE):
        output.say(f"revision {found.revision}")


def _emit_toml(
    found: "SettingList", levels: "Sequence[LevelStatus]", flag: Path | None, cluster: str
) -> None:
    from llumctl.config import saving

    path, file = saving.find(flag, connect.running(cluster))
    values = {setting.key: setting.value for setting in found.settings}
    differing = saving.differing(values, file)
    against = f"{path}" if file is not None else "the defaults (there is no configuration file)"
    if differing:
        output.emit(_as_toml(differing, levels))
        output.say(f"these differ from {against}")
    else:
        output.say(f"nothing differs from {against}")


def _as_toml(values: "Mapping[str, SettingValue]", levels: "Sequence[LevelStatus]") -> str:
    """Settings as lines of a configuration file. Of priority levels a file has all or none, so one
    that differs brings all of them."""
    tables: dict[str, list[str]] = {}
    for key, value in values.items():
        table, *_, name = key.split(".")
        line = f"# {name} has no value" if value is None else f"{name} = {toml_text.value(value)}"
        tables.setdefault(table, []).append(line)
    blocks = [
        "\n".join([f"[{table}]", *lines]) for table, lines in tables.items() if table != "priority"
    ]
    if "priority" in tables:
        blocks += [_level(level) for level in levels]
    return "\n\n".join(blocks)


def _level(level: "LevelStatus") -> str:
    lines = ["[[priority]]", f"name = {toml_text.value(level.name)}", f"rank = {level.rank}"]
    if level.target_load_tokens is not None:
        lines.append(f"target_load_tokens = {level.target_load_tokens}")
    return "\n".join(lines)


def _listed(found: "SettingList", output_format: Format) -> str:
    if output_format is Format.NAME:
        return "\n".join(setting.key for setting in found.settings)
    if output_format in (Format.TABLE, Format.WIDE):
        wide = output_format is Format.WIDE
        rows = [_row(setting, wide) for setting in found.settings]
        more = ("FROM", "ALLOWED") if wide else ()
        header = ("KEY", "VALUE", "DEFAULT", *more, "MEANING")
        return output.table(header, rows, colours=output.use_colours(sys.stdout))
    return output.encode(output_format, found, found.settings)


def _row(setting: "Setting", wide: bool) -> tuple[str, ...]:
    value, default = setting_value(setting.value), setting_value(setting.default)
    more = (setting.origin or "-", setting.allowed or "-") if wide else ()
    return setting.key, value, default, *more, setting.meaning


def _change(assignments: list[str], flags: Flags, config: Path | None, *, save: bool) -> None:
    changes = parse(assignments)
    one_line(flags.reason)
    not_negative(flags.if_revision, "--if-revision")
    if config is not None:
        config_file.find(config)  # what is wrong with it is told without a cluster
        if not save:
            raise UsageError("--config: only --save writes a file", f"{HINT} --save")
    name = connect.attached(flags.cluster)
    with connect.client(name) as client:
        from controller.api.operations.on_cluster import SetSettings, SettingsPatch, preview

        patch = SettingsPatch(
            changes=changes,
            dry_run=flags.dry_run,
            reason=flags.reason,
            if_revision=flags.if_revision,
        )
        # What cannot be saved is found before anything has changed.
        order = SetSettings(patch)
        saving = _saving(client, order, config, name) if save else None
        found = client.send(order)
    if shown := changes_text(found, flags.output_format):
        output.emit(shown)
    if flags.output_format in (Format.TABLE, Format.WIDE):
        for line in preview(found):
            output.say(line)
    if found.changes and not flags.dry_run:
        output.say(f"revision {found.revision}")
    saves = saving is not None and saving.changes
    if saving is not None and saves:
        _save(saving, found, dry_run=flags.dry_run)
    if not found.changes and not saves:
        output.say("nothing to change")
    elif flags.dry_run:
        raise typer.Exit(EXIT_WOULD_CHANGE)


def parse(texts: Iterable[str]) -> "dict[str, SettingValue]":
    """`KEY=VALUE` each; the controller says whether there is such a key and value.

    Raises UsageError for another form, and for a key that is given twice."""
    found = config_file.parse_assignments(texts, "KEY=VALUE", HINT)
    from controller.api.settings.setting_values import value_of

    return {key: value_of(key, text) for key, text in found.items()}


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


def changes_text(found: "SettingChanges", output_format: Format) -> str:
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
