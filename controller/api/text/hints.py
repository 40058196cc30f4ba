"""The one place where a command that a text names gets the flags that choose its cluster.

Texts say `llumctl drain i-3` and nothing of clusters: whoever writes them, such as the controller,
cannot know under which name, or over which tunnel, their reader has this cluster. Whoever shows a
text knows that, and passes it through `aimed`: pasted beside another cluster, the bare command
would drain or stop that one. This module imports the standard library only; the rows of orders,
which say what their commands are, are read once a text names a command that stands in no list here.
"""

import re
from functools import cache

BY_NAME = frozenset({"doctor", "down", "logs", "up"})
"""Commands whose `--cluster` takes no URL: they need the cluster's files."""
BY_NAME_OR_URL = frozenset(
    {
        *("bench", "events", "record", "requests", "status", "top", "undo"),
    }
)
"""Beside the commands of all orders that are rows."""
WITH_CONFIG = frozenset({"config path", "config show", "doctor", "profile", "up"})
"""Commands whose `--config` decides what they start or show, the cluster's name included."""
_ELSEWHERE = re.compile(r"\s(--cluster|--config|--help|--url|--replay)\b")
"""What says by itself which cluster is meant, or that none is."""
_COMMAND = re.compile(
    r"\bllumctl (?P<name>config (?:path|show)|[a-z][a-z-]*)(?![\w-])"
    r"(?P<rest>(?:(?!\s\s|\n|\bllumctl ).)*)"
)


def takes_cluster(name: str) -> bool:
    return name in BY_NAME or name in BY_NAME_OR_URL or name in _of_orders()


@cache
def _of_orders() -> frozenset[str]:
    from controller.api.operations.table import ORDERS

    return frozenset(row.usage.split()[1] for row in ORDERS.values() if row.usage)


def aimed(text: str, of_cluster: str, config: str = "") -> str:
    """The text with the flags behind the name of each command of llumctl that takes them.
    `of_cluster`: ` --cluster prod`, or empty where the bare command means the cluster anyway;
    `config`: ` --config FILE`, or empty."""
    if not of_cluster and not config:
        return text

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
        return f"llumctl {name}{flags}{rest}"

    return _COMMAND.sub(with_flags, text)
