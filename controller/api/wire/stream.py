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
    """`missed` events were lost before the next one; null: an unknown number."""

    type: Literal["gap"] = "gap"
    time_s: float
    missed: int | None = None
    reason: str = ""
    """Why the reader of a stream left an event out; empty where the controller forgot some."""
    position: str = ""
    """Behind the event that was left out, in the controller's log; empty where it is not known."""


class PingFrame(WireModel):
    """Nothing happened: the stream is alive."""

    type: Literal["ping"] = "ping"
    time_s: float


class RequestBegan(NamedTuple):
    """What does not change while a request lives."""

    id: str
    client_id: str
    parent_id: str | None
    level: str
    frontend_id: str
    arrival_time_s: float
    num_prompt_tokens: int


class RequestStands(NamedTuple):
    """How a request stands. `number`: its place among all that began in the recording, from 0."""

    number: int
    state: RequestState
    instance_id: str | None
    num_output_tokens: int
    num_evictions: int
    num_moves: int
    ttft_s: float | None


class RequestsFrame(WireModel):
    """The requests of all instances, as far as they are others than in the frame of this type
    before; in recordings only. `num_before`: how many began before the first of `began`."""

    type: Literal["requests"] = "requests"
    time_s: float
    num_before: int
    began: tuple[RequestBegan, ...] = ()
    stands: tuple[RequestStands, ...] = ()
    gone: tuple[int, ...] = ()


Frame = Annotated[
    StatusFrame | EventFrame | GapFrame | PingFrame | RequestsFrame, Field(discriminator="type")
]
"""One line of the watch stream, and of a recording. `time_s`: when the controller wrote it,
seconds since the epoch. Readers skip types that they do not know."""
PREFIX_HASH_DIGITS = 16
"""Hexadecimal digits of each hash."""


class TrafficRequest(OrderModel):
    """Asks for the traffic from now on. The same recording goes on with the same key."""

    key: str = Field(pattern=r"^[0-9a-f]{64}$", repr=False)
    """Sessions and beginnings of prompts are hashed with it."""
    prefix_hash_tokens: int = Field(ge=1, le=65_536)


class RequestTraffic(WireModel):
    """A request that has ended. `arrival_time_s` is in seconds since the epoch. `session` is a
    hash, empty if there was none; `prefix_hashes` has PREFIX_HASH_DIGITS for each full block of the
    prompt."""

    arrival_time_s: float
    num_prompt_tokens: int = Field(ge=0)
    num_output_tokens: int = Field(ge=0)
    rank: int
    outcome: RequestState
    session: str = Field(default="", pattern=r"^[0-9a-f]*$")
    prefix_hashes: str = Field(default="", pattern=r"^([0-9a-f]{16})*$")


class TrafficBatch(AnswerModel):
    """A line of the stream; one comes at least every second. `time_s`: now, by the controller's
    clock. `num_lost`: requests that ended since the line before and are in no line, as somebody
    lagged or died. `num_live`: requests that came since the recording began, and run."""

    time_s: float
    requests: tuple[RequestTraffic, ...] = ()
    num_lost: int = Field(default=0, ge=0)
    num_live: int = Field(default=0, ge=0)


class MemberLog(AnswerModel):
    """The last lines of a member's log, as it wrote them: who shows them makes them harmless."""

    member_id: str
    lines: tuple[str, ...]


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
