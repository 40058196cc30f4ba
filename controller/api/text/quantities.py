"""Puts figures into words and makes foreign text harmless, for the command line and the dashboard
alike. Every command imports this module, so it imports the standard library only.
"""

import math
import re
import unicodedata
from collections.abc import Sequence
from datetime import datetime, tzinfo

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
# The longest duration that is accepted. It is longer than any wait and any log; a longer sleep
# would overflow.
_MAX_S = 10 * 366 * 86400.0


def num_cells(text: str) -> int:
    """The text's width on a terminal: East Asian wide characters take two columns, combining
    characters none."""
    if text.isascii():
        return len(text)
    return sum(map(_cells_of, text))


def _cells_of(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def duration(seconds: float | None) -> str:
    """The duration in at most two units: 0.4s, 12s, 3m05s, 2h10m, 4d03h."""
    if seconds is None:
        return "-"
    if seconds < 9.95:  # from 9.95 on, one decimal would show 10.0s
        return f"{seconds:.1f}s"
    whole = int(seconds + 0.05)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def seconds_of(text: str) -> float | None:
    """The seconds of a duration as people type it: `30s`, `1h30m`, or a bare number of seconds.
    None if the text is no duration."""
    text = text.strip().lower()
    if _NUMBER.fullmatch(text):
        found = float(text)
    elif text and not _PART.sub("", text):
        found = sum(float(number) * _UNITS_S[unit] for number, unit in _PART.findall(text))
    else:
        return None
    return found if math.isfinite(found) and found <= _MAX_S else None


def percent(share: float) -> str:
    """`98.7%`"""
    return f"{100 * share:.3g}%"


def latency(seconds: float | None) -> str:
    """Like `duration`, but in milliseconds below one second: 240ms, 1.9s, 12s."""
    if seconds is not None and 0 <= seconds < 0.9995:
        return f"{1000 * seconds:.0f}ms"
    return duration(seconds)


def sized(num_bytes: float) -> str:
    """512 B, 1.5 KiB, 32.0 MiB, 2.1 GiB."""
    amount, unit = _scaled(num_bytes, 1024, 1023.95, ("KiB", "MiB", "GiB"))
    return f"{amount:.1f} {unit}" if unit else f"{num_bytes:.0f} B"


def counted(number: float) -> str:
    """9.5, 950, 12.4k, 4.4M, 1.2G."""
    amount, unit = _scaled(number, 1000, 999.5, ("k", "M", "G"))
    return f"{amount:.3g}{unit}"


def _scaled(number: float, step: float, most: float, units: Sequence[str]) -> tuple[float, str]:
    """The number in the smallest unit in which it is below `most`, which rounds to `step`. The unit
    is empty for a number that needs none."""
    amount, unit = float(number), ""
    for larger in units:
        if amount < most:
            break
        amount, unit = amount / step, larger
    return amount, unit


def per_instance_hour(tokens_per_s: float, num_instances: float) -> float | None:
    """The output tokens that an instance gives in an hour; None without instances. `num_instances`:
    all that exist, whether they serve or not."""
    return 3600 * tokens_per_s / num_instances if num_instances else None


def price_of_million(tokens_per_instance_hour: float | None, cost_per_hour: float) -> float | None:
    """What a million output tokens cost; None if there are none, or the cost is not known (0)."""
    if not tokens_per_instance_hour or not cost_per_hour:
        return None
    return 1e6 * cost_per_hour / tokens_per_instance_hour


def price(value: float) -> str:
    """0.57, 12.3, 1230: in the currency of `console.instance_cost_per_hour`."""
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def time_of_day(time_s: float | None, zone: tzinfo | None = None, *, millis: bool = False) -> str:
    """HH:MM:SS, or HH:MM:SS.mmm, in `zone` (None: the machine's zone)."""
    if time_s is not None:
        try:
            found = datetime.fromtimestamp(time_s, zone)
        except (OverflowError, ValueError, OSError):
            pass
        else:
            return found.strftime("%H:%M:%S") + (f".{found.microsecond // 1000:03d}" * millis)
    return "--:--:--"


def moment(time_s: float, now_s: float, zone: tzinfo | None = None) -> str:
    """HH:MM:SS, with the date before it if the day is not the day of `now_s`."""
    clock = time_of_day(time_s, zone)
    try:
        day = datetime.fromtimestamp(time_s, zone).date()
        today = datetime.fromtimestamp(now_s, zone).date()
    except (OverflowError, ValueError, OSError):
        return clock
    return clock if day == today else f"{day} {clock}"


def setting_value(value: float | str | bool | None) -> str:
    """The value as a user would type it: large numbers are written in full, and a missing value is
    `none`."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(int(value)) if value.is_integer() else repr(value)
    return str(value)


def printable(text: str, keep: str = "") -> str:
    """The text, made safe: nothing in it can drive the terminal. White space becomes a space; other
    characters without a glyph are written as escapes. Characters in `keep` stay."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else " " if char.isspace() else repr(char)[1:-1]
        for char in text
    )
