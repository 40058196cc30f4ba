"""Which cluster and which config file this command means: what the commands that its messages
name must say, too (`controller.api.text.hints`).

`output.say` passes every message through `aimed`, so no message needs to think of it. What goes to
stdout for people and names commands, a table with a cure in it, is passed through it where it is
written; JSON stays as the controller gave it.
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


_meant = _Meant()


def forget() -> None:
    """Before each command: tests run many in one process."""
    _meant.cluster = _meant.config = None


def cluster_is(name: str | None) -> str | None:
    """Notes the cluster of this command, given by a flag or found: a name or a URL. Of a URL that
    may hold a password the notes have only that it was one."""
    if name is not None:
        _meant.cluster = "URL" if "://" in name and "@" in name else name
    return name


def config_is(path: Path | None) -> Path | None:
    if path is not None:
        _meant.config = path
    return path


def aimed(text: str) -> str:
    if "llumctl " not in text or (_meant.cluster is None and _meant.config is None):
        return text
    config = f" --config {shlex.quote(str(_meant.config))}" if _meant.config is not None else ""
    return hints.aimed(text, "" if _meant.cluster is None else option(_meant.cluster), config)


def option(cluster: str) -> str:
    """What a command needs behind it to mean that cluster: nothing where the settings or `default`
    say it. That it is the only one now says nothing: there may be another one tomorrow."""
    from llumctl.config import config_file

    try:
        if cluster == config_file.cluster_name(None):
            return ""
    except UsageError:  # what names no cluster names no other one
        pass
    return f" --cluster {shlex.quote(cluster)}"
