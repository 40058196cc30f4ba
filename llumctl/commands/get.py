"""`llumctl get`: the settings that may be changed while the cluster runs."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from controller.api.text.quantities import setting_value
from llumctl import choices, connect
from llumctl.commands.options import Cluster, OutputFormat
from llumctl.config import config_file
from llumctl.text import output
from llumctl.text.output import Format

if TYPE_CHECKING:
    from controller.api.wire.settings import Setting, SettingList


def get(
    key: Annotated[
        str | None,
        typer.Argument(
            metavar="[KEY]", help="Only this one, as migration.max_moves.", show_default=False
        ),
    ] = None,
    output_format: OutputFormat = Format.TABLE,
    cluster: Cluster = None,
) -> None:
    """Show the settings that `llumctl set` changes."""
    if key is not None:
        choices.an_id(key, "KEY")
    with connect.client(config_file.cluster_name(cluster)) as client:
        found = client.settings()
    if key is not None:
        known = [setting.key for setting in found.settings]
        choices.one_of(key, known, "KEY", "a setting of a running cluster")
        only = tuple(setting for setting in found.settings if setting.key == key)
        found = found.model_copy(update={"settings": only})
    output.emit(_text(found, output_format))
    if output_format in (Format.TABLE, Format.WIDE):
        output.say(f"revision {found.revision}")


def _text(found: "SettingList", output_format: Format) -> str:
    if output_format is Format.NAME:
        return "\n".join(setting.key for setting in found.settings)
    if output_format in (Format.TABLE, Format.WIDE):
        rows = [_row(setting) for setting in found.settings]
        header = ("KEY", "VALUE", "DEFAULT", "MEANING")
        return output.table(header, rows, colours=output.use_colours(sys.stdout))
    return output.encode(output_format, found, found.settings)


def _row(setting: "Setting") -> tuple[str, ...]:
    value, default = setting_value(setting.value), setting_value(setting.default)
    return setting.key, value, default, setting.meaning
