"""Closed-loop load: `num_streams` clients, each sending its next request when one ends.

All of the requests have the same length, so streams that begin together stay in step: they
prefill in one batch or two, and the median time to the first token is that of the first or
of the second, as it happens (32 streams of 128 tokens on one engine: 16 wait 0.2 s, 16 wait
0.35 s; only the mean compares). Staggered streams do not: each begins with a
request of a share of the length and ends with the rest, neither of which counts for latency.
"""

import asyncio
import contextlib
import random
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import uvloop

from benchmarks.streams import RequestTiming, StreamConnection, encode_request

REQUEST_TIMEOUT_S = 300.0
# Below it the embedded model's vocabulary has special tokens and single bytes.
FIRST_WORD_ID = 300


@dataclass(frozen=True, slots=True)
class Request:
    """`is_edge`: a first or last one of a staggered stream."""

    prompt: list[int]
    num_output_tokens: int
    is_edge: bool = False


@dataclass(frozen=True, slots=True)
class Workload:
    """`seed` fixes the prompts: the same for both servers, others in every round."""

    model: str
    vocab_size: int
    num_streams: int
    num_requests: int
    """Of full length, edges counted as one; divided evenly among the streams."""
    seed: int
    staggered: bool = True
    num_prompt_tokens: int = 128
    num_output_tokens: int = 128

    def streams(self) -> list[list[Request]]:
        """The requests of each stream in turn."""
        prompts = _Prompts(self)
        each = max(1, round(self.num_requests / self.num_streams))
        return [self._stream(index, each, prompts) for index in range(self.num_streams)]

    def _stream(self, index: int, num_requests: int, prompts: "_Prompts") -> list[Request]:
        length = self.num_output_tokens
        first = length * (index + 1) // self.num_streams
        if not self.staggered or first in (0, length):
            return [Request(prompts.make(), length) for _ in range(num_requests)]
        full = [Request(prompts.make(), length) for _ in range(num_requests - 1)]
        begin, end = (Request(prompts.make(), n, is_edge=True) for n in (first, length - first))
        return [begin, *full, end]


class _Prompts:
    """Token ids, so that nobody tokenises; the first token numbers the request, so that no two
    prompts share a prefix that a cache could serve."""

    def __init__(self, workload: Workload) -> None:
        self._rng = random.Random(workload.seed)
        self._words = range(FIRST_WORD_ID, workload.vocab_size)
        self._next = self._rng.randrange(len(self._words))
        self._length = workload.num_prompt_tokens

    def make(self) -> list[int]:
        self._next += 1
        first = self._words[self._next % len(self._words)]
        return [first, *self._rng.choices(self._words, k=self._length - 1)]


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """Medians over the requests of full length of one measurement, `itl` over all gaps."""

    num_requests: int
    num_failed: int
    errors: tuple[str, ...]
    duration_s: float
    output_tokens_per_s: float
    ttft_s: float
    ttft_mean_s: float
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
    streams = [
        [(request, _encode(base_url, workload.model, request)) for request in stream]
        for stream in workload.streams()
    ]
    connections = [await StreamConnection.open(base_url) for _ in streams]
    timings: list[tuple[Request, RequestTiming]] = []
    cpu_s, started_s = time.process_time(), time.perf_counter()
    try:
        async with asyncio.TaskGroup() as group:
            for connection, stream in zip(connections, streams, strict=True):
                group.create_task(_send_in_turn(base_url, connection, stream, timings))
    finally:
        for connection in connections:
            connection.close()
    duration_s = time.perf_counter() - started_s
    return _figures(timings, duration_s, time.process_time() - cpu_s)


def _encode(base_url: str, model: str, request: Request) -> bytes:
    body = {
        "model": model,
        "prompt": request.prompt,
        "max_tokens": request.num_output_tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    return encode_request(base_url, body)


async def _send_in_turn(
    base_url: str,
    connection: StreamConnection,
    stream: Iterable[tuple[Request, bytes]],
    timings: list[tuple[Request, RequestTiming]],
) -> None:
    for request, message in stream:
        timing = await connection.request(message, REQUEST_TIMEOUT_S)
        timings.append((request, timing))
        if timing.error:
            connection.close()
            with contextlib.suppress(OSError):  # then the next request says so
                connection = await StreamConnection.open(base_url)
    connection.close()


def _figures(
    timings: list[tuple[Request, RequestTiming]], duration_s: float, cpu_s: float
) -> LoadFigures:
    for request, timing in timings:
        if not timing.error and timing.num_output_tokens != request.num_output_tokens:
            timing.error = f"{timing.num_output_tokens} tokens came"
    good = [(request, timing) for request, timing in timings if not timing.error]
    full = [timing for request, timing in good if not request.is_edge]
    gaps = sorted(gap for timing in full for gap in timing.itl_s)
    ttfts = sorted(timing.ttft_s for timing in full)
    num_tokens = sum(timing.num_output_tokens for _, timing in good)
    return LoadFigures(
        num_requests=len(timings),
        num_failed=len(timings) - len(good),
        errors=tuple(sorted({timing.error for _, timing in timings if timing.error})),
        duration_s=duration_s,
        output_tokens_per_s=num_tokens / duration_s,
        ttft_s=median(ttfts),
        ttft_mean_s=statistics.fmean(ttfts) if ttfts else 0.0,
        ttft_p99_s=percentile(ttfts, 0.99),
        tpot_s=median([timing.tpot_s for timing in full]),
        itl_s=median(gaps),
        itl_p99_s=percentile(gaps, 0.99),
        e2e_latency_s=median([timing.e2e_latency_s for timing in full]),
        num_tokens=num_tokens,
        num_events=sum(len(timing.event_times_s) for _, timing in good),
        client_cpu_s=cpu_s,
    )


def median(values: Sequence[float]) -> float:
    """0 of nothing: a measurement whose every request failed still prints."""
    return statistics.median(values) if values else 0.0


def percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
