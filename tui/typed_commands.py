"""The commands that are typed after `:`. Parses a text into a command, or raises an error that says
what would be valid; completes a command while it is typed; and remembers earlier commands.

Commands have the forms that the table of actions gives: `drain ID...`, `migrate REQUEST [ID]`. A
word in brackets may be left out, a word with dots may be given several times, and TEXT takes the
rest of the line.
"""

import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from rich.cells import set_cell_size

from controller.api.errors import NotFoundError, UsageError
from tui.actions import ACTIONS
from tui.asking import MODES
from tui.drawing import num_cells


@dataclass(frozen=True, slots=True)
class Command:
    """A typed command: the id of an action, and its arguments."""

    name: str
    arguments: tuple[str, ...] = ()

    @property
    def argument(self) -> str:
        """The first argument; empty if there is none."""
        return self.arguments[0] if self.arguments else ""


@dataclass(frozen=True, slots=True)
class Known:
    """The words that may be typed now. Requests that are not among them may be typed too, because
    only the controller knows all requests."""

    columns: Sequence[str] = ()
    themes: Sequence[str] = ()
    instances: Sequence[str] = ()
    members: Sequence[str] = ()
    """The processes that have a log."""
    requests: Sequence[str] = ()
    levels: Sequence[str] = ()
    settings: Sequence[str] = ()
    clusters: Sequence[str] = ()
    models: Sequence[str] = ()
    several: bool = False
    """Whether several models are shown, so that a number of instances needs the name of one."""
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
            "CLUSTER": self.clusters,
            "MODEL": self.models,
            "N": [f"{each}=" for each in self.models] if self.several else (),
            "KEY": self.settings,
            "KEY=VALUE": [f"{each}=" for each in self.settings],
        }.get(kind, ())

    offered: Sequence[str] = ()
    """The commands that do something now. All other commands only say why they do nothing."""

    @property
    def names(self) -> list[str]:
        return [*FORMS, *self.own]


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a form."""

    kind: str
    optional: bool = False
    many: bool = False


def named(typed: str) -> tuple[str, str]:
    """The name at the beginning of a form, which may have two words as in `scale auto [MODE]`, and
    the rest of the form."""
    words = typed.split()
    name = list(takewhile(lambda word: word[0] == "-" or word[0].islower(), words))
    return " ".join(name), " ".join(words[len(name) :])


FORMS = dict(named(each.typed) for each in ACTIONS if each.typed)
"""The names of commands, each with the form of its arguments."""
_ACTION_IDS = {named(each.typed)[0]: each.action_id for each in ACTIONS if each.typed}
_SECOND_WORDS = [name.split() for name in FORMS if " " in name]
"""The names of commands that consist of two words, each as its list of words."""
FORMER = {
    "autoscale": "scale auto",
    "evacuate": "drain --remove",
    "explain": "requests",
    "get": "set",
    "undrain": "uncordon",
    "wait": "status --wait",
}
"""Former names of commands. They still work: otherwise a former name would count as a typing error,
and the nearest name to `undrain` is its opposite, `drain`."""
ALIASES = {"q": "quit", "q!": "quit", "i": "instance", "request": "requests", **FORMER}
ELSEWHERE = {
    "up": "it starts another cluster, in a shell",
    "down": "it would end what is shown here: type it in a shell",
    "top": "it runs already",
    "status": "this screen shows it, and -o is for a shell",
    "record": "llumctl top --record FILE, or llumctl record FILE in a shell",
    "bench": "it loads an endpoint and fills its terminal: type it in a shell",
    "config": "it is about the files of a shell's user: tune has the cluster's settings",
}
"""Commands of the command line that do not exist here, each with the reason."""
FEW = 12
"""An error lists all valid words if there are at most this many."""
FILLERS = ("--to", "--instance", "--")
"""Words that the command line needs and `:` does not."""
MAX_KEPT = 100
"""How many commands of a session are remembered."""
_WHAT = {
    "ID": "instance",
    "MEMBER": "member",
    "COLUMN": "column",
    "THEME": "theme",
    "LEVEL": "priority level",
    "MODE": "mode",
    "KEY": "setting",
    "MODEL": "model",
}
_CLOSED = ("COLUMN", "THEME", "ID", "MEMBER", "LEVEL", "MODE", "MODEL", "KEY")
"""The kinds of words for which all valid words are known here."""
_NUMBER = re.compile(r"[+-]?[0-9]{1,9}")


def words_of(name: str) -> list[Word]:
    """The words that the command takes after its name."""
    return [_word(text) for text in FORMS.get(name, "").split()]


def _word(text: str) -> Word:
    kind = text.strip("[].")
    return Word(kind, optional=text.startswith("["), many="..." in text)


def split(text: str) -> tuple[str, list[str]]:
    """The command's name and its arguments; a leading `llumctl` is left out."""
    parts = text.split()
    if parts[:1] == ["llumctl"]:
        parts = parts[1:]
    name, given = (parts[0], parts[1:]) if parts else ("", [])
    for first, second in _SECOND_WORDS:
        if name == first and second in given:
            given.remove(second)
            name = f"{first} {second}"
    return ALIASES.get(name, name), [each for each in given if each not in FILLERS]


def parse(text: str, known: Known) -> Command:
    """Raises:
    UsageError: the command, column, theme, level or setting does not exist, or there are too few or
        too many arguments.
    NotFoundError: there is no such instance.
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
        kind = wanted[min(place, len(wanted) - 1)].kind
        _check(name, kind, argument, known, several=len(given) > 1)
    return Command(_ACTION_IDS.get(name, name), tuple(dict.fromkeys(given)))


def _check(name: str, kind: str, argument: str, known: Known, *, several: bool) -> None:
    """Raises an error for an argument that this command cannot take. `several`: whether there are
    other arguments besides this one. A setting that stands alone needs no value."""
    if kind == "N":
        model, equals, number = argument.rpartition("=") if known.several else ("", "", argument)
        if not _NUMBER.fullmatch(number):
            raise UsageError(f"{name} N, +N or -N: {number[:20]!r} is no number")
        if equals:
            _check(name, "MODEL", model, known, several=several)
    if kind == "KEY=VALUE":
        argument, equals, value = argument.partition("=")
        if (equals and not value) or (not equals and several):
            raise UsageError(f"{name} {kind}: {argument[:40]!r} has no value")
        kind = "KEY"
    if kind in _CLOSED and argument not in known.of(kind) and known.of(kind):
        error = NotFoundError if kind == "ID" else UsageError
        raise error(_unknown(_WHAT[kind], argument, known.of(kind)))


def _unknown(kind: str, word: str, known: Sequence[str]) -> str:
    """Names the nearest known word, or all known words if they are few."""
    nearest = difflib.get_close_matches(word, known, n=1, cutoff=0.4)
    if nearest:
        return f"no {kind} {word[:40]!r}: did you mean {nearest[0]}?"
    few = ", ".join(known) if len(known) <= FEW else "Tab lists them"
    return f"no {kind} {word[:40]!r}: {few}"


@dataclass(frozen=True, slots=True)
class Completion:
    """The possible completions of a text. `head` is the text before the word that is being typed,
    `words` can take the place of that word, and `wanted` is the kind of word that the command takes
    there, such as `ID`."""

    head: str = ""
    words: tuple[str, ...] = ()
    wanted: str = ""


def complete(text: str, known: Known) -> Completion:
    """The known words that can complete the last word of the text: those that begin with it or, for
    requests, contain it."""
    head, word = _cut(text)
    name, given = split(head)
    if not name:
        names = known.offered or known.names
        offered = [each for each in names if " " not in each or each.split()[0] not in names]
        words = sorted(each for each in offered if each.startswith(word))
        return Completion(head, tuple(words), "command")
    seconds = [two for first, two in _SECOND_WORDS if word and (first, given) == (name, [])]
    if begun := [each for each in seconds if each.startswith(word)]:
        return Completion(head, tuple(begun), "command")
    form = words_of(name)
    if len(given) >= len(form) and not (form and form[-1].many):
        return Completion(head)
    wanted = form[min(len(given), len(form) - 1)]
    found = known.of(wanted.kind)
    if wanted.kind == "REQUEST":
        words = [each for each in found if word in each]
    else:
        words = [each for each in found if each.startswith(word)]
    if wanted.many:
        words = [each for each in words if each not in given]
    return Completion(head, tuple(words), wanted.kind)


def _cut(text: str) -> tuple[str, str]:
    """The text before the last word, and that word."""
    head, space, word = text.rpartition(" ")
    return head + space, word


@dataclass
class Tabbing:
    """Completes with each Tab: first as far as all words agree, then one word after the other."""

    _found: Completion = field(default_factory=Completion)
    _place: int = -1
    _shown: str = ""

    def tab(self, text: str, known: Known, step: int = 1) -> str:
        """The text with the next possible word in it, or with the previous one."""
        if text != self._shown or not self._found.words:
            found, word = complete(text, known), _cut(text)[1]
            self._found, self._place = found, -1 if step > 0 else 0
            common = _common(found.words)
            if len(found.words) == 1:
                self._shown = _whole(found.head, found.words[0])
                self._found = Completion()
                return self._shown
            if common.startswith(word) and len(common) > len(word):
                self._shown = found.head + common
                return self._shown
        if not self._found.words:
            return text
        self._place = (self._place + step) % len(self._found.words)
        self._shown = self._found.head + self._found.words[self._place]
        return self._shown


def _common(words: Sequence[str]) -> str:
    """The beginning that all of the words share."""
    first, last = min(words, default=""), max(words, default="")
    same = (a == b for a, b in zip(first, last, strict=False))
    return first[: sum(takewhile(bool, same))]


def _whole(head: str, word: str) -> str:
    """The text with the word, and a space if the command takes another word after it."""
    name, given = split(f"{head}{word}")
    wants = words_of(name) if head.strip() or word in FORMS else []
    more = len(given) < len(wants) or (given and wants[-1].many)
    return f"{head}{word}{' ' if more and not word.endswith('=') else ''}"


def completion_hint(found: Completion, width: int) -> str:
    """`ID: i-0 i-1 i-10 +13`: as many words as there is room for."""
    if not found.wanted:
        return ""
    # A word and its space take two columns at least.
    shown = list(found.words[: max(0, width) // 2])
    more = len(found.words) - len(shown)
    while shown and num_cells(_hint(found.wanted, shown, more)) > width:
        shown.pop()
        more += 1
    words = _hint(found.wanted, shown, more)
    return words if num_cells(words) <= width else set_cell_size(words, max(0, width))


def _hint(wanted: str, words: Sequence[str], more: int) -> str:
    rest = [f"+{more}"] if more else []
    return " ".join([f"{wanted}:" if words else wanted, *words, *rest])


class TypedHistory:
    """The commands of a session, from the newest to the oldest and back."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._back = 0
        self._typed = ""

    def keep(self, text: str) -> None:
        """A command that was typed before moves to the end, and is kept only once."""
        if text.strip():
            self._texts = [*(each for each in self._texts if each != text), text][-MAX_KEPT:]
        self.leave()

    def leave(self) -> None:
        self._back, self._typed = 0, ""

    def go(self, steps: int, text: str) -> str:
        """Goes to older commands with `steps` > 0, else to newer ones. Behind the newest command
        comes the text that was being typed, which is `text` at the first call."""
        if self._back == 0:
            self._typed = text
        self._back = max(0, min(len(self._texts), self._back + steps))
        return self._texts[-self._back] if self._back else self._typed


class Typing:
    """A command that is being typed. It is completed with the words of `known`, and remembered once
    it is given."""

    def __init__(self, known: Callable[[], Known]) -> None:
        self.history = TypedHistory()
        self._known = known
        self._tabbing = Tabbing()

    def tab(self, text: str, step: int) -> str:
        return self._tabbing.tab(text, self._known(), step)

    def hint(self, text: str, width: int) -> str:
        return completion_hint(complete(text, self._known()), width)
