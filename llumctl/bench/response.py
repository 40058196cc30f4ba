"""Reads one HTTP answer as its bytes come: head, framing, server-sent events, completion chunks.

Hand-written, because the client shares its cores with what it measures: 0.0024 ms per token where
each comes in a chunk of its own; the event loop and the socket make it 0.02.
Bytes may come in any pieces. What it knows is what OpenAI endpoints send: one line per event,
each a JSON chunk, ended by `[DONE]`; anything else than an event stream is kept as a body.
"""

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

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
    """The beginning of what was no event stream."""
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
    """Fills `answer`; `feed` it until `done`. After a BadAnswerError it must not be used."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.done = False
        self.keeps_alive = True
        self._now_s = 0.0
        self._received = bytearray()
        self._line = b""
        self._missing = 0  # bytes of the chunk or body under way
        self._is_stream = False
        self._step: Callable[[], bool] = self._read_head

    def feed(self, data: bytes, now_s: float) -> None:
        self._now_s = now_s
        self._received += data
        while not self.done and self._step():
            pass

    def end(self, now_s: float) -> None:
        """The server closed the connection: the end of an answer that has no other."""
        self._now_s = now_s
        if self._step == self._read_to_end:
            self._finish()

    def _read_head(self) -> bool:
        head, mark, rest = bytes(self._received).partition(b"\r\n\r\n")
        if not mark:
            if len(head) > 1 << 16:
                raise BadAnswerError("no end of its head")
            return False
        self._received[:] = rest
        status_line, *lines = head.decode("latin-1").split("\r\n")
        version, _, status = status_line.partition(" ")
        if not version.startswith("HTTP/1.") or not status[:3].isdigit():
            raise BadAnswerError(f"not HTTP: {status_line[:60]!r}")
        self.answer.status = int(status[:3])
        headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip().lower()
        self.keeps_alive = version != "HTTP/1.0" and headers.get("connection") != "close"
        self._is_stream = headers.get("content-type", "").startswith("text/event-stream")
        self._choose_framing(headers)
        return True

    def _choose_framing(self, headers: dict[str, str]) -> None:
        if "chunked" in headers.get("transfer-encoding", ""):
            self._step = self._read_chunk_size
        elif "content-length" in headers:
            self._missing = _number(headers["content-length"], 10)
            self._step = self._read_counted
            if not self._missing:
                self._finish()
        else:
            self.keeps_alive = False
            self._step = self._read_to_end

    def _read_chunk_size(self) -> bool:
        end = self._received.find(b"\r\n")
        if end < 0:
            return False
        self._missing = _number(self._received[:end].partition(b";")[0].decode("latin-1"), 16)
        del self._received[: end + 2]
        self._step = self._read_chunk if self._missing else self._read_trailer
        return True

    def _read_chunk(self) -> bool:
        """Whole chunks only: servers write one per event."""
        size = self._missing
        if len(self._received) < size + 2:
            return False
        data = bytes(self._received[:size])
        if self._received[size : size + 2] != b"\r\n":
            raise BadAnswerError("a chunk is longer than it says")
        del self._received[: size + 2]
        self._step = self._read_chunk_size
        self._deliver(data)
        return True

    def _read_trailer(self) -> bool:
        end = self._received.find(b"\r\n")
        if end < 0:
            return False
        del self._received[: end + 2]
        if end == 0:
            self._finish()
        return True

    def _read_counted(self) -> bool:
        data = bytes(self._received[: self._missing])
        del self._received[: len(data)]
        self._missing -= len(data)
        self._deliver(data)
        if not self._missing:
            self._finish()
        return False

    def _read_to_end(self) -> bool:
        data = bytes(self._received)
        self._received.clear()
        self._deliver(data)
        return False

    def _deliver(self, data: bytes) -> None:
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


def _number(text: str, base: int) -> int:
    try:
        number = int(text, base)
    except ValueError:
        number = -1
    if number < 0:
        raise BadAnswerError(f"{text[:20]!r} is no length")
    return number


def _told(error: _Error | str) -> tuple[str, str]:
    if isinstance(error, str):
        return "", error
    return str(error.code or ""), error.message
