"""One streaming request whose tokens are counted, and timed as they arrive."""

import asyncio
import contextlib
import re
import time
import uuid
from array import array
from collections.abc import Sequence

import httpx

_NUM_SAID = re.compile(r'"completion_tokens":(\d+)')


class StreamEndedError(RuntimeError):
    """The stream was over before the measurement that needs it."""


class TokenStream:
    """`reference` is what the control API knows the request by. Cancelled by `stop`."""

    def __init__(
        self, client: httpx.AsyncClient, model: str, prompt: Sequence[int], num_tokens: int
    ) -> None:
        self.reference = f"cmpl-bench-{uuid.uuid4().hex[:12]}"
        self.num_tokens = num_tokens
        """That it says at most; then it has ended."""
        self.num_said = 0
        """Tokens that have come. An event carries several where the client reads late."""
        self.event_times_s: array[float] = array("d")
        """Of time.perf_counter(); one per event of the stream."""
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
        """Until so many have come. Raises StreamEndedError if the stream ends before."""
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
