"""A line of a watch stream or of a recording, parsed, and the figures that no answer may have."""

import contextlib
import json
import re
import time

from pydantic import TypeAdapter, ValidationError

from controller.api.wire.stream import Frame, GapFrame

MAX_FIGURE = 1e15
"""Above all times, bytes and counts. Infinity and the like end a dashboard that draws them."""
_frames: TypeAdapter[Frame] = TypeAdapter(Frame)
_LARGE = re.compile(rb"[:\[,]\s*-?(?:[0-9]{15}|[0-9.]+[eE]\+?[0-9]|NaN|Infinity)")
"""What a line has that may hold a larger figure; few do, and those are parsed twice."""


class AbsurdFigureError(ValueError):
    """No time, size or count is so large, or it is none at all."""


def parse_frame(line: bytes) -> Frame | None:
    """None for a type that this llumctl does not know. Raises ValueError if the line is no frame,
    or has an absurd figure. A figure is a number: one in quotes would pass for a text here."""
    try:
        check_figures(line)
        return _frames.validate_json(line, strict=True)
    except ValidationError as error:
        if error.errors(include_url=False)[0]["type"] == "union_tag_invalid":
            return None
        raise ValueError("not a frame of llumctl's watch stream") from error


class FrameReader:
    """The frames of one watch stream, line by line.

    An event that is none, or has an absurd figure, is a gap of one: a reader that gave the stream
    up for it would get it again each time it connects, and nothing behind it.
    """

    def __init__(self) -> None:
        self._time_s: float | None = None

    def read(self, line: bytes) -> Frame | None:
        """As `parse_frame`, but for events."""
        try:
            frame = parse_frame(line)
        except ValueError as error:
            now_s = time.time() if self._time_s is None else self._time_s
            frame = _left_out(line, error, now_s)
            if frame is None:
                raise
        if frame is not None:
            self._time_s = frame.time_s
        return frame


def _left_out(line: bytes, why: ValueError, time_s: float) -> GapFrame | None:
    """In place of a line that is meant as an event; None for any other line."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get("type") != "event":
        return None
    event = found.get("event")
    position = event.get("position") if isinstance(event, dict) else None
    known = position if isinstance(position, str) else ""
    reason = str(why) if isinstance(why, AbsurdFigureError) else "it is no event of llumctl's"
    return GapFrame(time_s=time_s, missed=1, reason=reason, position=known)


def check_figures(text: bytes) -> None:
    """Raises AbsurdFigureError for JSON with a figure that nobody has. What is no JSON passes."""
    if _LARGE.search(text):
        with contextlib.suppress(json.JSONDecodeError, RecursionError):
            json.loads(text, parse_float=figure, parse_int=figure, parse_constant=figure)


def figure(text: str) -> float:
    """Raises AbsurdFigureError if nobody measures such a figure."""
    found = float(text)
    if not abs(found) <= MAX_FIGURE:
        raise AbsurdFigureError(f"{text[:20]} is no figure of a cluster")
    return found
