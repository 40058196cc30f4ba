"""Encodes and decodes messages: msgpack, one tagged union, no pickle.

A message is one frame with a struct of this package, followed by opaque payload frames if the
struct says so. The decoder refuses unknown tags and malformed bodies.
"""

from collections.abc import Callable

import msgspec

from controller.runtime.messages.members import (
    Directory,
    DrainFrontend,
    EventsReported,
    Hello,
    InstanceLost,
    StatusPull,
    StatusPushed,
    Welcome,
)
from controller.runtime.messages.message import Message
from controller.runtime.messages.move_messages import (
    FenceAnswered,
    FenceAsked,
    MoveAnnounced,
    MoveAnswered,
    MoveAsked,
    MoveEnvelope,
    MoveLimitsSet,
    MoveRefusalAsked,
    MoveRefusalsAnswered,
    MoveTimed,
    OwnerAsked,
    OwnerConfirmed,
    RequestLost,
    RequestMoved,
    RequestNotMoved,
    TransferMessage,
)
from controller.runtime.messages.operations import (
    AbortAnswered,
    AbortAsked,
    DrainSet,
    FrontendLimits,
    RankChangeAnswered,
    RankChangeAsked,
    RankConfirmed,
    RankSet,
    ReliefFruitless,
    ReliefOrdered,
    StatusPushSet,
)
from controller.runtime.messages.requests import (
    AbortRequests,
    AddRequest,
    DispatchAsked,
    Dispatched,
    DispatchUnused,
    DispatchWithdrawn,
    KeysCounted,
    OutputsEmitted,
    OutputsMissing,
    OutputsReceived,
    OutputsUnread,
    Refused,
    RequestEvents,
    RequestRefused,
    RequestsAnswered,
    RequestsAsked,
)
from controller.runtime.messages.room_messages import HeadMoveOrdered, RoomOrdered
from controller.runtime.messages.traffic_messages import TrafficAsked, TrafficTold

AnyMessage = (
    Hello
    | Welcome
    | Directory
    | StatusPushed
    | EventsReported
    | RequestEvents
    | RequestsAsked
    | RequestsAnswered
    | StatusPull
    | DispatchAsked
    | DispatchWithdrawn
    | KeysCounted
    | Dispatched
    | Refused
    | InstanceLost
    | DrainFrontend
    | AddRequest
    | DispatchUnused
    | AbortRequests
    | OutputsEmitted
    | OutputsReceived
    | OutputsUnread
    | OutputsMissing
    | RequestRefused
    | MoveAsked
    | MoveAnswered
    | MoveRefusalAsked
    | MoveRefusalsAnswered
    | MoveLimitsSet
    | MoveEnvelope
    | MoveAnnounced
    | RequestMoved
    | RequestNotMoved
    | RequestLost
    | OwnerAsked
    | OwnerConfirmed
    | FenceAsked
    | FenceAnswered
    | MoveTimed
    | TransferMessage
    | RankChangeAsked
    | RankChangeAnswered
    | AbortAsked
    | AbortAnswered
    | RankSet
    | RankConfirmed
    | DrainSet
    | StatusPushSet
    | FrontendLimits
    | ReliefOrdered
    | ReliefFruitless
    | HeadMoveOrdered
    | RoomOrdered
    | TrafficAsked
    | TrafficTold
)

encode: Callable[[Message], bytes] = msgspec.msgpack.Encoder().encode
decode: Callable[[bytes | memoryview], AnyMessage] = msgspec.msgpack.Decoder(AnyMessage).decode
"""Raises msgspec.DecodeError for a frame that is no message."""
