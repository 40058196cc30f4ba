"""Durations and moments as people type them: `30s`, `5m`, `1h30m`, an ISO time."""

from datetime import datetime

from controller.api.errors import UsageError
from controller.api.text.quantities import seconds_of

EXAMPLES = "30s, 5m, 2h, 1h30m"


def seconds(text: str, flag: str) -> float:
    """Zero or more seconds; a bare number is seconds. Raises UsageError naming the flag."""
    found = seconds_of(text)
    if found is None:
        raise UsageError(f"{flag}: {text[:60]!r} is no duration", f"durations look like {EXAMPLES}")
    return found


def positive(text: str, flag: str) -> float:
    """As `seconds`, but not zero."""
    found = seconds(text, flag)
    if not found:
        raise UsageError(f"{flag}: must be more than no time", f"durations look like {EXAMPLES}")
    return found


def moment(text: str, flag: str, now_s: float) -> float:
    """Seconds since the epoch: a duration ago, or an ISO time (local unless it names its zone)."""
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
