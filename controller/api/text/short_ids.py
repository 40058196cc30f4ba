"""Shortens ids for little room: drops common beginnings, and cuts the middle.

The command line's tables and the dashboard shorten alike, and every command that names a request
takes a shortened id (`controller.core.record.request_record`).
"""

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

_FIRST_WORD = re.compile(r"[^-_.:/]*[-_.:/]")
_WORDS = re.compile(r".*[-_.:/]")


def shortened(ids: Iterable[str], width: int, ellipsis: str = "…") -> dict[str, str]:
    """Each id in at most `width` characters; all whole if all have room.

    Ids with the same first word (`cmpl-`) lose it, and the further words that they all begin with.
    Ids that are still too long are cut in the middle, all at the same place, and at one where
    different ids stay different. If there is no such place, ids that look alike are cut elsewhere,
    as far as the width has room for differences.
    """
    whole = list(dict.fromkeys(ids))
    if width < 1 or all(len(id_) <= width for id_ in whole):
        return {id_: id_[: max(0, width)] for id_ in whole}
    rests = _rests(whole)
    best: dict[str, str] = {}
    for head in _heads(width):
        found = {id_: _cut(rest, head, width, ellipsis) for id_, rest in rests.items()}
        if len(set(found.values())) == len(found):
            return found
        best = best or found
    return _told_apart(best, lambda id_: _forms((rests[id_], id_), width, ellipsis))


def _rests(ids: Sequence[str]) -> dict[str, str]:
    """Each id without the beginning that it shares with its like; at least its last word stays."""
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
    """The whole words with which all ids begin. The first and the last id in order have the least
    in common."""
    pairs = zip(min(ids), max(ids), strict=False)
    common = "".join(one for one, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    found = _WORDS.match(common)
    return found[0] if found else ""


def _heads(width: int) -> Iterator[int]:
    """Numbers of characters before the cut: first half the width, then more or fewer."""
    middle = width // 2
    for off in range(width):
        for head in {middle + off, middle - off}:
            if 0 <= head < width:
                yield head


def _cut(rest: str, head: int, width: int, ellipsis: str) -> str:
    if len(rest) <= width:
        return rest
    tail = width - head - 1
    return f"{rest[:head]}{ellipsis}{rest[len(rest) - tail :]}"


def _forms(texts: Iterable[str], width: int, ellipsis: str) -> Iterator[str]:
    """All ways to shorten one of the texts: cut once, then a piece out of the middle."""
    for text in texts:
        for head in _heads(width):
            yield _cut(text, head, width, ellipsis)
        for start in range(1, len(text) - width + 2 if width > 2 else 0):
            yield f"{ellipsis}{text[start : start + width - 2]}{ellipsis}"


def _told_apart(
    shown: Mapping[str, str], forms_of: Callable[[str], Iterator[str]]
) -> dict[str, str]:
    """Gives each id but the first of those that look alike another form, if one is free."""
    counts = Counter(shown.values())
    used = {form for form, count in counts.items() if count == 1}
    found: dict[str, str] = {}
    for id_, form in shown.items():
        if counts[form] > 1:
            form = next((other for other in forms_of(id_) if other not in used), form)
        used.add(form)
        found[id_] = form
    return found
