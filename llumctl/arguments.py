"""Values as people type them: words from a fixed set, ids, durations (`30s`, `5m`, `1h30m`) and
moments. A wrong value raises UsageError, which names the flag and the nearest right value."""

import difflib
from collections.abc import Iterable
from datetime import datetime

from controller.api.errors import UsageError
from controller.api.text.quantities import seconds_of


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean X?`, or an empty text if no known word resembles this one."""
    found = difflib.get_close_matches(word.lower(), list(known), 1)
    return f"; did you mean {found[0]}?" if found else ""


def one_of(word: str, known: Iterable[str], flag: str, what: str) -> str:
    """The word itself, if it is known. Otherwise raises UsageError, which names the flag and says
    that the word is not `what`, for example "a state"."""
    words = list(known)
    if word in words:
        return word
    raise UsageError(
        f"{flag}: {word[:60]!r} is not {what}{nearest(word, words)}",
        f"one of {', '.join(words)}",
    )


def several_of(text: str, known: Iterable[str], flag: str, what: str) -> tuple[str, ...]:
    """The words between commas in the order given, without repetitions."""
    words = list(known)
    found = [one_of(word.strip(), words, flag, what) for word in text.split(",")]
    return tuple(dict.fromkeys(found))


def an_id(text: str, flag: str) -> str:
    """Returns the text if it can be an id. Raises UsageError if it is empty or not printable."""
    if not text or not text.isprintable():
        raise UsageError(
            f"{flag}: {text[:60]!r} is not an id", "llumctl status      llumctl requests"
        )
    return text


EXAMPLES = "30s, 5m, 2h, 1h30m"


def seconds(text: str, flag: str) -> float:
    """Reads a duration, which may be zero. A number without a unit means seconds. Raises
    UsageError, which names the flag."""
    found = seconds_of(text)
    if found is None:
        raise UsageError(
            f"{flag}: {text[:60]!r} is not a duration", f"durations look like {EXAMPLES}"
        )
    return found


def positive(text: str, flag: str) -> float:
    """Reads a duration as `seconds` does, but refuses zero."""
    found = seconds(text, flag)
    if not found:
        raise UsageError(f"{flag}: must be more than zero", f"durations look like {EXAMPLES}")
    return found


def moment(text: str, flag: str, now_s: float) -> float:
    """Seconds since the epoch. The text is a duration before now, or an ISO time, which is local
    unless it names a time zone."""
    ago = seconds_of(text)
    if ago is not None:
        return now_s - ago
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError, OSError):
        raise UsageError(
            f"{flag}: {text[:60]!r} is neither a duration nor a time",
            f"{EXAMPLES}      or      2026-01-31T12:00:00",
        ) from None
