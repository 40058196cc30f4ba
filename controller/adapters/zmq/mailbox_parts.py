"""Frames of any size as parts of at most 8 KiB on the wire, and back.

libzmq sets memory aside for a part before it knows the sender's key, and its only limit holds for
strangers and members alike. So members cut what they send, and an inbox refuses longer parts:
without that, 300 connections that claimed 8 GiB took 865 MB of memory in 8 s. A part of full
length goes on in the next one, which may be empty.
"""

from collections.abc import Iterable, Sequence
from typing import Any

MAX_PART_BYTES = 8 << 10
# CURVE wraps each part: a command's name, a nonce, flags and a tag, 33 bytes.
MAX_WIRE_BYTES = MAX_PART_BYTES + 64


def cut(frames: Iterable[Any]) -> list[bytes | memoryview]:
    """`frames`: any objects with contiguous bytes."""
    parts: list[bytes | memoryview] = []
    for frame in frames:
        view = memoryview(frame)
        if view.nbytes < MAX_PART_BYTES:
            parts.append(frame if isinstance(frame, bytes) else view)
            continue
        whole = view.cast("B")
        parts += [
            whole[first : first + MAX_PART_BYTES]
            for first in range(0, view.nbytes + 1, MAX_PART_BYTES)
        ]
    return parts


def joined(parts: Sequence[memoryview]) -> list[memoryview]:
    """Raises ValueError: the last frame has no end."""
    if all(len(part) < MAX_PART_BYTES for part in parts):
        return list(parts)
    frames: list[memoryview] = []
    begun: list[memoryview] = []
    for part in parts:
        begun.append(part)
        if len(part) < MAX_PART_BYTES:
            frames.append(part if len(begun) == 1 else memoryview(b"".join(begun)))
            begun = []
    if begun:
        raise ValueError("a frame without an end")
    return frames
