"""A client whose stream is lost with its instance: it only waits, or sends the request again."""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Any

import httpx

SEND_AGAIN_S = 0.05
"""After an answer that has no token. The next one comes from an instance that lives, as a rule."""


class Strategy(StrEnum):
    """What the client does when its stream breaks off."""

    REPLAY = "replay"
    """Nothing: the cluster goes on with it."""
    AGAIN = "again"
    """It sends the request again, and waits until it has as many tokens as it had."""
    APPENDED = "appended"
    """It sends the request again, with the tokens that it has at the end of the prompt."""


@dataclass
class Client:
    """One request of `num_outputs` tokens. `came_s`: when each token came that the client did not
    have before, by time.perf_counter()."""

    name: str
    model: str
    prompt: Sequence[int]
    num_outputs: int
    strategy: Strategy
    tokens: list[int] = field(default_factory=list)
    came_s: list[float] = field(default_factory=list)
    num_attempts: int = 0
    error: str = ""
    """Of the last attempt."""

    def body(self) -> dict[str, Any]:
        """Of the next attempt."""
        had = len(self.tokens) if self.strategy is Strategy.APPENDED else 0
        return {
            "model": self.model,
            "prompt": [*self.prompt, *self.tokens[:had]],
            "max_tokens": self.num_outputs - had,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "return_token_ids": True,
        }

    async def run(self, http: httpx.AsyncClient) -> None:
        """Until it has all its tokens. Where the cluster is to go on, an error is the end."""
        while len(self.tokens) < self.num_outputs:
            if self.num_attempts and self.strategy is Strategy.REPLAY:
                return
            self.num_attempts += 1
            self.error = ""
            num_before = len(self.tokens)
            try:
                await self._attempt(http)
            except httpx.HTTPError as error:
                self.error = type(error).__name__
            if len(self.tokens) == num_before:
                await asyncio.sleep(SEND_AGAIN_S)

    async def _attempt(self, http: httpx.AsyncClient) -> None:
        known = 0 if self.strategy is not Strategy.APPENDED else len(self.tokens)
        headers = {"X-Request-Id": self.name}
        async with http.stream(
            "POST", "/v1/completions", json=self.body(), headers=headers
        ) as answer:
            if answer.status_code != httpx.codes.OK:
                self.error = (await answer.aread()).decode(errors="replace")[:200]
                return
            async for line in answer.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                chunk = json.loads(line.removeprefix("data: "))
                if "error" in chunk:
                    self.error = str(chunk["error"])[:200]
                    return
                for choice in chunk["choices"]:
                    known = self._take(choice.get("token_ids") or [], known)

    def _take(self, token_ids: Sequence[int], known: int) -> int:
        """`known`: of this attempt's answer, how many tokens came before. Returns it with these."""
        new = token_ids[max(0, len(self.tokens) - known) :]
        self.tokens += new
        self.came_s += [time.perf_counter()] * len(new)
        return known + len(token_ids)

    def longest_pause(self, since_s: float) -> tuple[float, int]:
        """The longest time between two new tokens of which the second came since then, and how many
        tokens the client had meanwhile. Raises ValueError if there is none."""
        gaps = (
            (after - before, number)
            for number, (before, after) in enumerate(pairwise(self.came_s), start=1)
            if after > since_s
        )
        return max(gaps)
