"""Shortens ids to fit into a narrow space: drops the beginnings that they share, and cuts out the
middle.

The command line's tables shorten the ids that they list (`shortened`). The dashboard gives an id a
short name when it sees the id first, and keeps the name (`ShortNames`). Every command that names a
request takes either form (`controller.core.record.request_record`).
"""

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from controller.api.text.quantities import num_cells

_FIRST_WORD = re.compile(r"[^-_.:/]*[-_.:/]")
_WORDS = re.compile(r".*[-_.:/]")
_WORD_END = re.compile(r"[-_.:/]")


def shortened(
    ids: Iterable[str],
    width: int,
    ellipsis: str = "…",
    measure: Callable[[str], int] = num_cells,
) -> dict[str, str]:
    """Shortens each id to at most `width` columns of a terminal. If all ids fit, all stay whole.
    `measure` says how many columns a text takes; a character may take two.

    Ids with the same first word (`cmpl-`) lose that word, and any further words that all of them
    begin with. Ids that are still too long are cut in the middle, all at the same place, which is
    chosen so that different ids stay different. If there is no such place, ids that look alike are
    cut elsewhere, as far as the width has room for differences.
    """
    whole = list(dict.fromkeys(ids))
    if width < 1:
        return dict.fromkeys(whole, "")
    if all(measure(id_) <= width for id_ in whole):
        return {id_: id_ for id_ in whole}
    rests = _rests(whole)
    room = _Room(width, ellipsis, measure)
    best: dict[str, str] = {}
    for head in _heads(width):
        found = {id_: room.cut(rest, head) for id_, rest in rests.items()}
        if len(set(found.values())) == len(found):
            return found
        best = best or found
    return _told_apart(best, lambda id_: room.forms((rests[id_], id_)))


def _rests(ids: Sequence[str]) -> dict[str, str]:
    """Each id without the words that all ids with the same first word begin with. At least the last
    word of an id stays."""
    groups: dict[str, list[str]] = {}
    for id_ in ids:
        found = _FIRST_WORD.match(id_)
        groups.setdefault(found[0] if found else "", []).append(id_)
    rests: dict[str, str] = {}
    for first, group in groups.items():
        common = first if len(group) == 1 else _common_words(group)
        for id_ in group:
            rests[id_] = id_[len(common) :] or id_
    return rests


def _common_words(ids: Sequence[str]) -> str:
    """The whole words with which all ids begin. It is enough to compare the first and the last id
    in alphabetical order, because these two have the least in common."""
    pairs = zip(min(ids), max(ids), strict=False)
    common = "".join(one for one, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    found = _WORDS.match(common)
    return found[0] if found else ""


def _heads(width: int) -> Iterator[int]:
    """Yields how many columns to keep before the cut: first half the width, then numbers ever
    farther above and below that."""
    middle = width // 2
    for off in range(width):
        for head in {middle + off, middle - off}:
            if 0 <= head < width:
                yield head


@dataclass(frozen=True, slots=True)
class _Room:
    width: int
    ellipsis: str
    measure: Callable[[str], int]

    def cut(self, rest: str, head: int) -> str:
        if self.measure(rest) <= self.width:
            return rest
        tail = self.width - head - 1
        return f"{self._first(rest, head)}{self.ellipsis}{self._first(rest[::-1], tail)[::-1]}"

    def forms(self, texts: Iterable[str]) -> Iterator[str]:
        """Yields all ways to shorten one of the texts: first with one cut, then with only a piece
        from the middle of the text."""
        for text in texts:
            for head in _heads(self.width):
                yield self.cut(text, head)
            for start in range(1, len(text) - self.width + 2 if self.width > 2 else 0):
                piece = self._first(text[start:], self.width - 2)
                yield f"{self.ellipsis}{piece}{self.ellipsis}"

    def _first(self, text: str, width: int) -> str:
        """The first characters of the text, as many as fit into `width` columns."""
        if text.isascii():
            return text[:width]
        used = 0
        for place, char in enumerate(text):
            used += self.measure(char)
            if used > width:
                return text[:place]
        return text


def _told_apart(
    shown: Mapping[str, str], forms_of: Callable[[str], Iterator[str]]
) -> dict[str, str]:
    """Leaves the first of several ids that look alike as it is, and gives each of the others a
    different form, if one is free."""
    counts = Counter(shown.values())
    used = {form for form, count in counts.items() if count == 1}
    found: dict[str, str] = {}
    for id_, form in shown.items():
        if counts[form] > 1:
            form = next((other for other in forms_of(id_) if other not in used), form)
        used.add(form)
        found[id_] = form
    return found


class ShortNames:
    """Short names of ids. An id gets its name when it is seen first, and keeps the name whatever
    other ids come: an operator who looks for a request finds it under the same name.

    An id that fits into `width` columns is its own name. Otherwise the name is made of the part in
    which the id differs from others: without the words with which MANY ids begin, and cut at a
    place at which no other known id looks the same.
    """

    MAX_NAMES = 20_000
    """Of more ids the older half is forgotten."""

    def __init__(
        self, width: int, ellipsis: str = "…", measure: Callable[[str], int] = num_cells
    ) -> None:
        self._width = width
        self._room = _Room(width, ellipsis, measure)
        self._names: dict[str, str] = {}
        self._rests: dict[str, str] = {}
        """The part of each id from which its name is made."""
        self._sharing: Counter[str] = Counter()
        """How many ids begin with these words."""
        self._used: set[str] = set()
        self._cut: dict[int, set[str]] = {}
        """How all ids look if they are cut at a place, for the places that were needed."""

    def of(self, id_: str) -> str:
        """The name of an id that was learned; the id itself if it was not."""
        return self._names.get(id_, id_)

    def learn(self, ids: Iterable[str]) -> None:
        """Gives a name to each id that has none."""
        new = [id_ for id_ in dict.fromkeys(ids) if id_ not in self._names]
        if not new:
            return
        self._forget()
        for id_ in new:
            self._sharing.update(_beginnings(id_))
        self._name({id_: self._rest(id_) for id_ in new})

    def _rest(self, id_: str) -> str:
        """The id without the longest beginning that it shares with another one."""
        if self._room.measure(id_) <= self._width:
            return id_
        shared = [each for each in _beginnings(id_) if self._sharing[each] > 1]
        first = _FIRST_WORD.match(id_)
        return id_[len(shared[-1] if shared else first[0] if first else "") :] or id_

    def _name(self, rests: Mapping[str, str]) -> None:
        """Names new ids, all of them cut at one place if that tells them from each other and from
        all known ids; otherwise ids that look like another one are cut elsewhere."""
        for head in _heads(self._width):
            found = {id_: self._room.cut(rest, head) for id_, rest in rests.items()}
            looks = set(found.values())
            told_apart = len(looks) == len(found) and looks.isdisjoint(self._used)
            if told_apart and looks.isdisjoint(self._looks(head)):
                break
        else:
            found = {}
            for id_, rest in rests.items():
                forms = self._room.forms((rest, id_))
                free = (form for form in forms if form not in self._used)
                found[id_] = next(free, self._room.cut(rest, self._width // 2))
                self._used.add(found[id_])
        self._names |= found
        self._rests |= rests
        self._used.update(found.values())
        for head, looks in self._cut.items():
            looks.update(self._room.cut(rest, head) for rest in rests.values())

    def _looks(self, head: int) -> set[str]:
        if head not in self._cut:
            self._cut[head] = {self._room.cut(rest, head) for rest in self._rests.values()}
        return self._cut[head]

    def _forget(self) -> None:
        if len(self._names) <= self.MAX_NAMES:
            return
        kept = list(self._names)[self.MAX_NAMES // 2 :]
        self._names = {id_: self._names[id_] for id_ in kept}
        self._rests = {id_: self._rests[id_] for id_ in kept}
        self._used = set(self._names.values())
        self._sharing = Counter(each for id_ in kept for each in _beginnings(id_))
        self._cut.clear()


def _beginnings(id_: str) -> list[str]:
    """The beginnings of an id that end with a whole word, without the id itself, the shortest
    first."""
    return [id_[: end.end()] for end in _WORD_END.finditer(id_) if end.end() < len(id_)]
