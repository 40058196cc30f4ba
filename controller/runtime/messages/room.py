"""Messages by which room is made for blocked requests (late binding, `core.holding`)."""

import msgspec

from controller.core.instance_ref import InstanceRef
from controller.core.rescheduling.config import ReschedulingConfig
from controller.runtime.messages.message import Message


class Opening(msgspec.Struct, frozen=True, array_like=True):
    """An instance to which requests may leave, and what they may take of it."""

    destination: InstanceRef
    spare_blocks: int


class HeadMoveOrdered(Message, frozen=True):
    """Controller to an instance: your queue head is to wait over there, where it fits."""

    round_id: str
    request_id: str
    destination: InstanceRef
    config: ReschedulingConfig


class RoomOrdered(Message, frozen=True):
    """Controller to an instance: free so many blocks by moves of requests of at most `rank`, or
    begin none. `request_id`: for whom; empty for the growth of all that run there. `frontend`: of
    a request that the controller holds; else empty."""

    round_id: str
    request_id: str
    frontend: str
    rank: int
    lacking_blocks: int
    openings: tuple[Opening, ...]
    config: ReschedulingConfig
