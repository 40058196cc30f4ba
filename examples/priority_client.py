"""Two kinds of requests at once: batch work in the background, and somebody who waits.

Needs only the `httpx` package:  pip install httpx

    python examples/priority_client.py
    python examples/priority_client.py --batch 20 --interactive 3 --max-tokens 200

Interactive requests ask for the level `high` in a header. They go first in the queue, and the
cluster moves batch requests away from where they run. A key, if the endpoint wants one, comes from
the variable OPENAI_API_KEY; the endpoint's key file says which levels a key may ask for.
"""

import argparse
import asyncio
import itertools
import json
import os
import statistics
import sys
import time
from dataclasses import dataclass

import httpx

HIGH = {"X-Llumctl-Priority": "high"}
NORMAL: dict[str, str] = {}
"""A request that says nothing has the level of rank 0."""


@dataclass
class Answer:
    """`gaps_s`: from one chunk to the next."""

    text: str
    ttft_s: float
    gaps_s: list[float]


async def stream(
    client: httpx.AsyncClient, options: argparse.Namespace, prompt: str, headers: dict[str, str]
) -> Answer:
    """One chat answer, read as it comes."""
    body = {
        "model": options.model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": options.max_tokens,
        "stream": True,
    }
    began_s = time.perf_counter()
    pieces: list[str] = []
    times_s: list[float] = []
    url = f"{options.base_url}/chat/completions"
    async with client.stream("POST", url, json=body, headers=headers) as response:
        if response.status_code != 200:
            error = json.loads(await response.aread())["error"]
            raise RuntimeError(f"{response.status_code}: {error['message']}")
        async for line in response.aiter_lines():
            data = line.removeprefix("data: ")
            if data in ("", "[DONE]"):
                continue
            chunk = json.loads(data)
            if "error" in chunk:
                raise RuntimeError(chunk["error"]["message"])
            text = chunk["choices"][0]["delta"].get("content") if chunk["choices"] else None
            if text:
                pieces.append(text)
                times_s.append(time.perf_counter())
    gaps_s = [after - before for before, after in itertools.pairwise(times_s)]
    return Answer("".join(pieces), (times_s or [time.perf_counter()])[0] - began_s, gaps_s)


async def run(options: argparse.Namespace) -> None:
    key = os.environ.get("OPENAI_API_KEY")
    authorization = {"Authorization": f"Bearer {key}"} if key else {}
    async with (
        httpx.AsyncClient(headers=authorization, timeout=600.0) as client,
        asyncio.TaskGroup() as tasks,
    ):
        batch = [
            tasks.create_task(stream(client, options, f"Summarise page {page}", NORMAL))
            for page in range(options.batch)
        ]
        # One after the other, as one person asks.
        for question in range(options.interactive):
            answer = await stream(client, options, f"Question {question}", HIGH)
            print(answer.text, flush=True)
            tell(f"interactive {question}", [answer])
        tell("batch", await asyncio.gather(*batch))


def tell(name: str, answers: list[Answer]) -> None:
    gaps_s = [gap_s for answer in answers for gap_s in answer.gaps_s]
    ttft_s = statistics.mean(answer.ttft_s for answer in answers) if answers else 0.0
    gap_s = statistics.mean(gaps_s) if gaps_s else 0.0
    print(
        f"{name}: {len(answers)} answers, first text after {ttft_s:.3f} s on average,"
        f" then {1000 * gap_s:.1f} ms from chunk to chunk",
        file=sys.stderr,
    )


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Batch and interactive requests at once.")
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--batch", type=int, default=8, help="requests in the background")
    parser.add_argument("--interactive", type=int, default=3, help="one after the other")
    parser.add_argument("--max-tokens", type=int, default=64)
    return parser.parse_args(arguments)


def main() -> int:
    options = parse()
    failed = 0
    try:
        asyncio.run(run(options))
    except* (httpx.HTTPError, RuntimeError) as errors:
        failed = 1
        first = errors.exceptions[0]
        print(f"error: {first or type(first).__name__}", file=sys.stderr)
    return failed


if __name__ == "__main__":
    sys.exit(main())
