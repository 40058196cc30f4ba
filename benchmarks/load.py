"""Closed-loop load: `num_streams` clients, each sending its next request when one ends."""

import asyncio
import contextlib
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import uvloop

from benchmarks.streams import RequestTiming, StreamConnection, encode_request

REQUEST_TIMEOUT_S = 300.0
# Below it the embedded model's vocabulary has special tokens and single bytes.
FIRST_WORD_ID = 300


@dataclass(frozen=True, slots=True)
class Workload:
    """`seed` fixes the prompts: the same for both servers, others in every round."""

    model: str
    vocab_size: int
    num_streams: int
    num_requests: int
    seed: int
    num_prompt_tokens: int = 128
    num_output_tokens: int = 128

    def prompts(self) -> list[list[int]]:
        """Token ids, so that nobody tokenises; the first tokens number the request, so that
        no two prompts share a prefix that a cache could serve."""
        rng = random.Random(self.seed)
        words = range(FIRST_WORD_ID, self.vocab_size)
        start = rng.randrange(len(words))
        prompts = []
        for index in range(self.num_requests):
            first = words[(start + index) % len(words)]
            prompts.append([first, *rng.choices(words, k=self.num_prompt_tokens - 1)])
        return prompts


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """Medians over the requests of one measurement, `itl` over all gaps."""

    num_requests: int
    num_failed: int
    errors: tuple[str, ...]
    duration_s: float
    output_tokens_per_s: float
    ttft_s: float
    ttft_p99_s: float
    tpot_s: float
    itl_s: float
    itl_p99_s: float
    e2e_latency_s: float
    num_tokens: int
    num_events: int
    client_cpu_s: float

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def run_load(base_url: str, workload: Workload) -> LoadFigures:
    return uvloop.run(_run(base_url, workload))


async def _run(base_url: str, workload: Workload) -> LoadFigures:
    messages = [
        encode_request(
            base_url,
            {
                "model": workload.model,
                "prompt": prompt,
                "max_tokens": workload.num_output_tokens,
                "temperature": 0,
                "ignore_eos": True,
            },
        )
        for prompt in workload.prompts()
    ]
    connections = [await StreamConnection.open(base_url) for _ in range(workload.num_streams)]
    waiting = iter(messages)
    timings: list[RequestTiming] = []
    cpu_s, started_s = time.process_time(), time.perf_counter()
    try:
        async with asyncio.TaskGroup() as group:
            for connection in connections:
                group.create_task(_send_in_turn(base_url, connection, waiting, timings))
    finally:
        for connection in connections:
            connection.close()
    duration_s = time.perf_counter() - started_s
    return _figures(timings, duration_s, time.process_time() - cpu_s, workload)


async def _send_in_turn(
    base_url: str,
    connection: StreamConnection,
    waiting: Iterator[bytes],
    timings: list[RequestTiming],
) -> None:
    for message in waiting:
        timing = await connection.request(message, REQUEST_TIMEOUT_S)
        timings.append(timing)
        if timing.error:
            connection.close()
            with contextlib.suppress(OSError):  # then the next request says so
                connection = await StreamConnection.open(base_url)
    connection.close()


def _figures(
    timings: list[RequestTiming], duration_s: float, cpu_s: float, workload: Workload
) -> LoadFigures:
    for timing in timings:
        if not timing.error and timing.num_output_tokens != workload.num_output_tokens:
            timing.error = f"{timing.num_output_tokens} tokens came"
    good = [timing for timing in timings if not timing.error]
    gaps = sorted(gap for timing in good for gap in timing.itl_s)
    ttfts = sorted(timing.ttft_s for timing in good)
    num_tokens = sum(timing.num_output_tokens for timing in good)
    return LoadFigures(
        num_requests=len(timings),
        num_failed=len(timings) - len(good),
        errors=tuple(sorted({timing.error for timing in timings if timing.error})),
        duration_s=duration_s,
        output_tokens_per_s=num_tokens / duration_s,
        ttft_s=median(ttfts),
        ttft_p99_s=percentile(ttfts, 0.99),
        tpot_s=median([timing.tpot_s for timing in good]),
        itl_s=median(gaps),
        itl_p99_s=percentile(gaps, 0.99),
        e2e_latency_s=median([timing.e2e_latency_s for timing in good]),
        num_tokens=num_tokens,
        num_events=sum(len(timing.event_times_s) for timing in good),
        client_cpu_s=cpu_s,
    )


def median(values: Sequence[float]) -> float:
    """0 of nothing: a measurement whose every request failed still prints."""
    return statistics.median(values) if values else 0.0


def percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
