"""Real instances fetch what another one has cached of a prompt, and no token changes."""

import asyncio
import random
from typing import Any

import httpx

from controller.api.wire.requests import Event
from tools.cluster import Cluster, wait_for

SHARED_TOKENS = 3000
OWN_TOKENS = 150
NUM_ROUNDS = 3
SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 7},
    {"temperature": 0.9, "seed": 3, "top_k": 40, "top_p": 0.9},
    {"temperature": 1.3, "seed": 4, "min_p": 0.03},
    {"temperature": 0.0, "frequency_penalty": 1.5, "repetition_penalty": 1.5},
    {"temperature": 0.7, "seed": 5, "logprobs": 3},
]


async def answers(cluster: Cluster, prompts: list[list[int]], **more: Any) -> list[Any]:
    """The tokens of all prompts, which are sent at once, each with its own sampling."""
    timeout = httpx.Timeout(120.0)
    async with httpx.AsyncClient(base_url=cluster.url, timeout=timeout) as client:

        async def one(number: int) -> Any:
            sampling = SAMPLINGS[number % len(SAMPLINGS)]
            body = {"model": "embedded", "prompt": prompts[number], "max_tokens": 24}
            body |= {"ignore_eos": True, "return_token_ids": True} | sampling | more
            response = await client.post("/v1/completions", json=body)
            response.raise_for_status()
            choice = response.json()["choices"][0]
            values = (choice["logprobs"] or {}).get("token_logprobs", [])
            # Their last digits depend on which requests share a step.
            return choice["token_ids"], [round(value, 2) for value in values]

        return await asyncio.gather(*map(one, range(len(prompts))))


def fetched(cluster: Cluster) -> list[Event]:
    with cluster.control() as client:
        return [e for e in client.events().events if e.kind == "prefix_fetched"]


def test_prompts_that_begin_alike_are_fetched_and_no_token_changes(cluster: Cluster) -> None:
    """One prompt is computed. Then several that begin with it come at once, so that its instance is
    busy. The same prompts under a salt, with which nothing is cached, have the same answers."""
    before = cluster.status()
    assert before["policy"] == "llumnix+"
    dice = random.Random(5)

    def tokens(number: int) -> list[int]:
        return [dice.randrange(300, 4000) for _ in range(number)]

    num_before = len(fetched(cluster))
    for number in range(NUM_ROUNDS):
        shared = tokens(SHARED_TOKENS)
        asyncio.run(answers(cluster, [shared]))
        prompts = [shared + tokens(OWN_TOKENS) for _ in range(2 * len(SAMPLINGS))]
        found = asyncio.run(answers(cluster, prompts))
        alone = [
            asyncio.run(answers(cluster, prompts, cache_salt=f"round-{number}-{turn}"))
            for turn in range(2)
        ]
        assert alone[0] == alone[1], "otherwise the test would show nothing"
        assert found == alone[0]

    def is_told() -> list[Event]:
        return [e for e in fetched(cluster)[num_before:] if e.labels["outcome"] == "fetched"]

    events = wait_for(is_told, "an event of a fetch")
    # What is still being computed has only its first blocks cached, so some fetches are short.
    num_tokens = [e.numbers["num_tokens"] for e in events]
    assert all(num_tokens)
    assert max(num_tokens) >= SHARED_TOKENS // 2, num_tokens
    assert {e.instance_id for e in events} <= {"i-0", "i-1"}
    status = wait_for(
        lambda: (s := cluster.status()) and all_free(s) and s, "all blocks are free again"
    )
    assert sum(i["num_fetched_tokens"] for i in status["instances"]) > 0
    assert sum(i["num_evictions"] for i in status["instances"]) == sum(
        i["num_evictions"] for i in before["instances"]
    )


def all_free(status: dict[str, Any]) -> bool:
    return all(i["num_free_blocks"] == i["num_total_blocks"] for i in status["instances"])
