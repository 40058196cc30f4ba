"""The stream of a link: slices, each behind a header that says whose it is.

Sender and receiver never lose step, whatever is cancelled: a receiver takes in what it does not
expect and drops it, and a sender whose stage was cancelled says so in place of the next slice.
"""

import hashlib
import struct
from dataclasses import dataclass

_FORMAT = struct.Struct("<4s16sIIIx3x")
_MAGIC = b"KVb1"
HEADER_BYTES = _FORMAT.size
MORE, LAST, CANCELLED, WARM_UP = range(4)


class NotALinkError(Exception):
    """What came is no header of ours."""


@dataclass(frozen=True, slots=True)
class SliceHeader:
    """`first` is the slice's place among the stage's blocks."""

    stage: bytes
    first: int
    num_blocks: int
    kind: int

    def encode(self) -> bytes:
        return _FORMAT.pack(_MAGIC, self.stage, self.first, self.num_blocks, self.kind)


def decode(header: bytes | bytearray) -> SliceHeader:
    """Raises NotALinkError."""
    magic, stage, first, num_blocks, kind = _FORMAT.unpack(header)
    if magic != _MAGIC or kind > WARM_UP:
        raise NotALinkError(f"not a slice: {bytes(header)!r}")
    return SliceHeader(stage, first, num_blocks, kind)


def stage_key(stage_id: str) -> bytes:
    return hashlib.blake2b(stage_id.encode(), digest_size=16).digest()
