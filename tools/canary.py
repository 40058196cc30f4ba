"""A greedy completion that streams all the time, and the longest gap between two of its tokens.

One that stalls tells that the endpoint stands still for everybody. A timer on the same thread is
the control: what it was late by in a gap, the machine owes, and not the endpoint. A stream that
ends is followed by the next one at once, so the wait for a first token is a gap too.

    with Canary(url) as canary:
        canary.wait_singing()
        began_s = time.monotonic()
        ...
        print(canary.longest(began_s))
"""

import asyncio
import json
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import httpx

FLOOR_S = 0.05
"""Shorter gaps are not kept one by one."""
CONTROL_PERIOD_S = 0.01
NUM_TOKENS = 6000
RETRY_S = 0.2


class Span(NamedTuple):
    """From a moment to another, by time.monotonic()."""

    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Gap:
    """Between two tokens. `control_s`: for so long of it, this process did not run either."""

    start_s: float
    end_s: float
    control_s: float = 0.0

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s

    @property
    def stall_s(self) -> float:
        """What the machine does not explain."""
        return self.duration_s - self.control_s

    def __str__(self) -> str:
        return f"{self.duration_s:.2f} s (control {self.control_s:.2f} s)"


NO_GAP = Gap(0.0, 0.0)


def longest_gap(gaps: Iterable[Span], late: Sequence[Span], since_s: float, until_s: float) -> Gap:
    """The one with the longest stall within the time asked for, cut to it; NO_GAP if none is."""
    found = NO_GAP
    for span in gaps:
        start_s, end_s = max(span.start_s, since_s), min(span.end_s, until_s)
        if end_s <= start_s:
            continue
        control_s = sum(
            max(0.0, min(end_s, each.end_s) - max(start_s, each.start_s)) for each in late
        )
        found = max(found, Gap(start_s, end_s, control_s), key=lambda gap: gap.stall_s)
    return found


class Canary:
    """On a thread of its own from entering to leaving. Its stream is broken off at the end."""

    def __init__(self, url: str, api_key: str = "", num_tokens: int = NUM_TOKENS) -> None:
        """`url`: of the server, without /v1."""
        self.breaks: list[tuple[float, str]] = []
        """When and how a stream failed."""
        self.num_seen_tokens = 0
        self._url = url
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._num_tokens = num_tokens
        self._gaps: list[Span] = []
        self._late: list[Span] = []
        self._last_s = 0.0
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="canary", daemon=True)

    def __enter__(self) -> "Canary":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(lambda: self._task and self._task.cancel())
        self._thread.join(10)

    def wait_singing(self, timeout_s: float = 30.0) -> None:
        """Until tokens come; raises TimeoutError."""
        num_before, deadline_s = self.num_seen_tokens, time.monotonic() + timeout_s
        while self.num_seen_tokens < num_before + 2:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"no token of the canary in {timeout_s:.0f} s: {self.breaks}")
            time.sleep(0.02)

    def longest(self, since_s: float, until_s: float | None = None) -> Gap:
        """Of the gaps since then, one that has not ended yet among them."""
        now_s = time.monotonic()
        gaps = [*self._gaps, Span(self._last_s, now_s)] if self._last_s else self._gaps
        return longest_gap(gaps, self._late, since_s, now_s if until_s is None else until_s)

    def _run(self) -> None:
        self._task = self._loop.create_task(self._sing())
        try:
            self._loop.run_until_complete(self._task)
        except asyncio.CancelledError:
            pass
        finally:
            self._loop.close()

    async def _sing(self) -> None:
        control = asyncio.create_task(self._watch_the_machine())
        try:
            async with httpx.AsyncClient(
                base_url=self._url, headers=self._headers, timeout=None, trust_env=False
            ) as client:
                model = await self._model(client)
                while True:
                    try:
                        await self._stream(client, model)
                    except (httpx.HTTPError, RuntimeError) as error:
                        self.breaks.append((time.monotonic(), f"{type(error).__name__}: {error}"))
                        await asyncio.sleep(RETRY_S)
        finally:
            control.cancel()

    async def _model(self, client: httpx.AsyncClient) -> str:
        while True:
            try:
                return str((await client.get("/v1/models")).json()["data"][0]["id"])
            except (httpx.HTTPError, ValueError, KeyError) as error:
                self.breaks.append((time.monotonic(), f"{type(error).__name__}: {error}"))
                await asyncio.sleep(RETRY_S)

    async def _stream(self, client: httpx.AsyncClient, model: str) -> None:
        body = {
            "model": model,
            "prompt": [1, 2, 3],
            "max_tokens": self._num_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        async with client.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != httpx.codes.OK:
                raise RuntimeError(f"{response.status_code}: {(await response.aread())[:200]!r}")
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    self._heard(line)

    def _heard(self, line: str) -> None:
        if line.startswith('data: {"error"'):
            raise RuntimeError(_message(line))
        now_s = time.monotonic()
        if self._last_s and now_s - self._last_s > FLOOR_S:
            self._gaps.append(Span(self._last_s, now_s))
        self._last_s = now_s
        self.num_seen_tokens += 1

    async def _watch_the_machine(self) -> None:
        while True:
            due_s = time.monotonic() + CONTROL_PERIOD_S
            await asyncio.sleep(CONTROL_PERIOD_S)
            if (now_s := time.monotonic()) - due_s > CONTROL_PERIOD_S:
                self._late.append(Span(due_s, now_s))


def _message(line: str) -> str:
    error: Any = json.loads(line.removeprefix("data: "))["error"]
    return str(error.get("message"))
