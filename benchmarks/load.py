"""Closed-loop load: `num_streams` clients, each sending its next request when one ends.

All requests have the same length, so streams that begin together stay in step: they prefill in one
batch or two, and the median time to the first token is that of the first batch or of the second, by
chance. (Of 32 streams of 128 tokens on one engine, 16 wait 0.2 s and 16 wait 0.35 s; only means can
be compared.) Staggered streams do not stay in step: each begins with a request of a share of the
length and ends with one of the rest, and neither counts for latency.
"""

import asyncio
import random
import statistics
import time
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

import uvloop

from benchmarks.engine_plan import FIRST_WORD_ID
from llumctl.lab.bench_client import Answer, Endpoint, ExchangeError, Pool, judge

REQUEST_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Request:
    """`is_edge`: whether this is the first or the last request of a staggered stream."""

    prompt: list[int]
    num_output_tokens: int
    is_edge: bool = False


@dataclass(frozen=True, slots=True)
class Workload:
    """`seed` fixes the prompts, which are the same for both servers and others in each round."""

    model: str
    vocab_size: int
    num_streams: int
    num_requests: int
    """The number of requests of full length, with the two edges counted as one. They are divided
    evenly among the streams."""
    seed: int
    staggered: bool = True
    num_prompt_tokens: int = 128
    num_output_tokens: int = 128

    def streams(self) -> list[list[Request]]:
        """For each stream its requests in order."""
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
    """Prompts as token ids, so that nothing is tokenised. The first token is the number of the
    request, so that no two prompts share a prefix that a cache could serve."""

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
class Timing:
    """The times of one request, by time.perf_counter(). `error` is empty if the answer is right."""

    sent_s: float
    answer: Answer
    error: str

    @property
    def num_output_tokens(self) -> int:
        return self.answer.num_output_tokens or 0

    @property
    def event_times_s(self) -> "array[float]":
        """When each piece of text came."""
        return self.answer.token_times_s

    @property
    def ttft_s(self) -> float:
        return self.event_times_s[0] - self.sent_s

    @property
    def tpot_s(self) -> float:
        """The mean time per output token after the first."""
        gaps = max(1, self.num_output_tokens - 1)
        return (self.event_times_s[-1] - self.event_times_s[0]) / gaps

    @property
    def itl_s(self) -> list[float]:
        """The gaps between pieces; a slow server may put several tokens into one piece."""
        return [later - earlier for earlier, later in pairwise(self.event_times_s)]

    @property
    def e2e_latency_s(self) -> float:
        return self.answer.ended_s - self.sent_s


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """Medians over the requests of full length in one measurement, and of `itl` over all gaps."""

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
    endpoint = Endpoint(base_url)
    streams = [
        [(request, _encode(endpoint, workload.model, request)) for request in stream]
        for stream in workload.streams()
    ]
    pool = Pool(endpoint)
    timings: list[tuple[Request, Timing]] = []
    cpu_s, started_s = time.process_time(), time.perf_counter()
    try:
        async with asyncio.TaskGroup() as group:
            for stream in streams:
                group.create_task(_send_in_turn(pool, stream, timings))
    finally:
        pool.close()
    duration_s = time.perf_counter() - started_s
    return _figures(timings, duration_s, time.process_time() - cpu_s)


def _encode(endpoint: Endpoint, model: str, request: Request) -> bytes:
    body = {
        "model": model,
        "prompt": request.prompt,
        "max_tokens": request.num_output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return endpoint.encode("completions", body)


async def _send_in_turn(
    pool: Pool, stream: Iterable[tuple[Request, bytes]], timings: list[tuple[Request, Timing]]
) -> None:
    for request, message in stream:
        timings.append((request, await _send(pool, request, message)))


async def _send(pool: Pool, request: Request, message: bytes) -> Timing:
    answer, sent_s = Answer(), time.perf_counter()
    try:
        await pool.exchange(message, answer, REQUEST_TIMEOUT_S)
    except ExchangeError as error:
        return Timing(sent_s, answer, f"{error.kind}: {error.detail}")
    verdict = judge(answer, len(request.prompt), request.num_output_tokens, None)
    return Timing(sent_s, answer, f"{verdict.kind}: {verdict.detail}" if verdict.kind else "")


def _figures(timings: list[tuple[Request, Timing]], duration_s: float, cpu_s: float) -> LoadFigures:
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
    """The median, or 0 without values: a measurement in which every request failed is shown too."""
    return statistics.median(values) if values else 0.0


def percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
