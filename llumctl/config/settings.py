"""Flags over environment over config file over defaults: one frozen `Settings`.

Variables are `LLUMCTL_<TABLE>_<KEY>`, as in `LLUMCTL_ENDPOINT_PORT=9000`; an empty one
counts as unset, and one that names no setting is refused like an unknown key of the file, unless
Kubernetes made it.
`[engine]`, `[keys]` and `[commands]` take any key: vLLM's own parser and the dashboard check those
later.
"""

import json
import os
import re
import shlex
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from controller.api.errors import UsageError
from controller.api.settings.live_settings import CONSOLE_TABLES, of_the_console
from controller.api.settings.setting_values import converted, value_of
from controller.api.settings.settings import ConsoleTable, OwnCommandTable, Settings, table_model
from controller.api.settings.table import kinds
from llumctl import choices
from llumctl.config import assignments, config_file, settings_checks, settings_errors
from llumctl.config.settings_origin import Origins

PREFIX = "LLUMCTL_"
NO_SETTINGS = ("LLUMCTL_CONFIG", "LLUMCTL_NONCE", "LLUMCTL_TOKEN", "LLUMCTL_TOKEN_FILE")
"""Where the file is, the mark of a cluster's processes, which their children inherit, and what
`llumctl.connect` shows to a remote cluster."""

# A pod gets these for each service of its namespace: of one named `llumctl`, or `llumctl-endpoint`,
# they begin as ours do.
_KUBERNETES = re.compile(
    r"\w+_(SERVICE_HOST=.*|SERVICE_PORT(_\w+)?=\d+|PORT(_\d+_(TCP|UDP|SCTP))?=(tcp|udp|sctp)://.*"
    r"|PORT_\d+_(TCP|UDP|SCTP)_(PROTO|PORT|ADDR)=.*)"
)

SET_EXAMPLE = "llumctl up --set migration.max_moves=2"

Key = tuple[str, str]
Flags = Mapping[Key, tuple[str, Any]]
"""(table, key) -> (the flag's name, its value); None means that it was not given."""


def load(
    *,
    config: Path | None = None,
    flags: Flags | None = None,
    engine_args: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Raises UsageError whose message starts with FILE:LINE, the variable or the flag."""
    return load_with_origins(config, flags, engine_args, environ)[0]


def load_with_origins(
    config: Path | None = None,
    flags: Flags | None = None,
    engine_args: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    assigned: Sequence[str] = (),
) -> tuple[Settings, Origins]:
    """`load`, with where each setting came from. `assigned`: what `--set` sets."""
    environ = os.environ if environ is None else environ
    file = config_file.find(config, environ)
    origins = Origins(file)
    data = _from_file(file, origins)
    _refuse_unknown(environ)
    for (table, key), value in _from_environment(environ, origins).items():
        _put(data, table, key, value)
    for (table, key), (flag, value) in (flags or {}).items():
        if value is not None:
            origins.name((table, key), flag)
            _put(data, table, key, value)
    for argument in engine_args:
        key, value = parse_engine_arg(argument)
        origins.name(("engine", key), "--engine-arg")
        _put(data, "engine", key, value)
    for key, text in assignments.parse(assigned, "--set", SET_EXAMPLE).items():
        _assign(data, origins, key, text)
    return settings_checks.checked(_validated(data, origins), origins), origins


def of_file(file: config_file.ConfigFile) -> Settings:
    """The settings that the file gives with the defaults: no flags, no variables, and no look at
    what the settings name. Raises UsageError."""
    origins = Origins(file)
    return _validated(_from_file(file, origins), origins)


def load_keys(environ: Mapping[str, str] | None = None) -> tuple[dict[str, str], Origins]:
    """`[keys]` alone, with where each came from: the dashboard also starts beside settings that
    `up` would refuse. Raises UsageError."""
    settings, origins = _load_table("keys", environ)
    return settings.keys, origins


def load_commands(
    environ: Mapping[str, str] | None = None,
) -> tuple[dict[str, OwnCommandTable], Origins]:
    """`[commands]` alone, as for `[keys]`. Raises UsageError, also where other users could write
    into the file what this one is to run."""
    settings, origins = _load_table("commands", environ)
    file = origins.file
    if settings.commands and file is not None and file.is_changed_by_others:
        raise UsageError(
            f"{origins.of(('commands',))}: commands names programs to run, and {file.path} can be"
            " changed by other users",
            f"chmod go-w {shlex.quote(str(file.path))}",
        )
    return settings.commands, origins


def load_console(environ: Mapping[str, str] | None = None) -> ConsoleTable:
    """`[console]` alone, as for `[keys]`. Raises UsageError."""
    return _load_table("console", environ)[0].console


def _load_table(name: str, environ: Mapping[str, str] | None = None) -> tuple[Settings, Origins]:
    environ = os.environ if environ is None else environ
    file = config_file.find(None, environ)
    origins = Origins(file)
    data: dict[str, Any] = {}
    if file is not None and name in file.tables:
        data[name] = file.tables[name]
    for (table, key), value in _from_environment(environ, origins, (name,)).items():
        _put(data, table, key, value)
    return _validated(data, origins), origins


def parse_engine_arg(
    argument: str, example: str = "llumctl up --engine-arg max_model_len=4096"
) -> tuple[str, Any]:
    """`max-model-len=4096` -> ("max_model_len", 4096): JSON if it parses, else a string."""
    name, equals, raw = argument.partition("=")
    key = engine_key(name.strip().lstrip("-"))
    if not equals or not key:
        raise UsageError(
            f"--engine-arg: {argument[:60]!r} is not of the form key=value",
            example,
        )
    return key, parse_value(raw)


def parse_value(raw: str) -> Any:
    try:
        return json.loads(raw, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return raw


def engine_key(name: str) -> str:
    """The Python name of an engine argument."""
    return name.replace("-", "_")


def _refuse_constant(constant: str) -> None:
    """NaN and Infinity are not JSON: they stay strings."""
    raise ValueError(constant)


def _validated(data: Mapping[str, Any], origins: Origins) -> Settings:
    try:
        return Settings.model_validate(data)
    except ValidationError as error:
        raise settings_errors.explain(error, origins) from error


def _from_file(file: config_file.ConfigFile | None, origins: Origins) -> dict[str, Any]:
    if file is None:
        return {}
    data = dict(file.tables)
    if isinstance(data.get("engine"), dict):
        data["engine"] = _engine_table(data["engine"], origins)
    return data


def _engine_table(table: dict[str, Any], origins: Origins) -> dict[str, Any]:
    normal: dict[str, Any] = {}
    for name, value in table.items():
        key = engine_key(name)
        if key in normal:
            raise UsageError(
                f"{origins.of(('engine', name))}: duplicate key engine.{key}"
                " (written once with a dash and once with an underscore)"
            )
        normal[key] = value
    return normal


def _from_environment(
    environ: Mapping[str, str], origins: Origins, tables: Container[str] = Settings.model_fields
) -> dict[Key, Any]:
    """Values by (table, key), converted to the types that the settings want."""
    values: dict[Key, Any] = {}
    for variable, (table, key) in _ours(environ):
        if table in tables and key:
            origins.name((table, key), variable)
            values[table, key] = _converted(variable, table, key, environ[variable])
    return values


def _refuse_unknown(environ: Mapping[str, str]) -> None:
    for variable, (table, key) in _ours(environ):
        if table not in Settings.model_fields or not key:
            path = (table, key) if key else (table,)
            raise settings_errors.unknown_variable(variable, path)


def _ours(environ: Mapping[str, str]) -> Iterator[tuple[str, Key]]:
    """Variables that are to set something, with the table and the key that they name."""
    for variable in sorted(environ):
        value = environ[variable]
        if not variable.startswith(PREFIX) or variable in NO_SETTINGS or not value:
            continue
        if not _KUBERNETES.fullmatch(f"{variable}={value}"):
            table, _, key = variable.removeprefix(PREFIX).lower().partition("_")
            yield variable, (table, key)


def _converted(variable: str, table: str, key: str, raw: str) -> Any:
    if table == "engine":
        return parse_value(raw)
    if table == "keys":
        return raw
    if table == "priority":
        raise UsageError(
            f"{variable}: priority levels can only be set in the config file",
            f"write [[priority]] into it and unset {variable}",
        )
    if table == "commands":
        raise UsageError(
            f"{variable}: commands of your own can only be set in the config file",
            f"write [commands.NAME] into it and unset {variable}",
        )
    model = table_model(table)
    if key not in kinds(model):
        raise settings_errors.unknown_key(variable, (table, key))
    try:
        return converted(model, key, raw)
    except ValidationError as error:
        raise settings_errors.explain_value(error, variable, raw) from error


def _assign(data: dict[str, Any], origins: Origins, dotted: str, text: str) -> None:
    """Puts what `--set TABLE.KEY=VALUE` sets. Raises UsageError for a table that a cluster has not,
    and for a key that another flag sets, too."""
    table, _, key = dotted.partition(".")
    if table in CONSOLE_TABLES:
        refused = of_the_console(dotted)
        raise UsageError(f"--set: {refused}", refused.hint)
    if table not in Settings.model_fields:
        raise settings_errors.unknown_key("--set", (table, key) if key else (table,))
    if not key:
        raise UsageError(f"--set: {table} is a table: name a key of it", SET_EXAMPLE)
    if table == "priority":
        _assign_to_level(data, origins, key, text)
        return
    if table == "engine":
        key = engine_key(key)
    if origins.flag((table, key)):
        raise UsageError(
            f"--set: {dotted[:60]} is set by {origins.of((table, key))}, too", "llumctl up --help"
        )
    origins.name((table, key), "--set")
    _put(data, table, key, parse_value(text) if table == "engine" else value_of(dotted, text))


def _assign_to_level(data: dict[str, Any], origins: Origins, key: str, text: str) -> None:
    """`LEVEL.target_load_tokens`: of the levels in the file, or of the default ones."""
    name, _, field = key.partition(".")
    levels = data.get("priority", Settings().model_dump()["priority"])
    if not isinstance(levels, list | tuple) or not all(isinstance(each, dict) for each in levels):
        return  # validation names it
    names = [str(each.get("name")) for each in levels]
    index = names.index(choices.one_of(name, names, "--set", "a priority level"))
    origins.name(("priority", index), "--set")
    changed = {**levels[index], field: value_of(f"priority.{key}", text)}
    data["priority"] = (*levels[:index], changed, *levels[index + 1 :])


def _put(data: dict[str, Any], table: str, key: str, value: Any) -> None:
    """A table that is not one stays as it is: validation names it."""
    inner = data.get(table, {})
    if isinstance(inner, dict):
        data[table] = {**inner, key: value}
