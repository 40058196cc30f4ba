"""Figures and foreign text in words: the command line and the dashboard say them alike.

Only the standard library: every command imports it.
"""

from datetime import datetime, tzinfo


def duration(seconds: float | None) -> str:
    """Two steps at most: 0.4s, 12s, 3m05s, 2h10m, 4d03h."""
    if seconds is None:
        return "-"
    if seconds < 9.95:  # what rounds to 10.0 has two steps already
        return f"{seconds:.1f}s"
    whole = int(seconds + 0.05)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def latency(seconds: float | None) -> str:
    """As `duration`, but milliseconds below one second: 240ms, 1.9s, 12s."""
    if seconds is not None and 0 <= seconds < 0.9995:
        return f"{1000 * seconds:.0f}ms"
    return duration(seconds)


def sized(num_bytes: float) -> str:
    """512 B, 1.5 KiB, 32.0 MiB, 2.1 GiB."""
    amount, unit = float(num_bytes), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if amount < 1023.95:  # what rounds to 1024.0 is one of the next
            break
        amount, unit = amount / 1024, larger
    return f"{num_bytes:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"


def time_of_day(time_s: float | None, zone: tzinfo | None = None, *, millis: bool = False) -> str:
    """HH:MM:SS, or HH:MM:SS.mmm, in a zone; None means the machine's."""
    if time_s is not None:
        try:
            found = datetime.fromtimestamp(time_s, zone)
        except (OverflowError, ValueError, OSError):
            pass
        else:
            return found.strftime("%H:%M:%S") + (f".{found.microsecond // 1000:03d}" * millis)
    return "--:--:--"


def moment(time_s: float, now_s: float, zone: tzinfo | None = None) -> str:
    """HH:MM:SS of the same day as `now_s`, else with the date."""
    clock = time_of_day(time_s, zone)
    try:
        day = datetime.fromtimestamp(time_s, zone).date()
        today = datetime.fromtimestamp(now_s, zone).date()
    except (OverflowError, ValueError, OSError):
        return clock
    return clock if day == today else f"{day} {clock}"


def setting_value(value: float | str | bool | None) -> str:
    """As it can be typed: large numbers in full, `none` for no value."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(int(value)) if value.is_integer() else repr(value)
    return str(value)


def printable(text: str, keep: str = "") -> str:
    """What comes from afar must not drive the terminal: of what has no glyph, white space becomes
    a space and all else is written as an escape. What is in `keep` stays."""
    return "".join(
        char if char.isprintable() or char in keep else " " if char.isspace() else repr(char)[1:-1]
        for char in text
    )
