"""The stream of a link: slices, each a header and the bytes of its blocks.

Sender and receiver never lose step, whatever is cancelled: a receiver takes in what it does not
expect and drops it, and a sender whose stage was cancelled says so in place of the next slice.
What has no blocks has one byte behind its header all the same.
"""

import hashlib
import struct
from dataclasses import dataclass
from enum import IntEnum

_FORMAT = struct.Struct("<4s16sIIQB3x")
_MAGIC = b"KVb2"
HEADER_BYTES = _FORMAT.size
NO_BLOCKS = b"\0"


class Kind(IntEnum):
    MORE = 0
    LAST = 1
    CANCELLED = 2
    WARM_UP = 3


class NotALinkError(Exception):
    """What came is none of ours."""


@dataclass(frozen=True, slots=True)
class SliceHeader:
    """`first` is the slice's place among the stage's blocks."""

    kind: Kind
    stage: bytes = bytes(16)
    first: int = 0
    num_blocks: int = 0
    num_bytes: int = 0

    def encode(self) -> bytearray:
        fields = (self.stage, self.first, self.num_blocks, self.num_bytes, self.kind)
        return bytearray(_FORMAT.pack(_MAGIC, *fields))


def decode(header: bytes | bytearray) -> SliceHeader:
    """Raises NotALinkError."""
    magic, stage, first, num_blocks, num_bytes, kind = _FORMAT.unpack(header)
    if magic != _MAGIC or kind > max(Kind):
        raise NotALinkError(f"not a slice: {bytes(header)!r}")
    return SliceHeader(Kind(kind), stage, first, num_blocks, num_bytes)


def stage_key(stage_id: str) -> bytes:
    return hashlib.blake2b(stage_id.encode(), digest_size=16).digest()
