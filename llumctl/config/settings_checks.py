"""Checks settings beyond one value: addresses, secrets, folders.

Paths come out absolute, as the cluster's processes run in other folders: a path of a config file
is relative to the file, any other to the current folder.
"""

import contextlib
from pathlib import Path

from controller.api.errors import UsageError
from controller.api.hosts import is_loopback
from controller.api.settings import key_file
from controller.api.settings.endpoint_options import Code, EndpointOptions, code_in
from controller.api.settings.settings import EMBEDDED_MODEL, EndpointTable, Settings
from llumctl.config import secrets_file
from llumctl.config.settings_origin import Origins
from llumctl.config.toml_lines import Path as Key

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
    """Raises UsageError."""
    _check_addresses(settings, origins)
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
    return settings.model_copy(
        update={
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
            " address: operators' actions are served to this machine only",
            f"control.host = {LOOPBACK!r}, and from elsewhere: ssh -L {control.port}:"
            f"{LOOPBACK}:{control.port} HOST",
        )
    if endpoint.port == control.port:
        keys: tuple[Key, Key] = (("control", "port"), ("endpoint", "port"))
        where = next((origins.of(key) for key in keys if origins.given(key)), "control.port")
        raise UsageError(
            f"{where}: control.port and endpoint.port are both {control.port}",
            f"llumctl up --control-port {control.port % 65535 + 1}",
        )


def _check_emulated(settings: Settings, origins: Origins) -> None:
    """Refuses what an engine that computes nothing cannot use, rather than ignore it."""
    model = settings.cluster.model
    if model != EMBEDDED_MODEL:
        raise UsageError(
            f"{origins.of(('cluster', 'model'))}: an emulated engine computes nothing, so it"
            f" serves no model but {EMBEDDED_MODEL!r} (for its tokenizer), not {model!r}",
            "llumctl up --engine emulated      or      llumctl up --engine vllm MODEL",
        )
    if settings.engine:
        name = next(iter(settings.engine))
        key: Key = ("engine", name)
        raise UsageError(
            f"{origins.of(key)}: engine.{name} is an argument of vLLM's engine; an emulated one"
            " has only what [emulated] says",
            origins.cure(key),
        )


def _profile(profile: str, origins: Origins) -> str:
    """Makes a file's path absolute. The name of a built-in profile stays: `up` knows those."""
    if not (_is_path(profile) or "/" in profile or profile.endswith(".toml")):
        return profile
    key: Key = ("emulated", "profile")
    path = _absolute(profile, key, origins)
    if not path.is_file():
        raise UsageError(
            f"{origins.of(key)}: there is no profile file {path}",
            "llumctl up --engine emulated      (with the default profile)",
        )
    return str(path)


def _model(model: str, origins: Origins) -> str:
    """Makes a folder's path absolute. `embedded` and Hugging Face ids stay as they are."""
    if not model:
        raise UsageError(f"{origins.of(('cluster', 'model'))}: cluster.model is empty")
    key: Key = ("cluster", "model")
    path = _absolute(model, key, origins)
    if model == EMBEDDED_MODEL or (not _is_path(model) and not path.is_dir()):
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
    """Gives the absolute paths by key. Sampling defaults are a folder's, or named by a word."""
    found = {
        key: str(_absolute(name, ("endpoint", key), origins))
        for key in ENDPOINT_FILES
        if (name := getattr(endpoint, key)) is not None
    }
    if endpoint.generation_config not in ("auto", "vllm"):
        key: Key = ("endpoint", "generation_config")
        folder = _absolute(endpoint.generation_config, key, origins)
        if not (folder / "generation_config.json").is_file():
            raise UsageError(
                f"{origins.of(key)}: endpoint.generation_config: {folder} holds no"
                " generation_config.json",
                'endpoint.generation_config = "auto"      (the model\'s own), or "vllm"',
            )
        found["generation_config"] = str(folder)
    return found


def _check_code(settings: Settings, origins: Origins) -> None:
    """Settings that name code to run may come from a file that its owner alone can read and change:
    an argument or a variable may have been set by somebody else."""
    keys: list[Key] = [
        ("endpoint", name)
        for name, info in EndpointOptions.model_fields.items()
        if Code in info.metadata and getattr(settings.endpoint, name) is not None
    ]
    keys += [("engine", name) for name in code_in(settings.engine)]
    for key in keys:
        dotted, where = ".".join(map(str, key)), origins.of(origins.written(key))
        if origins.file is None or not origins.in_file(origins.written(key)):
            raise UsageError(
                f"{where}: {dotted} names code to run: only a configuration file of yours with mode"
                " 0600 may set it",
                "llumctl config path",
            )
        if not origins.file.is_private:
            raise UsageError(
                f"{where}: {dotted} names code to run, and {origins.file.path} is not yours alone",
                f"chmod 600 {origins.file.path}",
            )


def _check_key_file(name: str, settings: Settings, origins: Origins) -> None:
    key: Key = ("endpoint", "api_key_file")
    path = _absolute(name, key, origins)
    where = f"{origins.of(key)}: {'.'.join(map(str, key))}"
    text = secrets_file.read(path, where)
    try:
        key_file.check(text, [level.name for level in settings.priority])
    except ValueError as error:
        raise UsageError(f"{where}: {path}: {error}", "llumctl config show") from error


def _absolute(name: str, key: Key, origins: Origins) -> Path:
    base = Path.cwd()
    if origins.file is not None and origins.in_file(key):
        base = base / origins.file.path.parent
    with contextlib.suppress(RuntimeError):  # a ~user that does not exist
        return base / Path(name).expanduser()
    return base / name
