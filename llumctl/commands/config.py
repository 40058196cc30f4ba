"""`llumctl config` shows which config file is used, the settings in effect, and their schema."""

import json
import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llumctl import output
from llumctl.commands.options import Config, format_option
from llumctl.config import config_file, toml_text
from llumctl.output import Format

if TYPE_CHECKING:
    from controller.api.settings.settings import Settings
    from llumctl.config.config_file import Origins
    from llumctl.config.toml_text import KeyPath

SCHEMA_VERSION = 1
HIDDEN = "(hidden)"
_SECRET = r".*(token|secret|password|passwd|credentials?|(api|access|auth|private)[_-]?key)"

app = typer.Typer(name="config", help="Show the configuration.", rich_markup_mode=None)


class ConfigFormat(StrEnum):
    TOML = "toml"
    JSON = "json"
    YAML = "yaml"


@app.command()
def path(
    config: Config = None,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="List on stderr where it was looked for.")
    ] = False,
) -> None:
    """Print the path of the config file that is used, if there is one."""
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
    origin: Annotated[
        bool, typer.Option("--origin", help="Say where each setting comes from.")
    ] = False,
) -> None:
    """Print the settings in effect. The TOML output is itself a valid config file."""
    from llumctl.config import settings

    found, origins = settings.load_with_origins(config)
    told = origins if origin else None
    if output_format is ConfigFormat.TOML:
        output.emit(_as_toml(found, told))
    else:
        machine = Format(output_format)
        output.emit(_document(found, told, machine))


@app.command()
def schema() -> None:
    """Print the JSON schema of the config file, for editors."""
    from controller.api.settings.settings import Settings

    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    output.emit(output.json_text({**dialect, **Settings.model_json_schema()}, indent=2))


def _exists(path: Path) -> bool:
    """Whether the file exists. A file without permission counts as present: reading it will report
    the error."""
    try:
        return path.exists()
    except OSError:
        return True


def _as_toml(settings: "Settings", origins: "Origins | None") -> str:
    """The settings as TOML. With origins, a comment after each value says where it comes from.

    A setting without a value becomes a comment, since TOML has no null.
    """
    lines: list[str] = []
    for table, content in _hidden(settings.model_dump()).items():
        if isinstance(content, Mapping):
            lines += ["", f"[{table}]", *_pairs((table,), content, origins)]
        else:
            for index, item in enumerate(content):
                lines += ["", f"[[{table}]]", *_pairs((table, index), item, origins)]
    return "\n".join(lines[1:])


def _document(settings: "Settings", origins: "Origins | None", output_format: Format) -> str:
    """The settings as JSON or YAML; with origins also the origin of each setting by its dotted
    name."""
    tables = _hidden(settings.model_dump(mode="json"))
    whole: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "settings": tables}
    if origins is not None:
        whole["origins"] = {
            ".".join(map(str, path)): _origin_of(path, origins) for path in _paths(tables)
        }
    if output_format is Format.JSON:
        return output.json_text(whole, indent=2)
    import yaml

    text: str = yaml.safe_dump(whole, sort_keys=False, allow_unicode=False)
    return text.rstrip("\n")


def _origin_of(path: "KeyPath", origins: "Origins") -> str:
    """Where a setting comes from: `default`, `FILE:LINE` or a variable."""
    from llumctl.config.settings import engine_key

    table, *inner, name = path
    if table == "engine" and not origins.given(path):
        written: Mapping[str, Any] = origins.file.tables["engine"] if origins.file else {}
        return origins.of((table, next(key for key in written if engine_key(key) == name)))
    if inner and origins.file is not None and table in origins.file.tables:
        (index,) = inner
        given = name in origins.file.tables[str(table)][index]
    else:
        given = not inner and origins.given(path)
    return origins.of(path) if given else "default"


def _pairs(path: "KeyPath", content: Mapping[str, Any], origins: "Origins | None") -> Iterator[str]:
    for name, value in content.items():
        try:
            line = f"{toml_text.key(name)} = {toml_text.value_text(value)}"
        except TypeError:
            line = f"# {toml_text.key(name)} = {json.dumps(value, default=str)}"
        yield line if origins is None else f"{line}  # {_origin_of((*path, name), origins)}"


def _paths(tables: Mapping[str, Any]) -> "Iterator[KeyPath]":
    for table, content in tables.items():
        if isinstance(content, Mapping):
            yield from ((table, name) for name in content)
        else:
            for index, item in enumerate(content):
                yield from ((table, index, name) for name in item)


def _hidden(value: Any) -> Any:
    """Replaces secrets: values at any depth whose names look like a secret's."""
    if isinstance(value, Mapping):
        return {
            name: HIDDEN if _is_secret(name, inner) else _hidden(inner)
            for name, inner in value.items()
        }
    return [_hidden(inner) for inner in value] if isinstance(value, list | tuple) else value


def _is_secret(name: str, value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(_SECRET, name.lower()) is not None
