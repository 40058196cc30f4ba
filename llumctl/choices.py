"""Words from a fixed set, as options take them: a wrong one is told the nearest right one."""

import difflib
from collections.abc import Iterable

from controller.api.errors import UsageError


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean X?`, or nothing if none resembles it."""
    found = difflib.get_close_matches(word.lower(), list(known), 1)
    return f"; did you mean {found[0]}?" if found else ""


def one_of(word: str, known: Iterable[str], flag: str, what: str) -> str:
    """The word itself. Raises UsageError naming the flag; `what` it should be: "a state"."""
    words = list(known)
    if word in words:
        return word
    raise UsageError(
        f"{flag}: {word[:60]!r} is not {what}{nearest(word, words)}",
        f"one of {', '.join(words)}",
    )


def several_of(text: str, known: Iterable[str], flag: str, what: str) -> tuple[str, ...]:
    """Words between commas, each once, in the order given."""
    words = list(known)
    found = [one_of(word.strip(), words, flag, what) for word in text.split(",")]
    return tuple(dict.fromkeys(found))


def an_id(text: str, flag: str) -> str:
    """The id, if it can be one. Raises UsageError if it is empty or not printable."""
    if not text or not text.isprintable():
        raise UsageError(f"{flag}: {text[:60]!r} is no id", "llumctl status      llumctl requests")
    return text
