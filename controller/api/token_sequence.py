"""The tokens that an emulated engine answers with, so that any client can check them.

Position i of an answer is word FIRST + (start + i * STRIDE) modulo COUNT, where `start` depends on
the prompt alone. So the ids that a client gets with `return_token_ids` show whether a token was
lost, doubled, swapped or taken from another request. An answer that ends of its own accord, as a
real one does at its end-of-sequence token, has END in its last place. The numbers are the same in
every process and every version of Python. The emulated engine and the load generator of `bench`
share this sequence and nothing else, so it has a module of its own.
"""

import struct
from collections.abc import Sequence
from zlib import crc32

FIRST = 270
COUNT = 8191
"""Ids [FIRST, FIRST + COUNT) are whole words of the embedded model's vocabulary. COUNT is a prime,
so that every bit of the checksum has an effect, and answers to similar prompts start far apart."""
STRIDE = 3571
"""The step from one word to the next. With a step of 1 answers would be dull to read, because
neighbouring ids are spellings of one word."""
END = 1
"""The embedded model's end-of-sequence token."""

MIN_NATURAL_TOKENS = 16
MAX_NATURAL_TOKENS = 512


def start(prompt_token_ids: Sequence[int]) -> int:
    """Offset of an answer's first word in [0, COUNT)."""
    return _checksum(prompt_token_ids) % COUNT


def token(start: int, position: int) -> int:
    """Id of the word at `position` of the answer, counted from 0."""
    return FIRST + (start + position * STRIDE) % COUNT


def first_position(start: int, token_id: int, begin: int = 0) -> int | None:
    """The first position at or after `begin` that has this token; None if the token is no word."""
    if not FIRST <= token_id < FIRST + COUNT:
        return None
    position = (token_id - FIRST - start) * pow(STRIDE, -1, COUNT)
    return begin + (position - begin) % COUNT


def natural_length(prompt_token_ids: Sequence[int]) -> int:
    """The length of an answer that has no other bound, END included: 16 to 512 tokens, all about
    equally likely. The length is computed from the part of the checksum that `start` does not
    use."""
    span = MAX_NATURAL_TOKENS - MIN_NATURAL_TOKENS + 1
    return MIN_NATURAL_TOKENS + _checksum(prompt_token_ids) // COUNT % span


def _checksum(token_ids: Sequence[int]) -> int:
    """CRC of the ids as little-endian 32-bit numbers."""
    return crc32(struct.pack(f"<{len(token_ids)}I", *token_ids))
