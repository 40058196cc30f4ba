"""How messages are encoded, and which handler gets them: msgpack, one tagged union, no pickle.

A message is one frame with a struct of this package, followed by opaque payload frames if the
struct says so. The decoder refuses unknown tags and malformed bodies.
"""

import functools
import logging
import operator
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from controller.runtime.messages import members, move_messages, requests
from controller.runtime.messages.members import Message

log = logging.getLogger(__name__)

_KINDS = (
    kind
    for module in (members, move_messages, requests)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Message) and not kind.__subclasses__()
)
"""All messages. A class with subclasses is only their base."""
_AnyMessage: Any = functools.reduce(operator.or_, _KINDS)

encode: Callable[[Message], bytes] = msgspec.msgpack.Encoder().encode
decode: Callable[[bytes | memoryview], Message] = msgspec.msgpack.Decoder(_AnyMessage).decode
"""Decodes a message. Raises msgspec.DecodeError for a frame that is no message."""


def encode_tokens(token_ids: Sequence[int]) -> bytes:
    """Tokens in a payload frame: 32-bit integers, in the byte order of all machines that run
    vLLM."""
    return array("i", token_ids).tobytes()


def decode_tokens(frame: Any) -> Sequence[int]:
    """The tokens in a payload frame. Raises ValueError for a frame that does not hold whole
    integers."""
    return array("i", bytes(frame))


Handlers = dict[type[Message], Callable[[Any], object]]
PayloadHandlers = dict[type[Message], Callable[[Any, Sequence[memoryview]], object]]


class Inbox:
    """Gives each message to the process's handler for its type.

    A type has its handler in one of two tables; the handlers in `with_payload` get the payload
    frames too.
    """

    def __init__(self, handlers: Handlers, with_payload: PayloadHandlers | None = None) -> None:
        self.handlers = handlers
        self.with_payload = with_payload or {}

    def take(self, head: bytes | memoryview, payload: Sequence[memoryview]) -> None:
        """Gives the message to its handler. Raises msgspec.DecodeError for a frame that is no
        message."""
        message = decode(head)
        kind = type(message)
        if kind in self.handlers:
            self.handlers[kind](message)
        elif kind in self.with_payload:
            self.with_payload[kind](message, payload)
        else:
            log.warning("unexpected message %s", kind.__name__)
