"""Gives each message to the process's handler for its type."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from controller.runtime.messages.codec import decode
from controller.runtime.messages.message import Message

log = logging.getLogger(__name__)

Handlers = dict[type[Message], Callable[[Any], object]]
PayloadHandlers = dict[type[Message], Callable[[Any, Sequence[memoryview]], object]]


class Inbox:
    """A type has its handler in one of two tables; those of `with_payload` get the payload frames
    too."""

    def __init__(self, handlers: Handlers, with_payload: PayloadHandlers | None = None) -> None:
        self.handlers = handlers
        self.with_payload = with_payload or {}

    def take(self, head: bytes | memoryview, payload: Sequence[memoryview]) -> None:
        """Raises msgspec.DecodeError for a frame that is no message."""
        message = decode(head)
        kind = type(message)
        if kind in self.handlers:
            self.handlers[kind](message)
        elif kind in self.with_payload:
            self.with_payload[kind](message, payload)
        else:
            log.warning("unexpected message %s", kind.__name__)
