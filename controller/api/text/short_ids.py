"""Shortens ids to fit into a narrow space: drops the beginnings that they share, and cuts out the
middle.

The command line's tables and the dashboard shorten ids in the same way, and every command that
names a request takes a shortened id (`controller.core.record.request_record`).
"""

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from controller.api.text.quantities import num_cells

_FIRST_WORD = re.compile(r"[^-_.:/]*[-_.:/]")
_WORDS = re.compile(r".*[-_.:/]")


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
