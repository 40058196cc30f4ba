"""The stream of a link: slices, each a header and the bytes of its blocks.

Source and destination never lose step, whatever is cancelled: a destination reads and drops slices
that it does not expect, and a source whose stage was cancelled says so in place of the next slice.
The destination sends one byte back for each slice that it has read.
"""

import hashlib
import struct
from dataclasses import dataclass
from enum import IntEnum

_FORMAT = struct.Struct("<16sIIQB")
HEADER_BYTES = _FORMAT.size
TAKEN = b"\x06"


class Kind(IntEnum):
    MORE = 0
    LAST = 1
    CANCELLED = 2


class NotALinkError(Exception):
    """The other end does not speak as a link of this cluster does."""


@dataclass(frozen=True, slots=True)
class SliceHeader:
    """`first` is the slice's place among the stage's blocks."""

    kind: Kind
    stage: bytes = bytes(16)
    first: int = 0
    num_blocks: int = 0
    num_bytes: int = 0

    def encode(self) -> bytes:
        return _FORMAT.pack(self.stage, self.first, self.num_blocks, self.num_bytes, self.kind)


def decode(header: bytes | bytearray) -> SliceHeader:
    """Raises NotALinkError."""
    stage, first, num_blocks, num_bytes, kind = _FORMAT.unpack(header)
    if kind > max(Kind):
        raise NotALinkError(f"a slice of kind {kind}")
    return SliceHeader(Kind(kind), stage, first, num_blocks, num_bytes)


def stage_key(stage_id: str) -> bytes:
    return hashlib.blake2b(stage_id.encode(), digest_size=16).digest()
