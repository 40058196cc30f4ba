"""What the cluster's own processes say to each other: msgpack, one tagged union, no pickle.

Every message is one frame holding a struct below, followed by opaque payload frames where
the struct says so. Unknown tags and malformed bodies are refused by the decoder.
"""

from typing import Literal

import msgspec

from controller.core.event_log import LoggedEvent
from controller.core.migration.record import MoveInFlight
from controller.core.request_record import RequestRecord, RequestState
from controller.core.snapshot import InstanceSnapshot
from controller.ports.engine import Emulation
from controller.runtime.message import Message
from controller.runtime.move_messages import (
    FenceAnswered,
    FenceAsked,
    MoveAnnounced,
    MoveAnswered,
    MoveAsked,
    MoveLimitsSet,
    MoveRefusalAsked,
    MoveRefusalsAnswered,
    MoveSaid,
    MoveTimed,
    OwnerAsked,
    RequestLost,
    RequestMoved,
    RequestNotMoved,
    TransferTold,
)
from controller.runtime.steer_messages import (
    DrainSet,
    FrontendLimitsSet,
    RankChangeAnswered,
    RankChangeAsked,
    RankNoted,
    RankSet,
    ReliefFruitless,
    ReliefOrdered,
    StatusIntervalSet,
)

MemberKind = Literal["instance", "frontend"]
Phase = Literal["starting", "active", "failed", "stopped"]


class EngineInfo(msgspec.Struct, frozen=True, array_like=True):
    """What a frontend must know of the engines to stand in for them."""

    max_model_len: int
    num_gpu_blocks: int
    """As vLLM counts them: with its null block, which holds no tokens."""
    block_size: int
    supported_tasks: tuple[str, ...]


class Hello(Message, frozen=True):
    """Member to controller, about once a second: who I am, where, and how far I have got.

    `incarnation` is 0 until the controller has given one. Repeating it lets a restarted
    controller rebuild its table from what its members say.
    """

    kind: MemberKind
    member_id: str
    nonce: str
    incarnation: int
    address: str
    node: str
    pid: int
    phase: Phase
    detail: str = ""
    info: EngineInfo | None = None
    num_live_reqs: int = 0
    up_s: float = 0.0
    ttft_p99_s: float | None = None
    """Of a frontend, over the last minute."""


class Welcome(Message, frozen=True):
    """Controller to member: your incarnation. `fenced`: drop all that you were running."""

    nonce: str
    incarnation: int
    fenced: bool = False


class InstanceEntry(msgspec.Struct, frozen=True, array_like=True):
    instance_id: str
    incarnation: int
    address: str
    info: EngineInfo
    snapshot: InstanceSnapshot | None


class Directory(Message, frozen=True):
    """Controller to frontends: the instances that serve, with their last known status."""

    instances: tuple[InstanceEntry, ...]


class StatusPushed(Message, frozen=True):
    """Instance to controller. `last_dispatch_seq`: the highest dispatch it has taken in."""

    snapshot: InstanceSnapshot
    last_dispatch_seq: int
    num_steps: int
    step_time_s: float
    emulation: Emulation | None = None
    ttft_p99_s: float | None = None
    moves: tuple[MoveInFlight, ...] = ()
    """Those of which it is the source."""
    num_moves_in: int = 0
    cpu_cores: float | None = None
    """That its process kept busy over the last second or so; None before the first one is over."""


class EventsTold(Message, frozen=True):
    """Member to controller. `num_before`: how many events this incarnation told of before, so
    that what a controller that lagged did not get can be counted."""

    member_id: str
    incarnation: int
    num_before: int
    events: tuple[LoggedEvent, ...]


class Happened(Message, frozen=True):
    """Instance to the frontend whose requests these events are about."""

    events: tuple[LoggedEvent, ...]


class RequestsAsked(Message, frozen=True):
    """Controller to frontends: which requests have you? `matching` is an id, the client's own id,
    the beginning of an id, or an id as tables shorten it; with `history`, what happened to each
    comes along."""

    query_id: str
    instance_id: str | None
    states: tuple[RequestState, ...]
    matching: str | None
    history: bool
    max_requests: int


class RequestsAnswered(Message, frozen=True):
    query_id: str
    frontend_id: str
    requests: tuple[RequestRecord, ...]
    num_matching: int


class StatusPull(Message, frozen=True):
    """Controller to instance: push a status now."""


class DispatchAsked(Message, frozen=True):
    request_id: str
    frontend_id: str
    num_prompt_tokens: int
    rank: int
    arrival_time_s: float


class DispatchWithdrawn(Message, frozen=True):
    request_id: str
    frontend_id: str


class Dispatched(Message, frozen=True):
    request_id: str
    instance_id: str
    incarnation: int
    seq: int
    candidates: tuple[tuple[str, float], ...] = ()
    """The best of the instances considered and their scores, best first."""
    policy: str = ""
    """That the controller chose by; empty where the frontend chose."""
    num_considered: int = 0


class Refused(Message, frozen=True):
    request_id: str
    code: str
    retry_after_s: float


class InstanceLost(Message, frozen=True):
    """Controller to frontends: this incarnation is gone and so are its requests. And to the other
    instances: what it moves to or from them comes to nothing."""

    instance_id: str
    incarnation: int


class DrainFrontend(Message, frozen=True):
    """Controller to frontend: answer 503 from now on, cut what still runs after `grace_s`."""

    grace_s: float


class AddRequest(Message, frozen=True):
    """Frontend to instance; payload frames: the engine's own request encoding."""

    request_id: str
    frontend_id: str
    reply_to: str
    incarnation: int
    dispatch_seq: int
    arrival_time_s: float = 0.0
    attempt: int = 0
    hop: int = 0


class DispatchUnused(Message, frozen=True):
    """Frontend to instance: no request will come for this dispatch; count it as reported."""

    incarnation: int
    dispatch_seq: int


class AbortRequests(Message, frozen=True):
    request_ids: tuple[str, ...]


class OutputItem(msgspec.Struct, frozen=True, array_like=True):
    """Tokens of one request in a payload: `num_tokens` from `first_index` in (attempt, hop)."""

    request_id: str
    attempt: int
    hop: int
    first_index: int
    num_tokens: int
    finish_reason: str | None = None


class OutputsEmitted(Message, frozen=True):
    """Instance to frontend; payload frames: the engine's own output encoding, item by item."""

    instance_id: str
    incarnation: int
    items: tuple[OutputItem, ...]


class OutputsReceived(Message, frozen=True):
    """Frontend to instance, now and then: (request id, index of the next token it lacks)."""

    items: tuple[tuple[str, int], ...]


class OutputsMissing(Message, frozen=True):
    """Frontend to the request's instance: these tokens were sent by whoever had it before, and
    did not come."""

    request_id: str
    first_index: int
    end_index: int


class RequestRefused(Message, frozen=True):
    """Instance to frontend: this request could not be taken in; `retryable` elsewhere."""

    request_id: str
    message: str
    retryable: bool = False


AnyMessage = (
    Hello
    | Welcome
    | Directory
    | StatusPushed
    | EventsTold
    | Happened
    | RequestsAsked
    | RequestsAnswered
    | StatusPull
    | DispatchAsked
    | DispatchWithdrawn
    | Dispatched
    | Refused
    | InstanceLost
    | DrainFrontend
    | AddRequest
    | DispatchUnused
    | AbortRequests
    | OutputsEmitted
    | OutputsReceived
    | OutputsMissing
    | RequestRefused
    | MoveAsked
    | MoveAnswered
    | MoveRefusalAsked
    | MoveRefusalsAnswered
    | MoveLimitsSet
    | MoveSaid
    | MoveAnnounced
    | RequestMoved
    | RequestNotMoved
    | RequestLost
    | OwnerAsked
    | FenceAsked
    | FenceAnswered
    | MoveTimed
    | TransferTold
    | RankChangeAsked
    | RankChangeAnswered
    | RankSet
    | RankNoted
    | DrainSet
    | StatusIntervalSet
    | FrontendLimitsSet
    | ReliefOrdered
    | ReliefFruitless
)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyMessage)


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


def decode(frame: bytes | memoryview) -> AnyMessage:
    """Raises msgspec.DecodeError for anything that is not one of ours."""
    return _decoder.decode(frame)
