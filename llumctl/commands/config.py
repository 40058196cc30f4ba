"""`llumctl config`: which config file is used, the settings in effect, and their schema."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from llumctl.commands.options import Config, format_option
from llumctl.config import config_file
from llumctl.text import output

app = typer.Typer(name="config", help="Show the configuration.", rich_markup_mode=None)


class ConfigFormat(StrEnum):
    TOML = "toml"
    JSON = "json"
    YAML = "yaml"


@app.command()
def path(
    config: Config = None,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Tell on stderr where it was looked for.")
    ] = False,
) -> None:
    """Print the config file that is used, if there is one."""
    origin, file = config_file.locate(config)
    exists = _exists(file)
    if not exists and origin != config_file.DEFAULT:
        raise config_file.absent(file, origin)
    if verbose or not exists:
        for name, candidate in config_file.candidates(config):
            if candidate is None:
                output.say(f"{name}: not set")
            elif not _exists(candidate):
                output.say(f"{name}: {candidate} (absent)")
            else:
                output.say(f"{name}: {candidate} ({'used' if name == origin else 'not used'})")
    if exists:
        output.emit(str(file))


@app.command()
def show(
    config: Config = None,
    output_format: Annotated[ConfigFormat, format_option] = ConfigFormat.TOML,
    origin: Annotated[bool, typer.Option("--origin", help="Say where each comes from.")] = False,
) -> None:
    """Print the settings in effect; as TOML they are a config file themselves."""
    from llumctl.config import settings
    from llumctl.text import config as settings_text

    found, origins = settings.load_with_origins(config)
    told = origins if origin else None
    if output_format is ConfigFormat.TOML:
        output.emit(settings_text.toml(found, told))
    else:
        machine = output.Format(output_format)
        output.emit(settings_text.document(found, told, machine))


@app.command()
def schema() -> None:
    """Print the JSON schema of the config file, for editors."""
    from controller.api.settings.settings import Settings

    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    output.emit(output.json_text({**dialect, **Settings.model_json_schema()}, indent=2))


def _exists(path: Path) -> bool:
    """A file that may not be looked at counts as present: reading it tells what is wrong."""
    try:
        return path.exists()
    except OSError:
        return True
