"""What may come next in a command that is being typed, and what was typed before."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from rich.cells import set_cell_size

from tui.drawing import num_cells
from tui.input.commands import FORMS, Known, split, words_of

MAX_KEPT = 100


@dataclass(frozen=True, slots=True)
class Completion:
    """`head` stands before the word that is typed, `words` may take its place, and `wanted` is what
    the command wants there: `ID`."""

    head: str = ""
    words: tuple[str, ...] = ()
    wanted: str = ""


def complete(text: str, known: Known) -> Completion:
    """The known words that begin with the last one of the text; of requests, that contain it."""
    head, word = _cut(text)
    name, given = split(head)
    if not name:
        words = [each for each in (known.offered or known.names) if each.startswith(word)]
        return Completion(head, tuple(sorted(words)), "command")
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
    """What stands before the last word, and that word."""
    head, space, word = text.rpartition(" ")
    return head + space, word


@dataclass
class Tabbing:
    """Tab after Tab: first as far as all words agree, then one word after the other."""

    _found: Completion = field(default_factory=Completion)
    _place: int = -1
    _shown: str = ""

    def tab(self, text: str, known: Known, step: int = 1) -> str:
        """The text with the next word in it, or the one before."""
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
    """What all of the words begin with."""
    first, last = min(words, default=""), max(words, default="")
    same = (a == b for a, b in zip(first, last, strict=False))
    return first[: sum(takewhile(bool, same))]


def _whole(head: str, word: str) -> str:
    """The word, and a space if something is wanted behind it."""
    name, given = split(f"{head}{word}")
    wants = words_of(name) if head.strip() or word in FORMS else []
    more = len(given) < len(wants) or (given and wants[-1].many)
    return f"{head}{word}{' ' if more and not word.endswith('=') else ''}"


def hint(found: Completion, width: int) -> str:
    """`ID: i-0 i-1 i-10 +13`: as many as there is room for."""
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


class History:
    """The commands of a session, from the newest to the oldest and back."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._back = 0
        self._typed = ""

    def keep(self, text: str) -> None:
        """What was typed before goes to the end, and stands there once."""
        if text.strip():
            self._texts = [*(each for each in self._texts if each != text), text][-MAX_KEPT:]
        self.leave()

    def leave(self) -> None:
        self._back, self._typed = 0, ""

    def go(self, steps: int, text: str) -> str:
        """`steps` > 0: to older ones. At the end is what is being typed, `text` at first."""
        if self._back == 0:
            self._typed = text
        self._back = max(0, min(len(self._texts), self._back + steps))
        return self._texts[-self._back] if self._back else self._typed


class Typing:
    """A command on its way: completed by what `known` tells, and kept when it was given."""

    def __init__(self, known: Callable[[], Known]) -> None:
        self.history = History()
        self._known = known
        self._tabbing = Tabbing()

    def tab(self, text: str, step: int) -> str:
        return self._tabbing.tab(text, self._known(), step)

    def hint(self, text: str, width: int) -> str:
        return hint(complete(text, self._known()), width)
