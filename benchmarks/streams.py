"""One streaming completion over a kept-alive connection, timed where its bytes arrive.

Hand-written HTTP, because the client shares the cores with what it measures: it costs about
0.02 ms per token. It reads only what vLLM's app sends: chunked server-sent events, ended by
`[DONE]`.
"""

import asyncio
import json
import re
import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import cast
from urllib.parse import urlsplit

# A raw CR LF cannot occur inside JSON, so this begins an event and nothing else.
EVENT = b"\r\ndata: "
LAST_CHUNK = b"\r\n0\r\n\r\n"
DONE = b"data: [DONE]"
COMPLETION_TOKENS = re.compile(rb'"completion_tokens":\s*(\d+)')


@dataclass(slots=True)
class RequestTiming:
    """Times are of time.perf_counter(); `event_times_s` has one entry per piece of text."""

    sent_s: float
    ended_s: float = 0.0
    event_times_s: list[float] = field(default_factory=list)
    num_output_tokens: int = 0
    error: str = ""

    @property
    def ttft_s(self) -> float:
        return self.event_times_s[0] - self.sent_s

    @property
    def tpot_s(self) -> float:
        """Mean time per output token after the first."""
        gaps = max(1, self.num_output_tokens - 1)
        return (self.event_times_s[-1] - self.event_times_s[0]) / gaps

    @property
    def itl_s(self) -> list[float]:
        """Gaps between pieces; a server that lags may put several tokens into one."""
        return [later - earlier for earlier, later in pairwise(self.event_times_s)]

    @property
    def e2e_latency_s(self) -> float:
        return self.ended_s - self.sent_s


class StreamConnection(asyncio.Protocol):
    """One request at a time; the connection is kept for the next."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._searched = 0
        self._timing: RequestTiming | None = None
        self._ended: asyncio.Future[None] | None = None

    @classmethod
    async def open(cls, base_url: str) -> "StreamConnection":
        address = urlsplit(base_url)
        loop = asyncio.get_running_loop()
        host, port = address.hostname or "127.0.0.1", address.port or 80
        _, connection = await loop.create_connection(cls, host, port)
        return connection

    async def request(self, message: bytes, timeout_s: float) -> RequestTiming:
        """Send `message` (see `encode_request`) and read its stream to the end."""
        if self._transport is None or self._transport.is_closing():
            return RequestTiming(time.perf_counter(), error="the connection is closed")
        self._ended = asyncio.get_running_loop().create_future()
        self._received.clear()
        self._searched = 0
        self._timing = timing = RequestTiming(time.perf_counter())
        self._transport.write(message)
        try:
            await asyncio.wait_for(self._ended, timeout_s)
        except TimeoutError:
            timing.error = f"no end after {timeout_s:.0f} s"
            self.close()
        self._timing = None
        if not timing.error:
            self._finish(timing)
        return timing

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        timing = self._timing
        if timing is None:
            return
        now_s = time.perf_counter()
        self._received += data
        found = self._received.find(EVENT, self._searched)
        while found >= 0:
            timing.event_times_s.append(now_s)
            self._searched = found + len(EVENT)
            found = self._received.find(EVENT, self._searched)
        if self._received.endswith(LAST_CHUNK) or self._is_plain_answer():
            timing.ended_s = now_s
            self._settle()

    def connection_lost(self, error: Exception | None) -> None:
        if self._timing is not None and self._ended is not None and not self._ended.done():
            self._timing.error = f"the connection broke: {error or 'closed by the server'}"
        self._settle()

    def _is_plain_answer(self) -> bool:
        """A refusal: not chunked, its body complete."""
        head, mark, body = bytes(self._received[:2048]).partition(b"\r\n\r\n")
        length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
        return bool(mark and length and len(body) >= min(int(length[1]), 1024))

    def _settle(self) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def _finish(self, timing: RequestTiming) -> None:
        answer = bytes(self._received)
        status = answer.split(b"\r\n", 1)[0].decode("latin-1")
        tokens = COMPLETION_TOKENS.findall(answer)
        if " 200 " not in f"{status} ":
            body = answer.partition(b"\r\n\r\n")[2][:300].decode("utf-8", "replace")
            timing.error = f"{status}: {body}"
        elif DONE not in answer or not tokens:
            timing.error = f"the stream ended early: {answer[-200:]!r}"
        else:
            timing.num_output_tokens = int(tokens[-1])
            del timing.event_times_s[-2:]  # the usage and [DONE]


def encode_request(base_url: str, body: dict[str, object]) -> bytes:
    """POST /v1/completions, streamed with usage at the end."""
    body = body | {"stream": True, "stream_options": {"include_usage": True}}
    content = json.dumps(body).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\n"
        f"Host: {urlsplit(base_url).netloc}\r\n"
        "Content-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content
