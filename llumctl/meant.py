"""Remembers which cluster, which of its models and which config file this command is about, so that
the commands named in its messages are about the same ones (`controller.api.text.hints`).

`output.say` passes every message through `aimed`, so whoever writes a message need not think of it.
Text on stdout that names commands, such as a table with cures, is passed through `aimed` where it
is written. JSON stays as the controller gave it.
"""

import shlex
from dataclasses import dataclass
from pathlib import Path

from controller.api.errors import UsageError
from controller.api.text import hints


@dataclass
class _Meant:
    cluster: str | None = None
    config: Path | None = None
    model: str = ""


_meant = _Meant()


def forget() -> None:
    """Forgets the cluster, the model and the config file. Must be called before each command,
    because tests run many commands in one process."""
    _meant.cluster = _meant.config = None
    _meant.model = ""


def cluster_is(name: str | None) -> str | None:
    """Notes which cluster this command is about, whether a flag named it or it was found: a name or
    a URL. Of a URL that may contain a password, only the word URL is kept."""
    if name is not None:
        _meant.cluster = "URL" if "://" in name and "@" in name else name
    return name


def model_is(name: str | None) -> str | None:
    """Notes which model of the cluster this command is about."""
    _meant.model = name or ""
    return name


def model() -> str:
    """The model that this command is about; empty: all models of the cluster."""
    return _meant.model


def config_is(path: Path | None) -> Path | None:
    if path is not None:
        _meant.config = path
    return path


def aimed(text: str) -> str:
    if "llumctl " not in text or not any(vars(_meant).values()):
        return text
    config = f" --config {shlex.quote(str(_meant.config))}" if _meant.config is not None else ""
    of_cluster = "" if _meant.cluster is None else option(_meant.cluster)
    return hints.aimed(text, of_cluster, config, _meant.model)


def option(cluster: str) -> str:
    """The `--cluster` option to add to a suggested command so that it addresses this cluster. Empty
    if the command would choose this cluster without it: because the settings name it, or because
    they name none and it is called `default`. If the cluster was found only because there is no
    other, the option is added, since another one may exist later."""
    from llumctl.config import config_file

    try:
        if cluster == config_file.cluster_name(None):
            return ""
    except UsageError:  # the settings are wrong, so they name no other cluster
        pass
    return f" --cluster {shlex.quote(cluster)}"
