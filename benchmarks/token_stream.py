"""One streaming request whose tokens are timed as they arrive."""

import asyncio
import contextlib
import time
import uuid
from array import array
from collections.abc import Sequence

import httpx


class TokenStream:
    """`reference` is what the control API knows the request by. Cancelled by `stop`."""

    def __init__(
        self, client: httpx.AsyncClient, model: str, prompt: Sequence[int], num_tokens: int
    ) -> None:
        self.reference = f"cmpl-bench-{uuid.uuid4().hex[:12]}"
        self.num_tokens = num_tokens
        """That it says at most; then it has ended."""
        self.token_times_s: array[float] = array("d")
        """Of time.perf_counter(); one per event of the stream."""
        self._client = client
        self._body = {
            "model": model,
            "prompt": list(prompt),
            "max_tokens": num_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        self._grew = asyncio.Event()
        self._task = asyncio.create_task(self._read())

    async def wait_tokens(self, count: int) -> None:
        """Until so many have come. Raises RuntimeError if the stream ends before."""
        while len(self.token_times_s) < count:
            self._grew.clear()
            grew = asyncio.create_task(self._grew.wait())
            await asyncio.wait({grew, self._task}, return_when=asyncio.FIRST_COMPLETED)
            grew.cancel()
            if self._task.done() and len(self.token_times_s) < count:
                raise RuntimeError(f"the stream ended early: {self._task}")

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
                if line.startswith("data: {"):
                    self.token_times_s.append(time.perf_counter())
                    self._grew.set()
