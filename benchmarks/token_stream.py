"""One streaming request: counts its tokens and records when they arrive.

A stream ends when the model's context is full. So a stream with a long prompt has little time, and
on a fast machine less than a measurement takes.
"""

import asyncio
import contextlib
import re
import time
import uuid
from array import array
from collections.abc import Sequence

import httpx

CONTEXT_TOKENS = 8160
"""The context of the embedded model, less what a step may be ahead."""
MARGIN = 1.5
"""A reserve, as steps vary and the time that is needed is an estimate."""


def prompt_that_lives(wanted_tokens: int, needed_s: float, step_s: float) -> int:
    """The longest prompt, of at most `wanted_tokens`, whose stream still runs `needed_s` after its
    first token, with one token every `step_s`. Raises ValueError if there is none."""
    num_output_tokens = round(MARGIN * needed_s / step_s)
    if num_output_tokens >= CONTEXT_TOKENS:
        raise ValueError(f"no stream lives {needed_s:.1f} s at {step_s * 1000:.2f} ms per token")
    return min(wanted_tokens, CONTEXT_TOKENS - num_output_tokens)


def time_left_s(num_output_tokens: int, num_said: int, step_s: float) -> float:
    """How long a stream still runs that has sent `num_said` of its tokens."""
    return max(0, num_output_tokens - num_said) * step_s


_NUM_SAID = re.compile(r'"completion_tokens":(\d+)')


class StreamEndedError(RuntimeError):
    """The stream ended before the measurement that needs it."""


class TokenStream:
    """A stream; `stop` cancels it. `reference`: the name of the request in the control API."""

    def __init__(
        self, client: httpx.AsyncClient, model: str, prompt: Sequence[int], num_tokens: int
    ) -> None:
        self.reference = f"cmpl-bench-{uuid.uuid4().hex[:12]}"
        self.num_tokens = num_tokens
        """How many tokens the stream has at most; then it ends."""
        self.num_said = 0
        """How many tokens have come. An event carries several if the client reads late."""
        self.event_times_s: array[float] = array("d")
        """When each event of the stream came, by time.perf_counter()."""
        self._client = client
        self._body = {
            "model": model,
            "prompt": list(prompt),
            "max_tokens": num_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        self._grew = asyncio.Event()
        self._task = asyncio.create_task(self._read())

    async def wait_tokens(self, count: int) -> None:
        """Waits until so many tokens have come. Raises StreamEndedError if the stream ends
        before."""
        while self.num_said < count:
            self._grew.clear()
            grew = asyncio.create_task(self._grew.wait())
            await asyncio.wait({grew, self._task}, return_when=asyncio.FIRST_COMPLETED)
            grew.cancel()
            if self._task.done() and self.num_said < count:
                raise StreamEndedError(f"the stream ended early: {self._task}")

    @property
    def ended(self) -> bool:
        return self._task.done()

    async def stop(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _read(self) -> None:
        headers = {"X-Request-Id": self.reference.removeprefix("cmpl-")}
        async with self._client.stream(
            "POST", "/v1/completions", json=self._body, headers=headers
        ) as response:
            if response.status_code != httpx.codes.OK:
                raise RuntimeError(f"{response.status_code}: {(await response.aread())[:200]!r}")
            async for line in response.aiter_lines():
                if found := _NUM_SAID.search(line):
                    self.num_said = int(found[1])
                    self.event_times_s.append(time.perf_counter())
                    self._grew.set()
