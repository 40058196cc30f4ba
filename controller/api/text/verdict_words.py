"""The verdict on the cluster in words, and which command carries out its order.

`llumctl status` and the dashboard say the same. A verdict of a newer controller may have words and
deeds that are not known here: the word is shown as it is, and the order is left out.
"""

from enum import StrEnum
from typing import TYPE_CHECKING

from controller.api.text.quantities import printable

if TYPE_CHECKING:
    from controller.api.wire.status import VerdictOrder, VerdictStatus


class Severity(StrEnum):
    """How bad a verdict is. QUIET: nothing has to be done or followed."""

    QUIET = "quiet"
    WARN = "warn"
    BAD = "bad"


_SEVERITIES = {
    "ok": Severity.QUIET,
    **dict.fromkeys(("recovering", "starting", "stopping"), Severity.WARN),
    **dict.fromkeys(
        ("slow", "fragmented", "short of memory", "overloaded", "degraded"), Severity.BAD
    ),
}
_COMMANDS = {
    "add": "llumctl scale +1",
    "restart": "llumctl restart {target}",
    "logs": "llumctl logs {target}",
    "drain": "llumctl drain {target}",
    "moves-on": "llumctl set migration.enabled=true",
    "look": "llumctl status -o wide",
}
_DOES = {
    "add": "adds an instance",
    "restart": "restarts it",
    "logs": "shows its log",
    "drain": "drains it",
    "moves-on": "lets requests move",
    "look": "shows {target}",
}


def severity(word: str) -> Severity:
    """The severity of a verdict's word; WARN for a word that is not known here."""
    return _SEVERITIES.get(word, Severity.WARN)


def verdict_word(verdict: "VerdictStatus") -> str:
    """`SHORT OF MEMORY`"""
    return printable(verdict.word.upper())


def verdict_line(verdict: "VerdictStatus") -> str:
    """`OVERLOADED  106 wait on 5 of 6, the longest 34 s, KV 91%`"""
    return f"{verdict_word(verdict)}  {printable(verdict.why)}".rstrip()


def order_command(order: "VerdictOrder") -> str:
    """The command that carries out the order; empty if the deed is not known here."""
    return _COMMANDS.get(order.deed, "").format(target=printable(order.target))


def order_words(order: "VerdictOrder") -> str:
    """What the order does, to stand behind its command or its key: `adds an instance (serving in
    25 s)`. Empty if the deed is not known here."""
    does = deed_words(order)
    return f"{does} ({printable(order.expected)})" if does and order.expected else does


def deed_words(order: "VerdictOrder") -> str:
    """The same without what is expected of it."""
    return _DOES.get(order.deed, "").format(target=printable(order.target))
