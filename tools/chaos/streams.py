"""The load: bursts of streams, each compared with the answer that an undisturbed cluster gives."""

import asyncio
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import httpx

from controller.api.token_sequence import start
from tools.emulated_answers import first_wrong

TIMEOUT_S = 120.0
EMULATED_OUTPUTS = (40, 120)
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 40}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
KINDS: Mapping[str, Mapping[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 0.9, "top_p": 0.95, "seed": 11},
    "penalised": {"temperature": 0.0, "presence_penalty": 0.6, "repetition_penalty": 1.2},
    "guided": {"temperature": 0.8, "seed": 5, "structured_outputs": {"json": SCHEMA}},
}
"""Of requests to engines that compute."""


class Outcome(StrEnum):
    WHOLE = "whole"
    LEFT = "the client left"
    """As it meant to."""
    CUT = "the connection broke"
    """Its frontend died."""
    ERROR = "an error"
    """One, with a reason."""
    WRONG = "wrong tokens"
    ENDLESS = "no end"


@dataclass(slots=True)
class Result:
    outcome: Outcome
    detail: str = ""
    num_tokens: int = 0
    longest_gap_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Request:
    """`right`: what is wrong with these tokens; None if nothing is. `leaves_after`: the client
    leaves after so many tokens."""

    body: Mapping[str, Any]
    wrong: Callable[[Sequence[int]], str | None]
    leaves_after: int | None = None


def emulated(dice: random.Random, number: int) -> Request:
    """Emulated engines' answers follow from the prompt."""
    prompt = [300 + number % 3000] * dice.randrange(10, 200)
    num_outputs = dice.randrange(*EMULATED_OUTPUTS)

    def wrong(tokens: Sequence[int]) -> str | None:
        if len(tokens) != num_outputs:
            return f"{len(tokens)} tokens of {num_outputs}"
        at = first_wrong(start(prompt), tokens)
        return None if at is None else f"token {at} is wrong"

    body = {"prompt": prompt, "max_tokens": num_outputs, "ignore_eos": True}
    leaves_after = dice.randrange(1, 30) if dice.random() < 0.1 else None
    return Request(body, wrong, leaves_after)


def real(dice: random.Random, answers: Sequence[tuple[Mapping[str, Any], list[int]]]) -> Request:
    """One of those whose undisturbed answers are known."""
    body, right = dice.choice(answers)

    def wrong(tokens: Sequence[int]) -> str | None:
        if list(tokens) == right:
            return None
        same = sum(1 for _ in _same(tokens, right))
        return f"{len(tokens)} tokens, other than undisturbed from token {same} of {len(right)} on"

    return Request(body, wrong)


def _same(one: Sequence[int], other: Sequence[int]) -> Sequence[int]:
    for n, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return one[:n]
    return one[: min(len(one), len(other))]


def bodies_of_real(num_outputs: int) -> list[dict[str, Any]]:
    return [
        {"prompt": f"{kind} number {n}: tell a story", "max_tokens": num_outputs, **options}
        | ({} if kind == "guided" else {"ignore_eos": True})
        for kind, options in KINDS.items()
        for n in range(4)
    ]


async def read(client: httpx.AsyncClient, request: Request) -> Result:
    tokens: list[int] = []
    found = Result(Outcome.ENDLESS)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await _read(client, request, tokens, found)
    except TimeoutError:
        found.outcome = Outcome.ENDLESS
    except httpx.HTTPError as error:
        found.outcome, found.detail = Outcome.CUT, type(error).__name__
    found.num_tokens = len(tokens)
    return found


async def _read(
    client: httpx.AsyncClient, request: Request, tokens: list[int], found: Result
) -> None:
    loop = asyncio.get_running_loop()
    body = {"model": "embedded", "stream": True, "return_token_ids": True, **request.body}
    async with client.stream("POST", "/v1/completions", json=body) as response:
        if response.status_code != 200:
            told = (await response.aread()).decode(errors="replace")
            found.outcome, found.detail = Outcome.ERROR, f"{response.status_code}: {told[:200]}"
            return
        last_s, is_over = loop.time(), False
        async for line in response.aiter_lines():
            if not line.startswith("data: "):
                continue
            if line == "data: [DONE]":
                is_over = True
                break
            chunk = json.loads(line.removeprefix("data: "))
            if "error" in chunk:
                found.outcome, found.detail = Outcome.ERROR, str(chunk["error"])[:200]
                return
            now_s = loop.time()
            found.longest_gap_s = max(found.longest_gap_s, now_s - last_s)
            last_s = now_s
            for choice in chunk["choices"]:
                tokens += choice.get("token_ids") or []
            if request.leaves_after is not None and len(tokens) >= request.leaves_after:
                found.outcome = Outcome.LEFT
                return
    if not is_over:
        found.outcome, found.detail = Outcome.CUT, "the stream ended without [DONE]"
        return
    found.detail = request.wrong(tokens) or ""
    found.outcome = Outcome.WRONG if found.detail else Outcome.WHOLE


async def burst(
    url: str, requests: Sequence[Request], seconds: float, dice: random.Random
) -> list[Result]:
    """Their results, in their order; they begin within the first half of these seconds. Each has a
    connection of its own, so that frontends share them."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=url, timeout=None, limits=limits) as client:

        async def later(delay_s: float, request: Request) -> Result:
            await asyncio.sleep(delay_s)
            return await read(client, request)

        delays = [dice.uniform(0, seconds / 2) for _ in requests]
        return await asyncio.gather(*map(later, delays, requests))
