"""Messages by which room is made for blocked requests (late binding, `core.holding`)."""

from controller.core.emptying.rounds import HeadOrder, RoomOrder
from controller.runtime.messages.message import Message


class HeadMoveOrdered(Message, frozen=True):
    """Controller to an instance: your queue head is to wait over there, where it fits."""

    order: HeadOrder


class RoomOrdered(Message, frozen=True):
    """Controller to an instance: free so many blocks by moves, or begin none."""

    order: RoomOrder
