"""Wire models of a recording of the cluster's traffic.

The compatibility rules are those of `base`.
"""

from pydantic import Field

from controller.api.wire.base import AnswerModel, OrderModel, WireModel
from controller.api.wire.models import RequestState

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
