"""An Engine that forwards each request to its server as the client sent it, and passes the server's
answer on in pieces. The server may have any tokenizer.

Only the name of the model is replaced by the server's name, and the priority, which is ours, is
left out. A stream is passed on as it comes, in whole events. An answer that is no stream is one
piece, so that the request can still be sent elsewhere if the server dies in the middle of it.

Each event counts as a token, whatever is in it. If the server says in the end that the answer has
more tokens, the last piece counts as the rest."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, NamedTuple

import httpx
import msgspec

from controller.adapters.attached.attached_moves import UNABLE
from controller.adapters.attached.server_engine import (
    BUSY,
    MAX_BROKEN,
    Calls,
    Came,
    ServerEngine,
    ServerRequest,
)
from controller.adapters.attached.servers import headers
from controller.adapters.forward_wire import (
    ForwardedRequest,
    Piece,
    Pieces,
    decode_request,
    encode,
)
from controller.core.fleet.attached import SERVER_REFUSED, AttachedServer
from controller.ports.engine import EmittedTokens, Frames

OURS = ("priority",)
"""The fields of a body that are for the cluster, and that a server would refuse or misread."""
EVENTS = "text/event-stream"
UNTOLD_MAX_TOKENS = 256
"""How long an answer is taken to be if its client does not limit it. Only forecasts use it."""
_ENDS = (b"\n\n", b"\r\n\r\n")
_USAGE = re.compile(r'"usage"\s*:\s*(?=\{)')


class Part(NamedTuple):
    """A part of an answer as it came. `status`: that of the answer, in its first part."""

    data: bytes = b""
    num_events: int = 0
    status: int = 0
    content_type: str = ""
    is_last: bool = False
    usage: tuple[int, int] = (0, 0)
    """How many tokens the prompt and the answer have, in the last part, if the server tells."""


@dataclass(slots=True, kw_only=True)
class Forwarded(ServerRequest):
    asked: ForwardedRequest
    num_pieces: int = 0
    num_counted: int = 0
    """How many tokens of the answer were counted so far."""

    @property
    def num_outputs(self) -> int:
        return self.num_counted

    def left(self) -> ForwardedRequest:
        return self.asked


# -- the body and the answer -----------------------------------------------------------------------


def body_for(model: str, body: bytes) -> bytes:
    """The body as the server gets it. The values of all other fields stay byte by byte as they
    came. Raises ValueError for a body that is no JSON object."""
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    kept = {name: value for name, value in fields.items() if name not in OURS}
    kept["model"] = msgspec.Raw(msgspec.json.encode(model))
    return msgspec.json.encode(kept)


class EventCutter:
    """Cuts a stream into pieces of whole events. What precedes the first event waits for it,
    because a piece without an event has no place in the order of pieces."""

    def __init__(self) -> None:
        self._rest = b""
        self.usage = (0, 0)

    def take(self, data: bytes) -> Part | None:
        self._rest += data
        end = max(self._rest.rfind(mark) + len(mark) if mark in self._rest else 0 for mark in _ENDS)
        num_events = count_events(self._rest[:end])
        if not num_events:
            return None
        whole, self._rest = self._rest[:end], self._rest[end:]
        self._look(whole)
        return Part(whole, num_events)

    def last(self) -> Part:
        self._look(self._rest)
        rest, self._rest = self._rest, b""
        return Part(rest, count_events(rest), is_last=True, usage=self.usage)

    def _look(self, data: bytes) -> None:
        told = usage_in(data)
        self.usage = (told[0] or self.usage[0], told[1] or self.usage[1])


def count_events(data: bytes) -> int:
    num_events = data.count(b"\ndata:") + data.startswith(b"data:")
    return num_events - data.count(b"data: [DONE]")


def usage_in(data: bytes) -> tuple[int, int]:
    """The tokens of the prompt and of the answer, by the last usage that is told in the text; 0: it
    is not told."""
    prompt = answer = 0
    if b'"usage"' not in data:
        return prompt, answer
    text = data.decode("utf-8", "replace")
    for match in _USAGE.finditer(text):
        try:
            told, _ = json.JSONDecoder().raw_decode(text, match.end())
        except (ValueError, RecursionError):
            continue
        prompt = _count(told, "prompt_tokens", "input_tokens") or prompt
        answer = _count(told, "completion_tokens", "output_tokens") or answer
    return prompt, answer


def _count(usage: dict[str, Any], *names: str) -> int:
    found = (usage.get(name) for name in names)
    return next((each for each in found if type(each) is int and each > 0), 0)


# -- calls to the server ---------------------------------------------------------------------------


class ForwardCalls(Calls):
    def __init__(self, server: AttachedServer) -> None:
        self._num_streams = 0
        """How many answers are being streamed."""
        super().__init__(server)

    def _shows_progress(self) -> bool:
        """An answer that is no stream shows nothing until it is complete."""
        return super()._shows_progress() and (
            self._num_streams > 0 or self.load.num_tokens is not None
        )

    async def _stream(self, request: Forwarded, wanted: ForwardedRequest) -> bool:
        body = body_for(self._server.model, wanted.body)
        # The answer is passed on as it comes, so it must come uncompressed.
        given = {"content-type": "application/json", "accept-encoding": "identity"}
        async with self._client.stream(
            "POST",
            wanted.path,
            content=body,
            headers=given | wanted.headers | headers(self._server),
        ) as answer:
            if answer.status_code in BUSY:
                return False
            if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
                why = f"it wants an API key, or another one ({answer.status_code})"
                self.inbox.put(Came(request, None, why))
                return True
            self._took(request)
            content_type = answer.headers.get("content-type", "application/octet-stream")
            if answer.is_success and content_type.startswith(EVENTS):
                self._num_streams += 1
                try:
                    await self._pass_on(request, answer, content_type)
                finally:
                    self._num_streams -= 1
                return True
            data = await answer.aread()
            usage = usage_in(data)
            whole = Part(data, 1, answer.status_code, content_type, is_last=True, usage=usage)
            self.inbox.put(Came(request, whole))
        return True

    async def _pass_on(self, request: Forwarded, answer: httpx.Response, content_type: str) -> None:
        cutter, status = EventCutter(), answer.status_code
        async for data in answer.aiter_raw():
            self._moved()
            if part := cutter.take(data):
                self.inbox.put(
                    Came(request, part._replace(status=status, content_type=content_type))
                )
                status, content_type = 0, ""
        last = cutter.last()._replace(status=status, content_type=content_type)
        self.inbox.put(Came(request, last))


# -- the engine ------------------------------------------------------------------------------------


class ForwardEngine(ServerEngine[Forwarded, Piece]):
    def __init__(self, server: AttachedServer, report: Callable[[str], None]) -> None:
        super().__init__(server, report, ForwardCalls)

    def encode(self, body: Pieces) -> Frames:
        return encode(body)

    def encode_one(self, body: Pieces, request_id: str) -> Frames:
        return encode(Pieces([each for each in body.pieces if each.request_id == request_id]))

    def encode_rest(self) -> Frames:
        return encode(Pieces())

    def prepare(self, frames: Frames, frontend_index: int) -> Forwarded:
        asked = decode_request(frames)
        return Forwarded(
            request_id=asked.request_id,
            arrival_time_s=asked.arrival_time_s,
            frontend_index=frontend_index,
            num_prompt_tokens=asked.num_prompt_tokens,
            max_tokens=asked.max_tokens or UNTOLD_MAX_TOKENS,
            rank=asked.rank,
            asked=asked,
        )

    def reenter(self, prepared: Forwarded, output_token_ids: Sequence[int]) -> None:
        del prepared, output_token_ids
        raise ValueError(f"{UNABLE}: its answer has begun elsewhere")

    # -- what comes ----------------------------------------------------------------------

    def _output(self, request_id: str) -> Piece:
        return Piece(request_id)

    def _broke(self, live: Forwarded, why: str) -> str:
        if live.num_pieces:
            return f"its answer broke off: {why}"
        num_broken = self._num_broken[live.request_id]
        return f"its answer broke off {num_broken} times: {why}" if num_broken > MAX_BROKEN else ""

    def _tell(self, live: Forwarded, came: Came, output: Piece) -> None:
        if came.refused:
            output.failure = f"{SERVER_REFUSED}{came.refused}"
            self._finish(live, output, "error")
            return
        part: Part = came.event
        num_tokens = part.num_events
        if part.is_last:
            output.num_prompt_tokens, num_answer = part.usage
            num_tokens = max(num_tokens, num_answer - live.num_counted)
        if num_tokens:
            self._measure(live, num_tokens)
        if part.status:
            output.status, output.content_type = part.status, part.content_type
        output.data += part.data
        output.num_tokens += num_tokens
        live.num_counted += num_tokens
        live.num_pieces += 1
        if part.is_last:
            is_error = output.status >= HTTPStatus.BAD_REQUEST
            self._finish(live, output, "error" if is_error else "stop")

    def _finish(self, live: Forwarded, output: Piece, reason: str) -> None:
        output.finish_reason = reason
        self.abort([live.request_id])

    def _emitted(self, output: Piece) -> EmittedTokens:
        return EmittedTokens(output.request_id, output.num_tokens, output.finish_reason)

    def _body(self, outputs: list[Piece]) -> Any:
        return Pieces(outputs)
