"""A moment of a recording as people type it: `2m30s`, `+30s`, `-1m`, `12:04:31`."""

from datetime import datetime, timedelta, tzinfo
from datetime import time as time_of_day

from controller.api.errors import UsageError
from controller.api.text import quantities

EXAMPLES = ("2m30s", "+30s", "12:04:31")


def position_s(
    text: str, now_s: float, length_s: float, origin_s: float, zone: tzinfo | None
) -> float:
    """Seconds since the recording began, which was at `origin_s`; `now_s` is the present position.

    Raises UsageError: it is no moment, or a time of day that the recording does not have.
    """
    text = text.strip()
    if text[:1] in ("+", "-") and (by_s := quantities.seconds_of(text[1:])) is not None:
        return now_s + (by_s if text[0] == "+" else -by_s)
    if (found_s := quantities.seconds_of(text)) is not None:
        return found_s
    try:
        clock = time_of_day.fromisoformat(text if ":" in text else "")
    except ValueError:
        words = ", ".join(EXAMPLES)
        raise UsageError(f"{text[:40]!r} is no moment: they are as in {words}") from None
    begin = datetime.fromtimestamp(origin_s, zone)
    first = datetime.combine(begin.date(), clock, begin.tzinfo)
    for each in (first, first + timedelta(days=1)):
        found_s = each.timestamp() - origin_s
        if -1 < found_s <= length_s:
            return max(0.0, found_s)
    shown = [quantities.time_of_day(each, zone) for each in (origin_s, origin_s + length_s)]
    raise UsageError(f"the recording has no {text[:40]}: it is from {' to '.join(shown)}")
