"""The lines of the watch stream, of a recording, of the recorded traffic and of logs.

The compatibility rules are those of `base`.
"""

from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from controller.api.wire.base import AnswerModel, OrderModel, WireModel
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
