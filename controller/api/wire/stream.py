"""The lines of the watch stream, and of a recording."""

from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from controller.api.wire.base import WireModel
from controller.api.wire.models import ClusterStatus, Event, RequestState


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
