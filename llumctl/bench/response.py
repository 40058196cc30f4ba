"""Reads one HTTP answer as its bytes come: server-sent events, and completion chunks in them.

httptools parses HTTP. The client shares its cores with what it measures: reading takes 0.0019 ms
for a token that comes in a chunk of its own, the event loop and the socket make it 0.02, and httpx
would take 0.06 to 0.15 (decision 0026). Bytes may come in any pieces. What the reader knows is what
OpenAI endpoints send: one line per event, each a JSON chunk, ended by `[DONE]`; anything else than
an event stream is kept as a body.
"""

from array import array
from dataclasses import dataclass, field

import httptools
import msgspec

MAX_HEAD_BYTES = 1 << 16
MAX_BODY_BYTES = 2000
MAX_LINE_BYTES = 1 << 24


class BadAnswerError(Exception):
    """Not HTTP, or not an event stream that we can read."""


@dataclass(slots=True)
class Answer:
    """What has come of one answer; times are those that `feed` was told.

    `token_times_s` has one entry per event that carries tokens. `token_ids` is empty where the
    server sends none. `num_prompt_tokens` and `num_output_tokens` are the server's own count.
    """

    status: int = 0
    token_times_s: "array[float]" = field(default_factory=lambda: array("d"))
    token_ids: list[int] = field(default_factory=list)
    num_prompt_tokens: int | None = None
    num_output_tokens: int | None = None
    finish_reasons: list[str] = field(default_factory=list)
    num_done_marks: int = 0
    errors: list[tuple[str, str]] = field(default_factory=list)
    """(code, message) of errors in the stream."""
    body: bytes = b""
    """The beginning of an answer that is no event stream."""
    ended_s: float = 0.0


class _Choice(msgspec.Struct):
    text: str = ""
    finish_reason: str | None = None
    token_ids: list[int] | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Error(msgspec.Struct):
    message: str = ""
    code: int | str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Error | str | None = None


_decode = msgspec.json.Decoder(_Chunk).decode


class ResponseReader:
    """Fills `answer`; `feed` it until `done`. After a BadAnswerError it must not be used.

    The methods whose names begin with `on_` are the parser's.
    """

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.done = False
        self.keeps_alive = False
        self._now_s = 0.0
        self._num_head_bytes = 0
        self._line = b""
        self._is_stream = False
        self._is_framed = False
        """The head says how the body ends."""
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes, now_s: float) -> None:
        self._now_s = now_s
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, BadAnswerError):
                raise error.__context__ from None
            raise BadAnswerError(f"not HTTP: {error}") from error
        if not self.answer.status:
            self._num_head_bytes += len(data)
            if self._num_head_bytes > MAX_HEAD_BYTES:
                raise BadAnswerError("no end of its head")

    def end(self, now_s: float) -> None:
        """The server closed the connection, which ends an answer that has no other end."""
        self._now_s = now_s
        if self.answer.status and not self._is_framed:
            self._finish()

    def on_message_begin(self) -> None:
        if self.done:
            raise BadAnswerError("more came than the answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"content-type":
            self._is_stream = value.lower().startswith(b"text/event-stream")
        self._is_framed |= name in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        self.answer.status = self._parser.get_status_code()

    def on_message_complete(self) -> None:
        self.keeps_alive = self._parser.should_keep_alive()
        self._finish()

    def on_body(self, data: bytes) -> None:
        if not self._is_stream:
            self.answer.body = (self.answer.body + data)[:MAX_BODY_BYTES]
            return
        *lines, self._line = (self._line + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._read_event(line[5:].strip())
        if len(self._line) > MAX_LINE_BYTES:
            raise BadAnswerError("an event without end")

    def _read_event(self, data: bytes) -> None:
        answer = self.answer
        if data == b"[DONE]":
            answer.num_done_marks += 1
            return
        try:
            chunk = _decode(data)
        except msgspec.DecodeError as error:
            raise BadAnswerError(f"an event that is no completion chunk ({error})") from error
        for choice in chunk.choices:
            if choice.token_ids:
                answer.token_ids += choice.token_ids
                answer.token_times_s.append(self._now_s)
            elif choice.token_ids is None and (choice.text or choice.finish_reason is None):
                answer.token_times_s.append(self._now_s)
            if choice.finish_reason is not None:
                answer.finish_reasons.append(choice.finish_reason)
        if chunk.usage is not None:
            answer.num_prompt_tokens = chunk.usage.prompt_tokens
            answer.num_output_tokens = chunk.usage.completion_tokens
        if chunk.error is not None:
            answer.errors.append(_told(chunk.error))

    def _finish(self) -> None:
        self.answer.ended_s = self._now_s
        self.done = True


def _told(error: _Error | str) -> tuple[str, str]:
    if isinstance(error, str):
        return "", error
    return str(error.code or ""), error.message
