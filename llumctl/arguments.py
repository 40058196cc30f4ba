"""Values as people type them: words from a fixed set, ids, numbers within bounds, durations (`30s`,
`5m`, `1h30m`) and moments. A wrong value raises UsageError, which names the flag, says why the
value is wrong, and names the nearest right value."""

import contextlib
import difflib
from collections.abc import Iterable, Iterator
from datetime import datetime

from controller.api.errors import UsageError
from controller.api.text.quantities import seconds_of


@contextlib.contextmanager
def about(flag: str) -> Iterator[None]:
    """Puts the flag in front of a usage error that does not name it, such as the controller's."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{flag}: {error.message}", error.hint) from error


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean X?`, or an empty text if no known word resembles this one."""
    found = difflib.get_close_matches(word.lower(), list(known), 1)
    return f"; did you mean {found[0]}?" if found else ""


def one_of(word: str, known: Iterable[str], flag: str, what: str) -> str:
    """The word itself, if it is known. Otherwise raises UsageError, which names the flag, says that
    the word is not `what`, for example "a state", and lists the known words."""
    words = list(known)
    if word in words:
        return word
    raise not_one_of(word, words, flag, what)


def not_one_of(word: str, known: Iterable[str], flag: str, what: str) -> UsageError:
    words = list(known)
    listed = ", ".join(words) or "there is none"
    return UsageError(f"{flag}: {word[:60]!r} is not {what} ({listed}){nearest(word, words)}")


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


def within(
    least: float, value: float | None, flag: str, most: float | None = None, *, above: bool = False
) -> None:
    """Raises UsageError for a value that is below `least` (or equal to it, with `above`), above
    `most`, or not finite. None is no value, and is not refused."""
    if value is None:
        return
    if value != value or value < least or (above and value == least):
        raise UsageError(
            f"{flag}: must be {'greater than' if above else 'at least'} {least:g}, not {value:g}"
        )
    if value == float("inf") or (most is not None and value > most):
        limit = "finite" if most is None else f"at most {most:g}"
        raise UsageError(f"{flag}: must be {limit}, not {value:g}")


EXAMPLES = "30s, 5m, 2h, 1h30m"


def seconds(text: str, flag: str) -> float:
    """Reads a duration, which may be zero. A number without a unit means seconds. Raises
    UsageError, which names the flag."""
    found = seconds_of(text)
    if found is None:
        raise UsageError(f"{flag}: {text[:60]!r} is not a duration ({EXAMPLES})")
    return found


def positive(text: str, flag: str, most: str = "") -> float:
    """Reads a duration as `seconds` does, but refuses zero, and durations longer than `most`."""
    found = seconds(text, flag)
    if not found:
        raise UsageError(f"{flag}: must be greater than 0, not {text[:60]!r}")
    if most and found > seconds(most, flag):
        raise UsageError(f"{flag}: must be at most {most}, not {text[:60]!r}")
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
            f"{flag}: {text[:60]!r} is neither a duration nor a time"
            f" ({EXAMPLES}, 2026-01-31T12:00:00)"
        ) from None
