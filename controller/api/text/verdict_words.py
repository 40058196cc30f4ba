"""The verdict on the cluster in words, and which command carries out its order.

`llumctl status` and the dashboard say the same. A verdict of a newer controller may have words and
deeds that are not known here: the word is shown as it is, and the order is left out.
"""

from enum import StrEnum
from typing import TYPE_CHECKING

from controller.api.text import hints
from controller.api.text.quantities import printable

if TYPE_CHECKING:
    from controller.api.wire.status import VerdictOrder, VerdictStatus


class Severity(StrEnum):
    """How bad a verdict is. QUIET: nothing has to be done or followed."""

    QUIET = "quiet"
    WARN = "warn"
    BAD = "bad"


_COMMANDS = {
    "add": "llumctl scale +1",
    "restart": "llumctl restart {target} --now",
    "logs": "llumctl logs {target}",
    "drain": "llumctl drain {target}",
    "moves-on": "llumctl set migration.enabled=true",
    "move": "llumctl migrate {target} --to {to}",
    "look": "llumctl status -o wide",
}
_DOES = {
    "add": "adds an instance",
    "restart": "restarts it",
    "logs": "shows its log",
    "drain": "drains it",
    "moves-on": "lets requests move",
    "move": "moves it to {to}",
    "look": "shows {target}",
    "wait": "wait",
}


def severity(verdict: "VerdictStatus") -> Severity:
    """The severity of a verdict; WARN if it is not known here."""
    known = set(Severity)
    return Severity(verdict.severity) if verdict.severity in known else Severity.WARN


def verdict_word(verdict: "VerdictStatus") -> str:
    """`SHORT OF MEMORY`"""
    return printable(verdict.word.upper())


def verdict_line(verdict: "VerdictStatus") -> str:
    """`OVERLOADED  106 wait on 5 of 6, the longest 34 s, KV 91%`"""
    return f"{verdict_word(verdict)}  {printable(verdict.why)}".rstrip()


def order_command(order: "VerdictOrder") -> str:
    """The command that carries out the order; empty if there is none, or the deed is not known
    here."""
    target, to = printable(order.target), printable(order.to)
    command = _COMMANDS.get(order.deed, "").format(target=target, to=to)
    return hints.aimed(command, "", model=printable(order.model))


def order_words(order: "VerdictOrder") -> str:
    """What the order does, to stand behind its command or its key: `adds an instance (serving in
    25 s)`. Empty if the deed is not known here."""
    does = deed_words(order)
    return f"{does} ({printable(order.expected)})" if does and order.expected else does


def deed_words(order: "VerdictOrder") -> str:
    """The same without what is expected of it."""
    target, to = printable(order.target), printable(order.to)
    return _DOES.get(order.deed, "").format(target=target, to=to)
