"""Makes one frozen `Settings` of flags, environment, config file and defaults. Flags win over the
environment, the environment over the file, and the file over the defaults.

Variables are `LLUMCTL_<TABLE>_<KEY>`, as in `LLUMCTL_ENDPOINT_PORT=9000`. An empty variable counts
as unset. A variable that names no setting is refused like an unknown key of the file, unless
Kubernetes made it. `[engine]`, `[adapters]`, `[keys]` and `[commands]` may have any key: `up` and
the dashboard check these tables later.

The model (`controller.api.settings`) checks types and bounds of single values. This module checks
addresses, secrets and folders, which need more than one value. It makes paths absolute, because the
cluster's processes run in other folders: a path in a config file is relative to the file, and any
other path to the current folder.
"""

import contextlib
import difflib
import json
import os
import re
import shlex
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from controller.api.errors import UsageError, WrongSettingError
from controller.api.hosts import is_loopback
from controller.api.settings import PYTHON, key_file
from controller.api.settings.setting_values import (
    CONSOLE_TABLES,
    complaint,
    converted,
    of_the_console,
    value_of,
)
from controller.api.settings.settings import (
    EMBEDDED_MODEL,
    EMBEDDED_MODELS,
    OPEN_TABLES,
    ConsoleTable,
    EndpointTable,
    OwnCommandTable,
    Settings,
    table_model,
)
from controller.api.settings.table import kinds
from controller.api.settings.vllm_options import (
    Code,
    EndpointOptions,
    code_in,
    why_refused,
)
from llumctl import arguments
from llumctl.config import config_file
from llumctl.config.config_file import Origins
from llumctl.config.toml_text import KeyPath

PREFIX = "LLUMCTL_"
NO_SETTINGS = ("LLUMCTL_CONFIG", "LLUMCTL_NONCE", "LLUMCTL_TOKEN", "LLUMCTL_TOKEN_FILE")
"""Variables that are not settings: the config file's path, the mark that a cluster's processes pass
on to their children, and the token with which `llumctl.connect` reaches a remote cluster."""

# A pod gets these variables for each service of its namespace. If a service is called `llumctl` or
# `llumctl-endpoint`, they begin like ours.
_KUBERNETES = re.compile(
    r"\w+_(SERVICE_HOST=.*|SERVICE_PORT(_\w+)?=\d+|PORT(_\d+_(TCP|UDP|SCTP))?=(tcp|udp|sctp)://.*"
    r"|PORT_\d+_(TCP|UDP|SCTP)_(PROTO|PORT|ADDR)=.*)"
)

SET_EXAMPLE = "llumctl up --set migration.max_moves=2"

Key = tuple[str, str]
Flags = Mapping[Key, tuple[str, Any]]
"""(table, key) -> (the flag's name, its value). A value of None means that the flag was not
given."""


def load(
    *,
    config: Path | None = None,
    flags: Flags | None = None,
    engine_args: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """The settings in effect. Raises UsageError, which begins with FILE:LINE, the variable or the
    flag."""
    return load_with_origins(config, flags, engine_args, environ)[0]


def load_with_origins(
    config: Path | None = None,
    flags: Flags | None = None,
    engine_args: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    assigned: Sequence[str] = (),
) -> tuple[Settings, Origins]:
    """The settings in effect, and where each came from. `assigned`: the texts of `--set`."""
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
    for key, text in config_file.parse_assignments(assigned, "--set", SET_EXAMPLE).items():
        _assign(data, origins, key, text)
    return checked(_validated(data, origins), origins), origins


def of_file(file: config_file.ConfigFile) -> Settings:
    """The settings of the file and the defaults alone, without flags and variables. Files and
    folders that they name are not checked. Raises UsageError."""
    origins = Origins(file)
    return _validated(_from_file(file, origins), origins)


def load_keys(environ: Mapping[str, str] | None = None) -> tuple[dict[str, str], Origins]:
    """The table `[keys]` alone, and where each key came from. It is read apart from the other
    settings, because the dashboard must start even if `up` would refuse those. Raises
    UsageError."""
    settings, origins = _load_table("keys", environ)
    return settings.keys, origins


def load_commands(
    environ: Mapping[str, str] | None = None,
) -> tuple[dict[str, OwnCommandTable], Origins]:
    """The table `[commands]` alone, like `[keys]`. Raises UsageError for a wrong table. It also
    raises it if other users could change the file, because they could choose what this user runs.
    """
    settings, origins = _load_table("commands", environ)
    file = origins.file
    if settings.commands and file is not None and file.is_changed_by_others:
        raise UsageError(
            f"{origins.of(('commands',))}: commands names programs to run, but other users can"
            f" change {file.path}",
            f"chmod go-w {shlex.quote(str(file.path))}",
        )
    return settings.commands, origins


def load_console(environ: Mapping[str, str] | None = None) -> ConsoleTable:
    """The table `[console]` alone, like `[keys]`. Raises UsageError."""
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
    """`max-model-len=4096` -> ("max_model_len", 4096). The value is JSON if it parses as JSON, else
    a string."""
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
    """Makes NaN and Infinity stay strings, since they are not JSON."""
    raise ValueError(constant)


def _validated(data: Mapping[str, Any], origins: Origins) -> Settings:
    try:
        return Settings.model_validate(data)
    except ValidationError as error:
        raise explain(error, origins) from error


def _from_file(file: config_file.ConfigFile | None, origins: Origins) -> dict[str, Any]:
    if file is None:
        return {}
    data = dict(file.tables)
    if isinstance(data.get("engine"), dict):
        data["engine"] = _engine_table(data["engine"], origins)
    return data


def _engine_table(
    table: Mapping[str, Any], origins: Origins, place: KeyPath = ("engine",)
) -> dict[str, Any]:
    normal: dict[str, Any] = {}
    for name, value in table.items():
        key = engine_key(name)
        if key in normal:
            raise UsageError(
                f"{origins.of((*place, name))}: duplicate key engine.{key}"
                " (written once with a dash and once with an underscore)"
            )
        normal[key] = value
    return normal


def _from_environment(
    environ: Mapping[str, str], origins: Origins, tables: Container[str] = Settings.model_fields
) -> dict[Key, Any]:
    """The values of variables, by (table, key), converted to the types of the settings."""
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
            raise unknown_variable(variable, path)


def _ours(environ: Mapping[str, str]) -> Iterator[tuple[str, Key]]:
    """The variables that stand for a setting, each with the table and the key that it names."""
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
    if table in ("adapters", "keys"):
        return raw
    if table == "priority":
        raise UsageError(
            f"{variable}: priority levels can only be set in the config file",
            f"write [[priority]] into it and unset {variable}",
        )
    if table == "models":
        raise UsageError(
            f"{variable}: models can only be set in the config file",
            f"write [models.NAME] into it and unset {variable}",
        )
    if table == "commands":
        raise UsageError(
            f"{variable}: commands of your own can only be set in the config file",
            f"write [commands.NAME] into it and unset {variable}",
        )
    model = table_model(table)
    if key not in kinds(model):
        raise unknown_key(variable, (table, key))
    try:
        return converted(model, key, raw)
    except ValidationError as error:
        raise explain_value(error, variable, raw) from error


def _assign(data: dict[str, Any], origins: Origins, dotted: str, text: str) -> None:
    """Puts the value of `--set TABLE.KEY=VALUE` into the data. Raises UsageError for a table that a
    cluster does not have, and for a key that another flag sets too."""
    table, _, key = dotted.partition(".")
    if table in CONSOLE_TABLES:
        refused = of_the_console(dotted)
        raise UsageError(f"--set: {refused}", refused.hint)
    if table not in Settings.model_fields:
        raise unknown_key("--set", (table, key) if key else (table,))
    if not key:
        raise UsageError(f"--set: {table} is a table: name a key of it", SET_EXAMPLE)
    if table == "models":
        raise UsageError("--set: models can only be set in the config file", "llumctl config path")
    if table == "priority":
        _assign_to_level(data, origins, key, text)
        return
    if table == "engine":
        key = engine_key(key)
    if origins.flag((table, key)):
        raise UsageError(
            f"--set: {dotted[:60]} is also set by {origins.of((table, key))}", "llumctl up --help"
        )
    origins.name((table, key), "--set")
    _put(data, table, key, parse_value(text) if table == "engine" else value_of(dotted, text))


def _assign_to_level(data: dict[str, Any], origins: Origins, key: str, text: str) -> None:
    """Sets a field of a priority level of the file, or else of the default levels. `key`:
    `LEVEL.FIELD`."""
    name, _, field = key.partition(".")
    levels = data.get("priority", Settings().model_dump()["priority"])
    if not isinstance(levels, list | tuple) or not all(isinstance(each, dict) for each in levels):
        return  # validation reports it
    names = [str(each.get("name")) for each in levels]
    index = names.index(arguments.one_of(name, names, "--set", "a priority level"))
    origins.name(("priority", index), "--set")
    changed = {**levels[index], field: value_of(f"priority.{key}", text)}
    data["priority"] = (*levels[:index], changed, *levels[index + 1 :])


def _put(data: dict[str, Any], table: str, key: str, value: Any) -> None:
    """Puts a value into a table. If the table is something else, it stays, and validation reports
    it."""
    inner = data.get(table, {})
    if isinstance(inner, dict):
        data[table] = {**inner, key: value}


# -- checks beyond one value ------------------------------------------------------------

LOOPBACK = "127.0.0.1"
ENDPOINT_FILES = (
    "api_key_file",
    "chat_template",
    "tool_parser_plugin",
    "reasoning_parser_plugin",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_ca_certs",
)


def checked(settings: Settings, origins: Origins) -> Settings:
    """The settings with absolute paths, after all checks. Raises UsageError."""
    _check_addresses(settings, origins)
    settings = _with_models(settings, origins)
    cluster, endpoint = settings.cluster, settings.endpoint
    model = _model(cluster.model, origins)
    emulated = settings.emulated
    if cluster.engine == "emulated":
        _check_emulated(settings, origins)
        emulated = emulated.model_copy(update={"profile": _profile(emulated.profile, origins)})
    elif origins.flag(("emulated", "profile")):
        raise UsageError(
            f"{origins.of(('emulated', 'profile'))}: only emulated engines have a profile",
            "llumctl up --engine emulated --profile ...",
        )
    if endpoint.api_key_file is not None:
        _check_key_file(endpoint.api_key_file, settings, origins)
    _check_code(settings, origins)
    engine = _with_interpreter(settings.engine, origins, ("engine", PYTHON))
    return settings.model_copy(
        update={
            "engine": engine,
            "adapters": {
                name: str(_absolute(path, ("adapters", name), origins))
                for name, path in settings.adapters.items()
            },
            "cluster": cluster.model_copy(update={"model": model}),
            "endpoint": endpoint.model_copy(update=_endpoint_files(endpoint, origins)),
            "emulated": emulated,
        }
    )


def _check_addresses(settings: Settings, origins: Origins) -> None:
    endpoint, control = settings.endpoint, settings.control
    if not is_loopback(endpoint.host) and endpoint.api_key_file is None:
        raise UsageError(
            f"{origins.of(('endpoint', 'host'))}: endpoint.host {endpoint.host!r} is open to other"
            " machines, and without endpoint.api_key_file anybody there could use the endpoint",
            f"set endpoint.api_key_file      or      llumctl up --host {LOOPBACK}",
        )
    if not is_loopback(control.host):
        raise UsageError(
            f"{origins.of(('control', 'host'))}: control.host {control.host!r} is not a loopback"
            " address: the control API serves this machine only",
            f"control.host = {LOOPBACK!r}, and from elsewhere: ssh -L {control.port}:"
            f"{LOOPBACK}:{control.port} HOST",
        )
    if endpoint.port == control.port:
        keys: tuple[KeyPath, KeyPath] = (("control", "port"), ("endpoint", "port"))
        where = next((origins.of(key) for key in keys if origins.given(key)), "control.port")
        raise UsageError(
            f"{where}: control.port and endpoint.port are both {control.port}",
            f"llumctl up --control-port {control.port % 65535 + 1}",
        )


def _with_models(settings: Settings, origins: Origins) -> Settings:
    """The settings with absolute paths in `[models.NAME]`, after the checks of these tables."""
    if not settings.models:
        if settings.attached_only:
            number = ("cluster", "instances")
            raise UsageError(
                f"{origins.of(number)}: a cluster has at least one instance; a model on attached"
                " servers only has a table of its own, [models.NAME] with instances = 0",
                origins.cure(number),
            )
        return settings
    for key, instead in ONE_MODEL_KEYS.items():
        if origins.given(key) or (key[0] == "adapters" and settings.adapters):
            raise UsageError(
                f"{origins.of(key)}: {'.'.join(map(str, key))} is for a cluster of one model,"
                f" and the file has [models.NAME]: each model says it for itself ({instead})",
                origins.cure(key),
            )
    models = {
        name: table
        if not table.instances
        else table.model_copy(
            update={
                "model": _model(table.model or name, origins, ("models", name)),
                "engine": _with_interpreter(
                    _engine_table(table.engine, origins, ("models", name, "engine")),
                    origins,
                    ("models", name),
                ),
                "adapters": {
                    adapter: str(_absolute(path, ("models", name), origins))
                    for adapter, path in table.adapters.items()
                },
                "emulated": _model_profile(name, table.emulated, origins),
            }
        )
        for name, table in settings.models.items()
    }
    settings = settings.model_copy(update={"models": models})
    for name in models:
        try:
            of_model = settings.of_model(name)
        except ValidationError as error:
            raise explain(error, origins, ("models", name)) from error
        if settings.cluster.engine == "emulated" and not of_model.attached_only:
            _check_emulated(of_model, origins, ("models", name))
        if code := next(iter(code_in(settings.models[name].engine)), ""):
            raise UsageError(
                f"{origins.of(('models', name))}: engine.{code} names code to run: only [engine]"
                " may have it",
                origins.cure(("models", name)),
            )
    return settings


ONE_MODEL_KEYS: Mapping[KeyPath, str] = {
    ("adapters",): "adapters",
    ("cluster", "model"): "model",
    ("cluster", "instances"): "instances",
    ("endpoint", "served_model_name"): "its name",
}
"""Settings that a cluster of several models does not have, and what its models have instead."""


def _model_profile(name: str, table: Mapping[str, Any], origins: Origins) -> dict[str, Any]:
    if not isinstance(profile := table.get("profile"), str):
        return dict(table)
    return {**table, "profile": _profile(profile, origins, ("models", name))}


def _check_emulated(
    settings: Settings, origins: Origins, place: KeyPath = ("cluster", "model")
) -> None:
    """Refuses settings that an engine that computes nothing cannot use, instead of ignoring
    them."""
    model = settings.cluster.model
    if model != EMBEDDED_MODEL:
        raise UsageError(
            f"{origins.of(place)}: an emulated engine computes nothing, so it"
            f" serves no model but {EMBEDDED_MODEL!r} (for its tokenizer), not {model!r}",
            "llumctl up --engine emulated      or      llumctl up --engine vllm MODEL",
        )
    if settings.vllm_args:
        name = next(iter(settings.vllm_args))
        key: KeyPath = ("engine", name) if place[0] == "cluster" else place
        raise UsageError(
            f"{origins.of(key)}: engine.{name} is an argument of vLLM's engine; an emulated one"
            " has only what [emulated] says",
            origins.cure(key),
        )


def _profile(profile: str, origins: Origins, key: KeyPath = ("emulated", "profile")) -> str:
    """The absolute path of a profile's file, or the name of a built-in profile, which `up`
    knows."""
    if not (_is_path(profile) or "/" in profile or profile.endswith(".toml")):
        return profile
    path = _absolute(profile, key, origins)
    if not path.is_file():
        raise UsageError(
            f"{origins.of(key)}: there is no profile file {path}",
            "llumctl up --engine emulated      (with the default profile)",
        )
    return str(path)


def _model(model: str, origins: Origins, key: KeyPath = ("cluster", "model")) -> str:
    """The absolute path of a model's folder, or `embedded` or a Hugging Face id unchanged."""
    if not model:
        raise UsageError(f"{origins.of(key)}: {'.'.join(map(str, key))} is empty")
    path = _absolute(model, key, origins)
    if model in EMBEDDED_MODELS or (not _is_path(model) and not path.is_dir()):
        return model
    if not path.is_dir():
        raise UsageError(
            f"{origins.of(key)}: there is no model folder {path}",
            f"llumctl up {EMBEDDED_MODEL}",
        )
    return str(path)


def _is_path(model: str) -> bool:
    return model.startswith(("/", "./", "../", "~"))


def _endpoint_files(endpoint: EndpointTable, origins: Origins) -> dict[str, str]:
    """The absolute paths of the files that `[endpoint]` names, by key. If the sampling defaults
    come from a folder and not from `auto` or `vllm`, its path is among them."""
    found = {
        key: str(_absolute(name, ("endpoint", key), origins))
        for key in ENDPOINT_FILES
        if (name := getattr(endpoint, key)) is not None
    }
    if endpoint.generation_config not in ("auto", "vllm"):
        key: KeyPath = ("endpoint", "generation_config")
        folder = _absolute(endpoint.generation_config, key, origins)
        if not (folder / "generation_config.json").is_file():
            raise UsageError(
                f"{origins.of(key)}: endpoint.generation_config: {folder} has no"
                " generation_config.json",
                'endpoint.generation_config = "auto"      (the model\'s own), or "vllm"',
            )
        found["generation_config"] = str(folder)
    return found


def _check_code(settings: Settings, origins: Origins) -> None:
    """Refuses settings that name code to run, unless they come from a file that only this user can
    read and change: somebody else may have set an argument or a variable."""
    keys: list[KeyPath] = [
        ("endpoint", name)
        for name, info in EndpointOptions.model_fields.items()
        if Code in info.metadata and getattr(settings.endpoint, name) is not None
    ]
    keys += [("engine", name) for name in code_in(settings.engine)]
    for key in keys:
        dotted, where = ".".join(map(str, key)), origins.of(origins.written(key))
        if origins.file is None or not origins.in_file(origins.written(key)):
            raise UsageError(
                f"{where}: {dotted} names code to run: only your own configuration file, with"
                " mode 0600, may set it",
                "llumctl config path",
            )
        if not origins.file.is_private:
            raise UsageError(
                f"{where}: {dotted} names code to run, but others can read or change"
                f" {origins.file.path}",
                f"chmod 600 {origins.file.path}",
            )


def _check_key_file(name: str, settings: Settings, origins: Origins) -> None:
    key: KeyPath = ("endpoint", "api_key_file")
    path = _absolute(name, key, origins)
    where = f"{origins.of(key)}: {'.'.join(map(str, key))}"
    text = config_file.read_secret(path, where)
    try:
        key_file.check(text, [level.name for level in settings.priority])
    except ValueError as error:
        raise UsageError(f"{where}: {path}: {error}", "llumctl config show") from error


def _with_interpreter(table: Mapping[str, Any], origins: Origins, key: KeyPath) -> dict[str, Any]:
    """The engine arguments with the absolute path of their Python interpreter, if they name one."""
    if not isinstance(python := table.get(PYTHON), str):
        return dict(table)
    return {**table, PYTHON: interpreter(_absolute(python, key, origins))}


def interpreter(path: Path) -> str:
    """The interpreter of a Python environment, or the path of an interpreter as it is."""
    return str(path / "bin" / "python" if path.is_dir() else path)


def _absolute(name: str, key: KeyPath, origins: Origins) -> Path:
    base = Path.cwd()
    if origins.file is not None and origins.in_file(key):
        base = base / origins.file.path.parent
    with contextlib.suppress(RuntimeError):  # a ~user that does not exist
        return base / Path(name).expanduser()
    return base / name


# -- errors in words: where the setting stands, what is wrong, and the nearest valid key -

MAX_SHOWN = 10


def explain(error: ValidationError, origins: Origins, below: KeyPath = ()) -> UsageError:
    """One error that reports everything that is wrong, a line for each mistake. `below`: the table
    that contains the validated ones."""
    found = error.errors(include_url=False)
    told = [_one(details, origins, (*below, *details["loc"])) for details in found]
    if len(told) == 1:
        return told[0]
    lines = [item.message for item in told[:MAX_SHOWN]]
    if len(told) > MAX_SHOWN:
        lines.append(f"and {len(told) - MAX_SHOWN} more")
    hints = [item.hint for item in told if item.hint]
    return UsageError("\n       ".join(lines), hints[0] if hints else "")


def explain_value(error: ValidationError, origin: str, raw: str) -> UsageError:
    """The error for a variable whose value does not have the setting's type."""
    details = error.errors(include_url=False)[0]
    return UsageError(f"{origin}: {complaint(details, raw)}", f"unset {origin}")


@contextlib.contextmanager
def located(origins: Origins) -> Iterator[None]:
    """Adds the place where a setting was written to the errors of checks inside this context."""
    try:
        yield
    except WrongSettingError as error:
        key = origins.written(error.key)
        where = origins.of(key)
        prefix = "" if where == ".".join(map(str, key)) else f"{where}: "
        raise UsageError(prefix + error.message, error.hint or origins.cure(key)) from error


def unknown_key(where: str, path: KeyPath) -> UsageError:
    name = ".".join(str(part) for part in path if not isinstance(part, int))
    what = "table" if len(path) == 1 else "key"
    if path[0] == "endpoint" and (why := why_refused(str(path[-1]))):
        return UsageError(f"{where}: {name} is refused: {why}", "llumctl up --help")
    message = f"{where}: unknown {what} {name}"
    if nearest := nearest_key(path):
        message += f"; did you mean {nearest}?"
    table = str(path[0])
    if table not in Settings.model_fields:
        return UsageError(message, f"the tables are {_listed(Settings.model_fields)}")
    return UsageError(message, f"the keys of [{table}] are {_listed(kinds(table_model(table)))}")


def unknown_variable(variable: str, path: KeyPath) -> UsageError:
    message = f"{variable}: there is no such setting"
    table, _, key = nearest_key(path).partition(".")
    if key:
        message += f"; did you mean LLUMCTL_{table.upper()}_{key.upper()}?"
    return UsageError(message, f"unset {variable}      or      llumctl config show")


def nearest_key(path: KeyPath) -> str:
    """The valid table or key that resembles `path` most; '' if none does. A key of the same name in
    another table is preferred, then a key of the same table, then any other."""
    words = [str(part) for part in path if not isinstance(part, int)]
    dotted = {key: f"{table}.{key}" for table, key in reversed(list(_all_keys()))}
    if words[-1] in dotted:
        return dotted[words[-1]]
    if len(words) > 1 and words[0] in Settings.model_fields:
        own = [key for table, key in _all_keys() if table == words[0]]
        if found := difflib.get_close_matches(words[-1], own, 1):
            return f"{words[0]}.{found[0]}"
    elif found := difflib.get_close_matches(words[0], Settings.model_fields, 1):
        return found[0]
    found = difflib.get_close_matches(words[-1], dotted, 1)
    return dotted[found[0]] if found else ""


def _all_keys() -> Iterator[tuple[str, str]]:
    for table in Settings.model_fields:
        if table not in OPEN_TABLES:
            for key in kinds(table_model(table)):
                yield table, key


def _one(details: ErrorDetails, origins: Origins, path: KeyPath) -> UsageError:
    where = origins.of(path)
    if details["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return unknown_key(where, path)
    name = ".".join(str(part) for part in path if not isinstance(part, int))
    prefix = f"{where}: " if where == name else f"{where}: {name} "
    if details["type"] == "missing":
        parent = ".".join(str(part) for part in path[:-1] if not isinstance(part, int))
        return UsageError(f"{where}: {parent} needs the key {path[-1]}", origins.cure(path))
    return UsageError(prefix + complaint(details, details["input"]), origins.cure(path))


def _listed(names: Any) -> str:
    return ", ".join(names)
