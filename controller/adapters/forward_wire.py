"""The messages between a frontend and an instance whose server takes requests as they came: the
request with its body, and the pieces of the server's answer (docs/decisions/0079).

To everything in between they are payloads like those of `vllm_wire`. A piece counts as so many
tokens of the request, by which pieces keep their order.
"""

from collections.abc import Sequence

import msgspec

from controller.ports.engine import Frames


class ForwardedRequest(msgspec.Struct, array_like=True, frozen=True):
    """`num_prompt_tokens`: an estimate. `max_tokens`: how many tokens the client asks for at most;
    None if it does not say. `headers`: those of the client that the server gets."""

    request_id: str
    arrival_time_s: float
    rank: int
    num_prompt_tokens: int
    max_tokens: int | None
    path: str
    body: bytes
    headers: dict[str, str] = {}


class Piece(msgspec.Struct, array_like=True, omit_defaults=True):
    """A part of an answer. A stream's piece has whole events. `status` and `content_type` are those
    of the answer, and stand in its first piece. `failure`: why the answer ends here with an error
    of ours. `num_prompt_tokens`: how many tokens the prompt has by the server's count; 0: it does
    not say."""

    request_id: str
    num_tokens: int = 0
    data: bytes = b""
    status: int = 0
    content_type: str = ""
    finish_reason: str | None = None
    failure: str = ""
    num_prompt_tokens: int = 0

    @property
    def new_token_ids(self) -> Sequence[int]:
        """One for each token; there are no ids."""
        return range(self.num_tokens)


class Pieces(msgspec.Struct, array_like=True, omit_defaults=True):
    """What a step of an instance has for one frontend: at most one piece of each request."""

    pieces: list[Piece] = []


_encoder = msgspec.msgpack.Encoder()
_request_decoder = msgspec.msgpack.Decoder(ForwardedRequest)
_pieces_decoder = msgspec.msgpack.Decoder(Pieces)


def encode(message: ForwardedRequest | Pieces) -> Frames:
    return [_encoder.encode(message)]


def decode_request(frames: Frames) -> ForwardedRequest:
    """Raises ValueError if the message is no such request."""
    try:
        return _request_decoder.decode(frames[0])
    except msgspec.DecodeError as error:
        raise ValueError(f"not a request to forward: {error}") from error


def decode_pieces(frames: Frames) -> Pieces:
    return _pieces_decoder.decode(frames[0])
