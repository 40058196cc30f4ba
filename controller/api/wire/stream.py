"""The lines of the watch stream, of a recording, of the recorded traffic and of logs: their models,
and how a reader parses a line and refuses figures that no cluster has.

The compatibility rules are those of `controller.api.wire`.
"""

import contextlib
import json
import re
import time
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, TypeAdapter, ValidationError

from controller.api.wire import AnswerModel, OrderModel, WireModel
from controller.api.wire.history import HistoryReport
from controller.api.wire.requests import Event, RequestState
from controller.api.wire.status import ClusterStatus


class StatusFrame(WireModel):
    type: Literal["status"] = "status"
    time_s: float
    status: ClusterStatus


class EventFrame(WireModel):
    type: Literal["event"] = "event"
    time_s: float
    event: Event


class GapFrame(WireModel):
    """`missed` events were lost before the next event; null if their number is unknown."""

    type: Literal["gap"] = "gap"
    time_s: float
    missed: int | None = None
    reason: str = ""
    """Why the reader of a stream left an event out; empty if the controller forgot events."""
    position: str = ""
    """The position behind the event that was left out, in the controller's log; empty if it is not
    known."""


class PingFrame(WireModel):
    """Nothing happened: the stream is alive."""

    type: Literal["ping"] = "ping"
    time_s: float


class RequestBegan(NamedTuple):
    """The facts about a request that do not change while the request lives."""

    id: str
    client_id: str
    parent_id: str | None
    level: str
    frontend_id: str
    arrival_time_s: float
    num_prompt_tokens: int


class RequestStands(NamedTuple):
    """How a request stands. `number`: its place among all requests that began in the recording,
    from 0."""

    number: int
    state: RequestState
    instance_id: str | None
    num_output_tokens: int
    num_evictions: int
    num_moves: int
    ttft_s: float | None


class RequestsFrame(WireModel):
    """What changed about the requests of all instances since the last frame of this type; only in
    recordings. `num_before`: how many requests began before the first of `began`."""

    type: Literal["requests"] = "requests"
    time_s: float
    num_before: int
    began: tuple[RequestBegan, ...] = ()
    stands: tuple[RequestStands, ...] = ()
    gone: tuple[int, ...] = ()


class HistoryFrame(WireModel):
    """What the controller remembers of the time before; only in recordings, at the beginning."""

    type: Literal["history"] = "history"
    time_s: float
    history: HistoryReport


Frame = Annotated[
    StatusFrame | EventFrame | GapFrame | PingFrame | RequestsFrame | HistoryFrame,
    Field(discriminator="type"),
]
"""One line of the watch stream, and of a recording. `time_s`: when the controller wrote it,
seconds since the epoch. Readers skip types that they do not know."""
PREFIX_HASH_DIGITS = 16
"""Hexadecimal digits of each hash."""


class TrafficRequest(OrderModel):
    """Asks for the traffic from now on. A recording that was interrupted goes on with the same
    key."""

    key: str = Field(pattern=r"^[0-9a-f]{64}$", repr=False)
    """The key with which sessions and beginnings of prompts are hashed."""
    prefix_hash_tokens: int = Field(ge=1, le=65_536)


class RequestTraffic(WireModel):
    """A request that has ended. `arrival_time_s` is in seconds since the epoch. `session` is a
    hash, or empty if the request had no session. `prefix_hashes` has PREFIX_HASH_DIGITS digits for
    each full block of the prompt."""

    arrival_time_s: float
    num_prompt_tokens: int = Field(ge=0)
    num_output_tokens: int = Field(ge=0)
    rank: int
    outcome: RequestState
    session: str = Field(default="", pattern=r"^[0-9a-f]*$")
    prefix_hashes: str = Field(default="", pattern=r"^([0-9a-f]{16})*$")


class TrafficBatch(AnswerModel):
    """A line of the stream; a line comes at least every second. `time_s`: the present by the
    controller's clock. `num_lost`: requests that ended since the line before but are in no line,
    because a reader lagged or a process died. `num_live`: requests that came since the recording
    began and still run."""

    time_s: float
    requests: tuple[RequestTraffic, ...] = ()
    num_lost: int = Field(default=0, ge=0)
    num_live: int = Field(default=0, ge=0)


class MemberLog(AnswerModel):
    """The last lines of a member's log, as the member wrote them. A program that shows them must
    make them harmless first."""

    member_id: str
    lines: tuple[str, ...]


MAX_FIGURE = 1e15
"""A limit above any time, size or count of a cluster. Larger figures are refused, because a
dashboard that tried to draw infinity would crash."""
_frames: TypeAdapter[Frame] = TypeAdapter(Frame)
_LARGE = re.compile(rb"[:\[,]\s*-?(?:[0-9]{15}|[0-9.]+[eE]\+?[0-9]|NaN|Infinity)")
"""Matches lines that may hold a figure above the limit. Few lines match; those are parsed a second
time."""


class AbsurdFigureError(ValueError):
    """A figure is larger than any time, size or count, or is no number."""


def parse_frame(line: bytes) -> Frame | None:
    """The line's frame; None if this llumctl does not know its type. Raises ValueError if the line
    is no frame, or has an absurd figure. Numbers in quotes are refused, as they would escape the
    check of figures."""
    try:
        check_figures(line)
        return _frames.validate_json(line, strict=True)
    except ValidationError as error:
        if error.errors(include_url=False)[0]["type"] == "union_tag_invalid":
            return None
        raise ValueError("not a frame of llumctl's watch stream") from error


class FrameReader:
    """The frames of one watch stream, line by line.

    An event that cannot be read, or has an absurd figure, becomes a gap of one event. A reader that
    gave the stream up instead would get the same event again each time it connects, and never the
    events behind it.
    """

    def __init__(self) -> None:
        self._time_s: float | None = None

    def read(self, line: bytes) -> Frame | None:
        """Does what `parse_frame` does, except for bad events."""
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
    """The gap that replaces a line that is meant as an event; None for any other line."""
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
    """Raises AbsurdFigureError for JSON with an absurd figure. Text that is no JSON passes."""
    if _LARGE.search(text):
        with contextlib.suppress(json.JSONDecodeError, RecursionError):
            json.loads(text, parse_float=figure, parse_int=figure, parse_constant=figure)


def figure(text: str) -> float:
    """The number of this text. Raises AbsurdFigureError if it is absurd."""
    found = float(text)
    if not abs(found) <= MAX_FIGURE:
        raise AbsurdFigureError(f"{text[:20]} is no figure of a cluster")
    return found
