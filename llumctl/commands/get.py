"""`llumctl get`: the settings that may be changed while the cluster runs."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controller.api.errors import UsageError
from controller.api.text.quantities import setting_value
from llumctl import choices, connect
from llumctl.commands.options import Cluster, ClusterConfig, OutputFormat
from llumctl.config import config_file
from llumctl.text import output, settings_text
from llumctl.text.output import Format

if TYPE_CHECKING:
    from collections.abc import Sequence

    from controller.api.operations.on_cluster import Setting, SettingList
    from controller.api.wire.status import LevelStatus


def get(
    key: Annotated[
        str | None,
        typer.Argument(
            metavar="[KEY]", help="Only this one, as migration.max_moves.", show_default=False
        ),
    ] = None,
    toml: Annotated[
        bool,
        typer.Option("--toml", help="Those that differ from the config file, as lines for it."),
    ] = False,
    config: ClusterConfig = None,
    output_format: OutputFormat = Format.TABLE,
    cluster: Cluster = None,
) -> None:
    """Show the settings that `llumctl set` changes."""
    if key is not None:
        choices.an_id(key, "KEY")
    if toml and output_format is not Format.TABLE:
        raise UsageError("--toml: give either this or --output", "llumctl get --toml")
    if config is not None:
        config_file.find(config)  # what is wrong with it is told without a cluster
        if not toml:
            raise UsageError("--config: only --toml looks at a file", "llumctl get --toml")
    name = connect.attached(cluster)
    with connect.client(name) as client:
        found = client.settings()
        levels = client.status().levels if toml else ()
    if key is not None:
        known = [setting.key for setting in found.settings]
        choices.one_of(key, known, "KEY", "a setting of a running cluster")
        only = tuple(setting for setting in found.settings if setting.key == key)
        found = found.model_copy(update={"settings": only})
    if toml:
        _emit_toml(found, levels, config, name)
        return
    output.emit(_text(found, output_format))
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
        output.emit(settings_text.toml(differing, levels))
        output.say(f"these differ from {against}")
    else:
        output.say(f"nothing differs from {against}")


def _text(found: "SettingList", output_format: Format) -> str:
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
