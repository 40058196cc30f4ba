"""How messages are encoded, and which handler gets them: msgpack, one tagged union, no pickle.

A message is one frame with a struct of this package, followed by opaque payload frames if the
struct says so. The decoder refuses unknown tags and malformed bodies. All processes of a cluster
must have the same messages (`wire_version`); a process that has others is refused by its Hello.
"""

import functools
import hashlib
import json
import logging
import operator
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import msgspec.inspect

from controller.runtime.messages import members, move_messages, requests
from controller.runtime.messages.members import Hello, Message

log = logging.getLogger(__name__)

_KINDS = tuple(
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


@functools.cache
def wire_version() -> str:
    """A digest of the fields and types of all messages. Two versions of llumctl have the same one
    if, and only if, their processes understand each other."""
    return digest_of(_KINDS)


def digest_of(kinds: Sequence[type[msgspec.Struct]]) -> str:
    """A digest of the tags, the fields and the types of messages, and of all structs that they
    contain. The order of fields counts, because structs are encoded as arrays. Docstrings and the
    values of defaults do not count."""
    _, components = msgspec.json.schema_components(kinds)  # it has no names of a struct's fields
    names = dict(_field_names(msgspec.inspect.multi_type_info(kinds), set()))
    text = json.dumps([names, _without_prose(components)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _field_names(info: object, seen: set[type]) -> Iterator[tuple[str, list[str]]]:
    """The name of each struct in a description of types, and the names of its fields. `seen`: the
    structs that were described already. Mutates it."""
    if isinstance(info, msgspec.inspect.StructType):
        if info.cls in seen:
            return
        seen.add(info.cls)
        yield info.cls.__name__, [each.name for each in info.fields]
    if isinstance(info, msgspec.inspect.Type | msgspec.inspect.Field):
        info = [getattr(info, name) for name in info.__struct_fields__]
    if isinstance(info, list | tuple):
        for each in info:
            yield from _field_names(each, seen)


def _without_prose(schema: Any) -> Any:
    """The schema without descriptions and defaults, which may differ."""
    if isinstance(schema, dict):
        kept = {k: each for k, each in schema.items() if k not in ("description", "default")}
        return {
            key: {name: _without_prose(field) for name, field in each.items()}
            if key == "properties"
            else _without_prose(each)
            for key, each in kept.items()
        }
    return [_without_prose(each) for each in schema] if isinstance(schema, list) else schema


def foreign_hello(frame: bytes | memoryview) -> Hello | None:
    """What can be understood of a Hello of another version of llumctl; None for any other frame.
    The first fields of a Hello are the same in all versions."""
    try:
        tag, wire, kind, member_id, nonce, incarnation, address, *_ = msgspec.msgpack.decode(frame)
        found = (wire, kind, member_id, nonce, incarnation, address, "", 0, "starting")
        hello = msgspec.convert(("Hello", *found), Hello)
    except (msgspec.DecodeError, TypeError, ValueError):
        return None
    return hello if tag == "Hello" and wire != wire_version() else None


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
        try:
            message = decode(head)
        except msgspec.DecodeError:
            hello = foreign_hello(head) if Hello in self.handlers else None
            if hello is None:
                raise
            message = hello
        kind = type(message)
        if kind in self.handlers:
            self.handlers[kind](message)
        elif kind in self.with_payload:
            self.with_payload[kind](message, payload)
        else:
            log.warning("unexpected message %s", kind.__name__)
