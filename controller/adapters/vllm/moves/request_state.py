"""The state of a request that travels beside its original message: msgpack, never pickle.

All other state is in the request as its frontend sent it (prompt, sampling parameters, adapter,
cache salt, routing), follows from its outputs (penalties, guided decoding, minimum of tokens, bad
words), or lives in the frontend (text, stop strings, logprobs).
"""

import msgspec

from controller.ports.engine import Frames


class RequestState(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    output_token_ids: list[int]
    queued: bool
    """True if the request waits or was evicted, False if it decodes."""
    priority: int
    arrival_time: float
    num_preemptions: int
    generator: bytes | None
    """The state of a seeded request's generator; None if the request is not seeded or never ran."""


_decoder = msgspec.msgpack.Decoder(RequestState)


def encode(state: RequestState) -> Frames:
    return [msgspec.msgpack.encode(state)]


def decode(frames: Frames) -> RequestState:
    """Raises ValueError for frames that are no such state."""
    if len(frames) != 1:
        raise ValueError(f"a request's state in {len(frames)} frames")
    return _decoder.decode(frames[0])
