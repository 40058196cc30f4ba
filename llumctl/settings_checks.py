"""Checks that look beyond one value: addresses, secrets, folders.

Paths come out absolute: those of a config file are relative to it, others to the current
folder. The cluster's processes run elsewhere.
"""

import contextlib
import ipaddress
from pathlib import Path

from controller.api import key_file
from controller.api.errors import UsageError
from controller.api.settings import EMBEDDED_MODEL, Settings
from llumctl import secrets_file
from llumctl.settings_origin import Origins
from llumctl.toml_lines import Path as Key

LOOPBACK = "127.0.0.1"


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
    keys = endpoint.api_key_file
    if keys is not None:
        keys = str(_key_file(keys, settings, origins))
    return settings.model_copy(
        update={
            "cluster": cluster.model_copy(update={"model": model}),
            "endpoint": endpoint.model_copy(update={"api_key_file": keys}),
            "emulated": emulated,
        }
    )


def is_loopback(host: str) -> bool:
    """By the address, not by what a name resolves to today."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


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
    """What an engine that computes nothing cannot use is refused, not ignored."""
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
    """A file becomes absolute; a built-in profile's name stays as it is (`up` knows them)."""
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
    """A folder becomes absolute; `embedded` and Hugging Face ids stay as they are."""
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


def _key_file(name: str, settings: Settings, origins: Origins) -> Path:
    key: Key = ("endpoint", "api_key_file")
    path = _absolute(name, key, origins)
    where = f"{origins.of(key)}: {'.'.join(map(str, key))}"
    text = secrets_file.read(path, where)
    try:
        key_file.check(text, [level.name for level in settings.priority])
    except ValueError as error:
        raise UsageError(f"{where}: {path}: {error}", "llumctl config show") from error
    return path


def _absolute(name: str, key: Key, origins: Origins) -> Path:
    base = Path.cwd()
    if origins.file is not None and origins.in_file(key):
        base = base / origins.file.path.parent
    with contextlib.suppress(RuntimeError):  # a ~user that does not exist
        return base / Path(name).expanduser()
    return base / name
