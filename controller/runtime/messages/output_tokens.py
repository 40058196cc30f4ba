"""Output tokens on their way to another instance: 32-bit integers, in the byte order of all
machines that run vLLM."""

from array import array
from collections.abc import Sequence
from typing import Any

_TYPE = "i"


def encode(outputs: Sequence[int]) -> bytes:
    return array(_TYPE, outputs).tobytes()


def decode(frame: Any) -> Sequence[int]:
    """Raises ValueError for a frame that does not hold whole integers."""
    return array(_TYPE, bytes(frame))
