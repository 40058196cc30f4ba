"""What can be typed after `:`: text in, a command out, or an error that names the nearest."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from controller.api.errors import NotFoundError, UsageError
from tui.actions.registry import ACTIONS


@dataclass(frozen=True, slots=True)
class Command:
    """`sort COLUMN`, `filter TEXT`, `theme NAME`, `instance ID`, `help` or `quit`."""

    name: str
    argument: str = ""


NAMES = tuple(each.typed.split()[0] for each in ACTIONS if each.typed)
_ALIASES = {"q": "quit", "q!": "quit", "i": "instance"}


def parse(
    text: str, *, columns: Sequence[str], themes: Sequence[str], instances: Sequence[str]
) -> Command:
    """Raises:
    UsageError: no such command, column or theme, or an argument too few or too many.
    NotFoundError: no such instance.
    """
    name, _, argument = text.strip().partition(" ")
    name, argument = _ALIASES.get(name, name), argument.strip()
    if name not in NAMES:
        raise UsageError(_unknown("command", name, NAMES))
    if name in ("help", "quit") and argument:
        raise UsageError(f"{name} takes no argument")
    if name in ("sort", "theme", "instance") and not argument:
        choices = {"sort": columns, "theme": themes}.get(name, ("ID",))
        raise UsageError(f"{name} what?  {name} {'|'.join(choices)}")
    if name == "sort" and argument not in columns:
        raise UsageError(_unknown("column", argument, columns))
    if name == "theme" and argument not in themes:
        raise UsageError(_unknown("theme", argument, themes))
    if name == "instance" and argument not in instances:
        raise NotFoundError(_unknown("instance", argument, instances))
    return Command(name, argument)


def _unknown(kind: str, word: str, known: Sequence[str]) -> str:
    """Names the nearest known word, or all where they are few."""
    nearest = difflib.get_close_matches(word, known, n=1, cutoff=0.4)
    if nearest:
        return f"no {kind} {word[:40]!r}: did you mean {nearest[0]}?"
    few = f": {', '.join(known)}" if 0 < len(known) <= 12 else ""
    return f"no {kind} {word[:40]!r}{few}"
