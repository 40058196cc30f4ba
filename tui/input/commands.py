"""What can be typed after `:`: text in, a command out, or an error that names the nearest."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from controller.api.errors import NotFoundError, UsageError
from tui.actions.registry import ACTIONS


@dataclass(frozen=True, slots=True)
class Command:
    """The id of an action and its argument."""

    name: str
    argument: str = ""


FORMS = {
    name: argument
    for name, _, argument in (each.typed.partition(" ") for each in ACTIONS if each.typed)
}
"""What is typed, and what it wants: COLUMN, NAME (a theme), ID (an instance), TEXT, or nothing."""
_ALIASES = {"q": "quit", "q!": "quit", "i": "instance"}
_KINDS = {"COLUMN": "column", "NAME": "theme", "ID": "instance"}


def parse(
    text: str, *, columns: Sequence[str], themes: Sequence[str], instances: Sequence[str]
) -> Command:
    """Raises:
    UsageError: no such command, column or theme, or an argument too few or too many.
    NotFoundError: no such instance.
    """
    name, _, argument = text.strip().partition(" ")
    name, argument = _ALIASES.get(name, name), argument.strip()
    if name not in FORMS:
        raise UsageError(_unknown("command", name, list(FORMS)))
    wanted = FORMS[name]
    if not wanted and argument:
        raise UsageError(f"{name} takes no argument")
    known = {"COLUMN": columns, "NAME": themes, "ID": instances}.get(wanted)
    if known is None:
        return Command(name, argument)
    if not argument:
        choices = ("ID",) if wanted == "ID" else known
        raise UsageError(f"{name} what?  {name} {'|'.join(choices)}")
    if argument not in known:
        error = NotFoundError if wanted == "ID" else UsageError
        raise error(_unknown(_KINDS[wanted], argument, known))
    return Command(name, argument)


def _unknown(kind: str, word: str, known: Sequence[str]) -> str:
    """Names the nearest known word, or all where they are few."""
    nearest = difflib.get_close_matches(word, known, n=1, cutoff=0.4)
    if nearest:
        return f"no {kind} {word[:40]!r}: did you mean {nearest[0]}?"
    few = f": {', '.join(known)}" if 0 < len(known) <= 12 else ""
    return f"no {kind} {word[:40]!r}{few}"
