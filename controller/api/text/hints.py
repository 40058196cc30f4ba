"""Completes the commands that messages name with the flags that choose the reader's cluster. Also
has the commands that install another llumctl or its engines, and this llumctl's version.

Messages say `llumctl drain i-3` without naming a cluster. Their author, for example the controller,
cannot know under which name, or over which tunnel, the reader reaches this cluster. The program
that shows a message knows it, and passes the text through `aimed`. Otherwise the bare command,
pasted next to another cluster, would drain or stop that cluster.

This module imports the standard library only. The table of orders also says what commands there
are. It is imported only if a text names a command that is in none of the lists here.
"""

import re
import shlex
from functools import cache
from pathlib import Path

CPU_WHEELS = "https://download.pytorch.org/whl/cpu"
"""PyTorch's index of CPU builds, which PyPI does not have."""

BY_NAME = frozenset({"batches", "doctor", "down", "logs", "up"})
"""Commands whose `--cluster` takes no URL, as they need the cluster's files."""
BY_NAME_OR_URL = frozenset(
    {
        *("bench", "events", "lora list", "mcp", "record", "requests", "status", "top", "undo"),
    }
)
"""Commands whose `--cluster` takes a name or a URL. The commands of all orders do too."""
WITH_CONFIG = frozenset({"config path", "config show", "doctor", "profile", "up"})
"""Commands whose `--config` decides what they start or show, and the cluster's name."""
WITH_MODEL = frozenset(
    {
        *("attach", "lora list", "lora load", "lora unload", "record", "requests", "restart"),
        *("scale", "set", "status", "top"),
    }
)
"""Commands whose `--model` chooses one of several models of a cluster."""
_ELSEWHERE = re.compile(r"\s(--cluster|--config|--help|--url|--replay)\b")
"""Flags that already say which cluster is meant, or that no cluster is."""
_NAMES_MODEL = re.compile(r"\s--model\b|\sscale\s+[^\s=]+=")
_COMMAND = re.compile(
    r"\bllumctl (?P<name>config (?:path|show)|lora (?:list|load|unload)|[a-z][a-z-]*)(?![\w-])"
    r"(?P<rest>(?:(?!\s\s|\n|\bllumctl ).)*)"
)


def takes_cluster(name: str) -> bool:
    return name in BY_NAME or name in BY_NAME_OR_URL or name in _of_orders()


@cache
def _of_orders() -> frozenset[str]:
    from controller.api.operations.table import ORDERS

    return frozenset(row.verb() for row in ORDERS.values() if row.usage)


def aimed(text: str, of_cluster: str, config: str = "", model: str = "") -> str:
    """The text, with these flags added behind the name of each llumctl command that takes them.
    `of_cluster`: ` --cluster prod`, or empty if the bare command means this cluster anyway.
    `config`: ` --config FILE`, or empty. `model`: the name of the model that the text is about, or
    empty if it is about all."""
    if not of_cluster and not config and not model:
        return text
    of_model = f" --model {shlex.quote(model)}" if model else ""

    def with_flags(found: re.Match[str]) -> str:
        name, rest = found["name"], found["rest"]
        if _ELSEWHERE.search(rest):
            return found[0]
        flags = config if name in WITH_CONFIG else ""
        if name in BY_NAME and "://" in of_cluster:
            # This machine does not know the name that the cluster has on its own.
            return f"ssh HOST llumctl {name} --cluster NAME{rest}"
        if takes_cluster(name):
            flags += of_cluster
        if name in WITH_MODEL and not _NAMES_MODEL.search(found[0]):
            flags += of_model
        return f"llumctl {name}{flags}{rest}"

    return _COMMAND.sub(with_flags, text)


def own_version() -> str:
    """The installed version; empty if llumctl runs from a folder that is not installed."""
    from importlib import metadata  # imported here, because most commands never ask for the version

    try:
        return metadata.version("llumctl")
    except metadata.PackageNotFoundError:
        return ""


def checkout_folder() -> Path | None:
    """The checkout in which this code lies, where `make` works; None if it was installed from a
    wheel, which brings no Makefile."""
    root = Path(__file__).parents[3]
    has_all = (root / "Makefile").is_file() and (root / "pyproject.toml").is_file()
    return root if has_all else None


def is_checkout() -> bool:
    return checkout_folder() is not None


def upgrade_command() -> str:
    if is_checkout():
        return "git pull      then      make install"
    return "pip install --upgrade llumctl"


def engines_command(*, gpu: bool = False) -> str:
    """The command that installs vLLM and torch next to this llumctl."""
    if is_checkout():
        return "make install"
    if gpu:
        return "pip install 'llumctl[gpu]'"
    return f"pip install 'llumctl[cpu]' --extra-index-url {CPU_WHEELS}"


def extra_command(extra: str) -> str:
    """The command that installs the packages of an extra next to this llumctl."""
    return "make install" if is_checkout() else f"pip install 'llumctl[{extra}]'"
