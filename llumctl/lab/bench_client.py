"""A client of OpenAI endpoints: it keeps connections, reads answers, and judges whether they are
right.

Connections are kept alive between requests. Each carries one request at a time.

httptools parses HTTP, because the client shares the cores with the server that it measures. Reading
takes 0.0019 ms per token in a chunk of its own, and 0.02 ms with the event loop and the socket;
httpx would take 0.06 to 0.15 ms (decision 0026). Bytes may arrive in any pieces. The reader knows
the event streams of OpenAI endpoints: one line per event, each with a JSON chunk, and `[DONE]` at
the end. Any other answer is kept as a body.
"""

import asyncio
import contextlib
import json
import ssl
import time
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Self, cast
from urllib.parse import urlsplit

import httptools
import msgspec

from controller.api import token_sequence

MAX_HEAD_BYTES = 1 << 16
MAX_BODY_BYTES = 2000
MAX_LINE_BYTES = 1 << 24


class BadAnswerError(Exception):
    """The answer is not HTTP, or not an event stream that we can read."""


@dataclass(slots=True)
class Answer:
    """The part of an answer that has arrived so far. Times are those that were passed to `feed`.
    `token_times_s` has an entry for each event with tokens. `token_ids` is empty if the server
    sends none. `num_prompt_tokens` and `num_output_tokens` are the server's own counts."""

    status: int = 0
    token_times_s: "array[float]" = field(default_factory=lambda: array("d"))
    token_ids: list[int] = field(default_factory=list)
    num_prompt_tokens: int | None = None
    num_output_tokens: int | None = None
    finish_reasons: list[str] = field(default_factory=list)
    num_done_marks: int = 0
    errors: list[tuple[str, str]] = field(default_factory=list)
    """Errors in the stream: (code, message)."""
    body: bytes = b""
    """The first bytes of an answer that is not an event stream."""
    ended_s: float = 0.0


# -- connections ------------------------------------------------------------------------

MAX_IDLE_S = 1.0
"""A connection that was idle for longer is not used again: some servers close it after 5 s."""


class ExchangeError(Exception):
    """The answer is not complete. `kind`: the reason in a word."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An OpenAI endpoint. `base_url`: with or without /v1. `api_key`: if empty, none is sent.
    `certificate`: the file of the only certificate to trust; if empty, see `tls_context`."""

    base_url: str
    api_key: str = ""
    certificate: str = ""

    def tls(self) -> ssl.SSLContext | None:
        return tls_context(self.base_url, self.certificate)

    def url(self, path: str) -> str:
        return f"{self.base_url.rstrip('/').removesuffix('/v1')}/v1/{path}"

    def encode(self, path: str, body: Mapping[str, Any]) -> bytes:
        """The whole POST request."""
        url = urlsplit(self.url(path))
        content = json.dumps(body, separators=(",", ":")).encode()
        key = f"Authorization: Bearer {self.api_key}\r\n" if self.api_key else ""
        head = (
            f"POST {url.path} HTTP/1.1\r\n"
            f"Host: {url.netloc}\r\n"
            f"{key}"
            "Content-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\n\r\n"
        )
        return head.encode("latin-1") + content


class Connection(asyncio.Protocol):
    """A connection, which `open` makes. It carries one `exchange` after the other."""

    def __init__(self) -> None:
        self.is_open = False
        self.idle_since_s = 0.0
        self._transport: asyncio.Transport
        self._reader: ResponseReader | None = None
        self._ended: asyncio.Future[None]

    @classmethod
    async def open(cls, endpoint: Endpoint) -> Self:
        """Connects. Raises ExchangeError."""
        address = urlsplit(endpoint.base_url)
        try:
            context = endpoint.tls()
            _, connection = await asyncio.get_running_loop().create_connection(
                cls,
                address.hostname or "127.0.0.1",
                address.port or (443 if context else 80),
                ssl=context,
            )
        except (OSError, ssl.SSLError) as error:
            reason = error.strerror if error.errno else str(error)
            raise ExchangeError("cannot-connect", reason or type(error).__name__) from error
        return connection

    async def exchange(self, message: bytes, answer: Answer) -> None:
        """Sends `message`, and reads the answer into `answer` to its end.

        Raises:
            ExchangeError: the connection broke, or the bytes that came are not an answer. The
                connection is closed then, and also if the exchange is cancelled.
        """
        self._ended = asyncio.get_running_loop().create_future()
        self._reader = reader = ResponseReader(answer)
        try:
            if not self.is_open:
                raise ExchangeError("broken", "the connection is closed")
            self._transport.write(message)
            await self._ended
        except BaseException:  # late bytes must not reach the next request
            self.close()
            raise
        finally:
            self._reader = None
        if not reader.keeps_alive:
            self.close()
        self.idle_since_s = time.perf_counter()

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        if reader is None:
            return
        try:
            reader.feed(data, time.perf_counter())
        except BadAnswerError as error:
            self._fail(ExchangeError("bad-answer", str(error)))
            self.close()
        else:
            if reader.done and not self._ended.done():
                self._ended.set_result(None)

    def eof_received(self) -> None:
        """Returns None, so that the transport closes the connection."""

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        reader = self._reader
        if reader is None or self._ended.done():
            return
        reader.end(time.perf_counter())
        if reader.done:
            self._ended.set_result(None)
        else:
            why = str(error or "closed by the server before the end")
            self._fail(ExchangeError("broken", why))

    def _fail(self, error: ExchangeError) -> None:
        if not self._ended.done():
            self._ended.set_exception(error)


class Pool:
    """Keeps as many connections as there are live requests. Of the idle connections, the one that
    was used last is used first."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._idle: list[Connection] = []

    async def exchange(self, message: bytes, answer: Answer, timeout_s: float) -> None:
        """Does what `Connection.exchange` does, on any free connection. The timeout includes the
        time to connect."""
        try:
            async with asyncio.timeout(timeout_s):
                connection = self._take() or await Connection.open(self._endpoint)
                await connection.exchange(message, answer)
        except TimeoutError:
            raise ExchangeError("timed-out", f"no end within {timeout_s:.0f} s") from None
        if connection.is_open:
            self._idle.append(connection)

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    def _take(self) -> Connection | None:
        with contextlib.suppress(IndexError):
            while True:
                connection = self._idle.pop()
                fresh = time.perf_counter() - connection.idle_since_s < MAX_IDLE_S
                if connection.is_open and fresh:
                    return connection
                connection.close()
        return None


# -- which certificates are trusted -----------------------------------------------------

_END = "-----END CERTIFICATE-----"
_BEGIN = "-----BEGIN CERTIFICATE-----"


@cache
def tls_context(url: str, certificate: str = "") -> ssl.SSLContext | None:
    """The TLS context; None for plain http. It is cached, as loading the authorities takes 36 ms.
    Raises OSError, of which SSLError is a kind.

    The certificate of a cluster on this machine is known, and only this certificate is trusted,
    whatever names it has (the address may be 127.0.0.1). For other endpoints the system's
    authorities are trusted, or those of SSL_CERT_FILE.
    """
    if not url.startswith("https:"):
        return None
    if not certificate:
        return ssl.create_default_context()
    text = Path(certificate).read_text(encoding="utf-8")
    first = text[text.find(_BEGIN) :].partition(_END)[0] + _END + "\n"
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    found.check_hostname = False
    found.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    found.load_verify_locations(cadata=first)
    return found


# -- reading ----------------------------------------------------------------------------


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
    """Reads bytes into `answer`. Call `feed` until `done`, and never again after a BadAnswerError.

    The parser calls the methods whose names begin with `on_`.
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
        """Whether the head of the answer says where the body ends."""
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
        """Notes the end of the connection. Must be called when the server has closed it, which ends
        an answer whose head does not say where it ends."""
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


# -- judging: all of the tokens, each once, and one end ---------------------------------


@dataclass(frozen=True, slots=True)
class TokenFaults:
    """Numbers of tokens that are missing, came once too often, or are wrong."""

    num_lost: int = 0
    num_doubled: int = 0
    num_wrong: int = 0

    def __bool__(self) -> bool:
        return bool(self.num_lost or self.num_doubled or self.num_wrong)


NO_FAULTS = TokenFaults()


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an answer is right. `kind`: the kind of the failure, empty if there is none.
    `faults`: if the answer was cut off, only the tokens that came are judged."""

    kind: str = ""
    detail: str = ""
    faults: TokenFaults = NO_FAULTS


RIGHT = Verdict()

MAX_AHEAD = 256
"""How far `compare_tokens` searches for the place where two sequences agree again. Answers are
judged on the event loop that sends requests, and a search to the end takes seconds for a long
answer of wrong tokens."""


def judge(
    answer: Answer, num_prompt_tokens: int, num_output_tokens: int, start: int | None
) -> Verdict:
    """Judges an answer that was read to its end. The request ignores end-of-sequence tokens.

    `start`: `token_sequence.start` of the prompt; if None, the ids themselves are not checked.
    """
    if answer.status != 200:
        body = answer.body.decode("utf-8", "replace").strip()
        return Verdict(f"http-{answer.status}", body[:300])
    if answer.errors:
        code, message = answer.errors[0]
        faults = faults_so_far(answer, num_output_tokens, start)
        return Verdict(f"stream-error-{code}" if code else "stream-error", message[:300], faults)
    if not answer.finish_reasons or not answer.num_done_marks:
        faults = faults_so_far(answer, num_output_tokens, start)
        return Verdict("no-end", "the stream ended without its last event", faults)
    faults = _faults(answer, num_output_tokens, start)
    if faults:
        kind = "wrong-tokens" if faults.num_wrong else "wrong-count"
        lost, doubled, wrong = faults.num_lost, faults.num_doubled, faults.num_wrong
        return Verdict(kind, f"{lost} tokens lost, {doubled} doubled, {wrong} wrong", faults)
    if len(answer.finish_reasons) > 1 or answer.num_done_marks > 1:
        return Verdict("two-ends", f"it ended {len(answer.finish_reasons)} times")
    if not answer.token_times_s:
        return Verdict("no-tokens", "no event carried a token")
    return _judge_usage(answer, num_prompt_tokens, num_output_tokens)


def compare_tokens(
    expected: Sequence[int], found: Sequence[int], *, is_whole: bool = True
) -> TokenFaults:
    """Counts the drops, insertions and replacements that make `expected` into `found`.

    Where the two differ, the smallest drop or insertion after which three tokens agree again (or
    all that are left) counts. If none of at most MAX_AHEAD tokens does, one token is wrong. If
    `found` is not whole, the expected tokens after its end are not lost."""
    lost = doubled = wrong = at = position = 0
    while at < len(found) and position < len(expected):
        if found[at] == expected[position]:
            at, position = at + 1, position + 1
            continue
        drop = _next_agreement(expected, position + 1, found[at : at + 3])
        insertion = _next_agreement(found, at + 1, expected[position : position + 3])
        if drop is not None and (insertion is None or drop - position <= insertion - at):
            lost, position = lost + drop - position, drop
        elif insertion is not None:
            doubled, at = doubled + insertion - at, insertion
        else:
            wrong, at, position = wrong + 1, at + 1, position + 1
    tail = len(expected) - position if is_whole else 0
    return TokenFaults(lost + tail, doubled + len(found) - at, wrong)


def _next_agreement(tokens: Sequence[int], begin: int, wanted: Sequence[int]) -> int | None:
    end = min(len(tokens), begin + MAX_AHEAD)
    for place in range(begin, end):
        if tokens[place] == wanted[0]:
            there = tokens[place : place + len(wanted)]
            if there == wanted[: len(there)]:
                return place
    return None


def _faults(answer: Answer, num_output_tokens: int, start: int | None) -> TokenFaults:
    """The faults of a whole answer. Without `start` only numbers of tokens are compared, and
    without ids only the server's own count."""
    if start is not None:
        expected = [token_sequence.token(start, i) for i in range(num_output_tokens)]
        is_equal = answer.token_ids == expected
        return TokenFaults() if is_equal else compare_tokens(expected, answer.token_ids)
    num_found = len(answer.token_ids) or answer.num_output_tokens or 0
    if num_found < num_output_tokens:
        return TokenFaults(num_lost=num_output_tokens - num_found)
    return TokenFaults(num_doubled=num_found - num_output_tokens)


def faults_so_far(answer: Answer, num_output_tokens: int, start: int | None) -> TokenFaults:
    """The faults of an answer that was cut off; the tokens after its end are not lost."""
    if start is None:
        return TokenFaults(num_doubled=max(0, len(answer.token_ids) - num_output_tokens))
    expected = [token_sequence.token(start, i) for i in range(num_output_tokens)]
    return compare_tokens(expected, answer.token_ids, is_whole=False)


def _judge_usage(answer: Answer, num_prompt_tokens: int, num_output_tokens: int) -> Verdict:
    told = (answer.num_prompt_tokens, answer.num_output_tokens)
    if told == (None, None):
        return Verdict("no-usage", "the stream says nothing about usage")
    if told != (num_prompt_tokens, num_output_tokens):
        return Verdict(
            "wrong-usage",
            f"it counts {told[0]} + {told[1]} tokens, not {num_prompt_tokens}"
            f" + {num_output_tokens}",
        )
    return RIGHT
