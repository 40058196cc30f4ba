"""One streamed request to an OpenAI endpoint, as its client reads it.

The standard library reads the stream on a thread. On a busy machine readers by httpx fell behind,
and those that had begun kept the others from the interpreter, once for 11 s."""

import contextlib
import http.client
import json
import math
import socket
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

PATIENCE_S = 120.0
"""After this time without a byte the server counts as hanging."""


@dataclass
class Read:
    """What a client has read of one choice. Two are equal if, and only if, the client cannot tell
    them apart."""

    text: str = ""
    calls: dict[int, dict[str, str]] = field(default_factory=dict)
    """Calls of tools by their index, without their ids, which are drawn anew each time."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: Any = None

    def equals_but_for_rounding(self, other: "Read") -> bool:
        """An evicted request is computed again as a prompt, by other operations than those of a
        decode: its log probabilities then differ in the sixth digit (seen after 1,470 tokens)."""
        return replace(self, logprobs=[]) == replace(other, logprobs=[]) and are_close(
            self.logprobs, other.logprobs
        )

    def take(self, choice: Mapping[str, Any]) -> None:
        """Adds a chunk of the choice."""
        delta = choice.get("delta") or {}
        self.text += choice.get("text") or delta.get("content") or ""
        for call in delta.get("tool_calls") or ():
            parts = self.calls.setdefault(call["index"], {"name": "", "arguments": ""})
            for part, piece in call["function"].items():
                parts[part] += piece or ""
        if choice.get("logprobs"):
            self.logprobs += _logprobs(choice["logprobs"])
        self.finish_reason = choice["finish_reason"] or self.finish_reason
        self.stop_reason = choice.get("stop_reason") or self.stop_reason
        self.token_ids += choice.get("token_ids") or []


def are_close(one: Any, other: Any) -> bool:
    """Whether two values of JSON are equal, except for the rounding of numbers."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-4, abs_tol=1e-4)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(are_close(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(are_close, one, other))
    return bool(one == other)


def _logprobs(found: Mapping[str, Any]) -> Sequence[Any]:
    """The log probabilities for each token, in the form of either API."""
    if "content" in found:
        content: Sequence[Any] = found["content"]
        return content
    rows = (found["tokens"], found["token_logprobs"], found["top_logprobs"])
    return list(zip(*rows, strict=True))


class ReadStream:
    """A request and its reader. `name`: the client's id of the request. `tls`: for an https
    endpoint, the certificates to trust. `http_status`: 0 before
    the answer begins. `error`: why the stream was not read to its end; None while it is read, and
    after its end or `stop`."""

    def __init__(
        self,
        url: str,
        path: str,
        body: Mapping[str, Any],
        name: str,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.name = name
        self.choices: dict[int, Read] = {}
        self.http_status = 0
        self.error: Any = None
        self._url, self._tls, self._path = url, tls, path
        self._body = {"return_token_ids": True, "stream": True, **body}
        self._socket: socket.socket | None = None
        self._stopped = False
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._read, name=name, daemon=True)
        self._thread.start()

    @property
    def num_tokens(self) -> int:
        """How many tokens came of the choice that has the fewest; 0 until all choices have
        begun."""
        if len(self.choices) < self._body.get("n", 1):
            return 0
        return min(len(read.token_ids) for read in self.choices.values())

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def wait_until(self, condition: Callable[[], bool], patience_s: float) -> bool:
        """Waits until the condition holds, which is checked whenever something comes. Returns False
        if the stream ended before, or after `patience_s`."""
        with self._news:
            self._news.wait_for(lambda: condition() or self._is_over, patience_s)
        return condition()

    def join(self, patience_s: float) -> bool:
        """Waits for the stream's end, and returns whether it has ended."""
        self._thread.join(patience_s)
        return self.ended

    def stop(self) -> None:
        """Leaves the stream, as a client does that closes its connection."""
        self._stopped = True
        if self._socket is not None:
            with contextlib.suppress(OSError):  # it is closed already
                self._socket.shutdown(socket.SHUT_RDWR)

    # -- the reader's thread ---------------------------------------------------------------

    _is_over = False

    def _read(self) -> None:
        try:
            self._stream()
        except (OSError, ValueError, http.client.HTTPException) as error:
            if not self._stopped:
                self.error = error
        finally:
            with self._news:
                self._is_over = True
                self._news.notify_all()

    def _stream(self) -> None:
        connection = self._connection()
        headers = {"X-Request-Id": self.name, "Content-Type": "application/json"}
        try:
            connection.connect()
            self._socket = connection.sock
            if self._stopped:
                return
            connection.request("POST", self._path, json.dumps(self._body), headers)
            response = connection.getresponse()
            self.http_status = response.status
            if self.http_status != http.HTTPStatus.OK:
                self.error = response.read()
                return
            is_whole = False
            for line in response:
                if line.startswith(b"data: {"):
                    self._take(json.loads(line.removeprefix(b"data: ")))
                is_whole = is_whole or line.startswith(b"data: [DONE]")
            # A connection that is cut between two lines looks like an end to the library.
            if not is_whole:
                raise ConnectionError("the stream was cut")
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        host = urlsplit(self._url).netloc
        if self._tls is not None:
            return http.client.HTTPSConnection(host, timeout=PATIENCE_S, context=self._tls)
        return http.client.HTTPConnection(host, timeout=PATIENCE_S)

    def _take(self, chunk: dict[str, Any]) -> None:
        with self._news:
            if "choices" not in chunk:
                self.error = chunk
            for choice in chunk.get("choices", ()):
                self.choices.setdefault(choice["index"], Read()).take(choice)
            self._news.notify_all()
