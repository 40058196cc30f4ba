"""Durations and moments as people type them: `30s`, `5m`, `1h30m`, an ISO time."""

import math
import re
from datetime import datetime

from controller.api.errors import UsageError

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
# No wait and no log is longer; sleeping for more overflows.
_MAX_S = 10 * 366 * 86400.0

EXAMPLES = "30s, 5m, 2h, 1h30m"


def seconds(text: str, flag: str) -> float:
    """Zero or more seconds; a bare number is seconds. Raises UsageError naming the flag."""
    found = _seconds(text)
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
    ago = _seconds(text)
    if ago is not None:
        return now_s - ago
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError, OSError):
        raise UsageError(
            f"{flag}: {text[:60]!r} is neither a duration nor a time",
            f"{EXAMPLES}      or      2026-01-31T12:00:00",
        ) from None


def _seconds(text: str) -> float | None:
    text = text.strip().lower()
    if _NUMBER.fullmatch(text):
        found = float(text)
    elif text and not _PART.sub("", text):
        found = sum(float(number) * _UNITS_S[unit] for number, unit in _PART.findall(text))
    else:
        return None
    return found if math.isfinite(found) and found <= _MAX_S else None
