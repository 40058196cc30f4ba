"""What can be typed after `:`: text in, a command out, or an error that says what is valid.

The forms are those of the registry: `drain ID...`, `migrate REQUEST [ID]`. A word in brackets may
be left out, one with dots be given several times, and TEXT takes the rest of the line.
"""

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from controller.api.errors import NotFoundError, UsageError
from tui.actions.choices import MODES
from tui.actions.registry import ACTIONS


@dataclass(frozen=True, slots=True)
class Command:
    """The id of an action and its arguments."""

    name: str
    arguments: tuple[str, ...] = ()

    @property
    def argument(self) -> str:
        """The first one; empty if there is none."""
        return self.arguments[0] if self.arguments else ""


@dataclass(frozen=True, slots=True)
class Known:
    """The words that may be typed now. Of requests others may be: only the controller has all."""

    columns: Sequence[str] = ()
    themes: Sequence[str] = ()
    instances: Sequence[str] = ()
    members: Sequence[str] = ()
    """What has a log."""
    requests: Sequence[str] = ()
    levels: Sequence[str] = ()
    settings: Sequence[str] = ()
    own: Sequence[str] = ()
    """Names of the operator's own commands."""

    def of(self, kind: str) -> Sequence[str]:
        return {
            "COLUMN": self.columns,
            "THEME": self.themes,
            "ID": self.instances,
            "MEMBER": self.members,
            "CONDITION": ["ready", "idle", *(f"drained={each}" for each in self.instances)],
            "REQUEST": self.requests,
            "LEVEL": self.levels,
            "MODE": MODES,
            "KEY": self.settings,
            "KEY=VALUE": [f"{each}=" for each in self.settings],
        }.get(kind, ())

    offered: Sequence[str] = ()
    """The commands that do something now: others say why they do not."""

    @property
    def names(self) -> list[str]:
        return [*FORMS, *self.own]


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a form."""

    kind: str
    optional: bool = False
    many: bool = False


FORMS = {
    name: form for name, _, form in (each.typed.partition(" ") for each in ACTIONS if each.typed)
}
"""What is typed, and what it wants after it."""
ALIASES = {"q": "quit", "q!": "quit", "i": "instance", "request": "explain"}
ELSEWHERE = {
    "up": "it starts another cluster, in a shell",
    "down": "it would end what is shown here: type it in a shell",
    "top": "this is it",
    "status": "this screen is it, and -o of it is for a shell",
    "record": "llumctl top --record FILE, or llumctl record FILE in a shell",
    "record-traffic": "it writes a file for a shell's user: type it in a shell",
    "bench": "it loads an endpoint and fills its terminal: type it in a shell",
    "config": "it is about the files of a shell's user: tune has the cluster's settings",
}
"""Commands of the command line that are none here, and why."""
FEW = 12
"""Words that an error names all."""
FILLERS = ("--to", "--")
"""What the command line wants and `:` can do without."""
_WHAT = {
    "ID": "instance",
    "MEMBER": "member",
    "COLUMN": "column",
    "THEME": "theme",
    "LEVEL": "priority level",
    "MODE": "mode",
    "KEY": "setting",
}
_CLOSED = ("COLUMN", "THEME", "ID", "MEMBER", "LEVEL", "MODE", "KEY")
"""Kinds of which all words are known here."""
_NUMBER = re.compile(r"[+-]?[0-9]{1,9}")


def words_of(name: str) -> list[Word]:
    """What the command wants."""
    return [_word(text) for text in FORMS.get(name, "").split()]


def _word(text: str) -> Word:
    kind = text.strip("[].")
    return Word(kind, optional=text.startswith("["), many="..." in text)


def split(text: str) -> tuple[str, list[str]]:
    """The command's name, and what stands behind it; `llumctl drain i-7` is as good."""
    parts = text.split()
    if parts[:1] == ["llumctl"]:
        parts = parts[1:]
    name, given = (parts[0], parts[1:]) if parts else ("", [])
    return ALIASES.get(name, name), [each for each in given if each not in FILLERS]


def parse(text: str, known: Known) -> Command:
    """Raises:
    UsageError: no such command, column, theme, level or setting, or an argument too few or many.
    NotFoundError: no such instance.
    """
    name, given = split(text)
    if name not in known.names:
        if name in ELSEWHERE:
            raise UsageError(f"no {name} here: {ELSEWHERE[name]}")
        raise UsageError(_unknown("command", name, known.names))
    wanted = words_of(name)
    if wanted and wanted[0].kind == "TEXT":
        rest = text.split(maxsplit=1)[1:]
        return Command(name, tuple(each.strip() for each in rest))
    if not wanted and given:
        raise UsageError(f"{name} takes no argument")
    if len(given) < sum(not each.optional for each in wanted):
        missing = wanted[len(given)]
        few = known.of(missing.kind) if missing.kind in _CLOSED and missing.kind != "ID" else ()
        valid = f" ({', '.join(few)})" if few else ""
        raise UsageError(f"{name} what?  {name} {FORMS[name]}{valid}")
    if len(given) > len(wanted) and not wanted[-1].many:
        raise UsageError(f"{given[len(wanted)][:40]!r} is too much:  {name} {FORMS[name]}")
    for place, argument in enumerate(given):
        _check(name, wanted[min(place, len(wanted) - 1)].kind, argument, known)
    return Command(name, tuple(dict.fromkeys(given)))


def _check(name: str, kind: str, argument: str, known: Known) -> None:
    if kind == "N" and not _NUMBER.fullmatch(argument):
        raise UsageError(f"{name} N, +N or -N: {argument[:20]!r} is no number")
    if kind == "KEY=VALUE":
        argument, equals, value = argument.partition("=")
        if not equals or not value:
            raise UsageError(f"{name} {kind}: {argument[:40]!r} has no value")
        kind = "KEY"
    if kind in _CLOSED and argument not in known.of(kind) and known.of(kind):
        error = NotFoundError if kind == "ID" else UsageError
        raise error(_unknown(_WHAT[kind], argument, known.of(kind)))


def _unknown(kind: str, word: str, known: Sequence[str]) -> str:
    """Names the nearest known word, or all where they are few."""
    nearest = difflib.get_close_matches(word, known, n=1, cutoff=0.4)
    if nearest:
        return f"no {kind} {word[:40]!r}: did you mean {nearest[0]}?"
    few = ", ".join(known) if len(known) <= FEW else "Tab lists them"
    return f"no {kind} {word[:40]!r}: {few}"
