"""What of a request travels beside its original message: msgpack, never pickle.

All else is either in the request as its frontend sent it (prompt, sampling parameters, adapter,
cache salt, routing), or follows from its outputs (penalties, guided decoding, minimum of tokens,
bad words), or lives in the frontend (text, stop strings, logprobs).
"""

import msgspec

from controller.ports.frames import Frames


class RequestState(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    output_token_ids: list[int]
    queued: bool
    """It waits, or was evicted; else it decodes."""
    priority: int
    arrival_time: float
    num_preemptions: int
    generator: bytes | None
    """The state of a seeded request's generator. None: not seeded, or it never ran."""


_decoder = msgspec.msgpack.Decoder(RequestState)


def encode(state: RequestState) -> Frames:
    return [msgspec.msgpack.encode(state)]


def decode(frames: Frames) -> RequestState:
    """Raises ValueError for anything else."""
    if len(frames) != 1:
        raise ValueError(f"a request's state in {len(frames)} frames")
    return _decoder.decode(frames[0])
