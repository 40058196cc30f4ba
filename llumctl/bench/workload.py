"""What is sent and when, all of it known before the first request goes out.

Arrivals, lengths, levels and prompts come from streams of random numbers of their own, all
derived from one seed: another rate sends the same requests at other times.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from controller.api.errors import UsageError
from controller.sim.workload.trace import TraceRequest
from llumctl.bench import arrivals, lengths, traces
from llumctl.bench.arrivals import Arrivals
from llumctl.bench.levels import Level, Shares

MAX_REQUESTS = 1_000_000
TOKEN_IDS = range(300, 1000)
"""Prompts are made of these: in any vocabulary, and past the special tokens and single bytes
with which many begin."""


@dataclass(frozen=True, slots=True)
class Load:
    """What the command line asked for. `rate` in requests per second; `duration_s` and
    `num_requests` bound the load, whichever is less. With `trace`, `speed` says how many times
    faster than recorded it is replayed, and rate, arrivals, cv and lengths mean nothing."""

    rate: float = 1.0
    arrivals: Arrivals = Arrivals.POISSON
    cv: float | None = None
    lengths: str = "S-S"
    trace: Path | None = None
    speed: float = 1.0
    duration_s: float | None = 30.0
    num_requests: int | None = None
    max_tokens: int | None = None
    """No prompt and no output is longer."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """Due `at_s` after the start. `priority` is vLLM's: lower goes first."""

    index: int
    at_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    level: str = ""
    priority: int = 0
    prefix_hashes: tuple[int, ...] = ()
    prefix_hash_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Workload:
    """`num_shortened`: requests that were longer than asked for or than the model's context."""

    requests: tuple[Request, ...]
    num_shortened: int


@dataclass(frozen=True, slots=True)
class Rows:
    """Times and lengths of requests, without end unless they are from a trace; what a trace says of
    ranks and sessions is not replayed. `prefix_hash_tokens` as in a trace."""

    requests: Iterator[TraceRequest]
    prefix_hash_tokens: int = 0


def rows(load: Load) -> Rows:
    """What is asked for before it is fitted to a model.

    Raises:
        UsageError: at once, if the trace, the rate or the name of the lengths is bad.
    """
    if load.trace is not None:
        trace = traces.read(load.trace)
        faster = (request.arriving(request.arrival_s / load.speed) for request in trace.requests)
        return Rows(faster, trace.prefix_hash_tokens)
    arrivals.check(load.arrivals, load.rate, load.cv)
    prompts, outputs = lengths.parse(load.lengths)
    rng = Random(f"{load.seed}/lengths")
    arrival_rng = Random(f"{load.seed}/arrivals")
    times_s = arrivals.times_s(load.arrivals, load.rate, load.cv, arrival_rng)
    drawn = zip(times_s, lengths.draws(prompts, outputs, rng), strict=False)
    return Rows(TraceRequest(at_s, *tokens) for at_s, tokens in drawn)


def plan(load: Load, rows: Rows, shares: Shares, max_model_len: int | None) -> Workload:
    """Raises UsageError: no request at all, or far too many."""
    names, weights = tuple(shares), tuple(shares.values())
    level_rng = Random(f"{load.seed}/levels")
    requests: list[Request] = []
    num_shortened = 0
    for row in rows.requests:
        is_late = load.duration_s is not None and row.arrival_s >= load.duration_s
        if is_late or len(requests) == load.num_requests:
            break
        if len(requests) == MAX_REQUESTS:
            raise UsageError(
                f"more than {MAX_REQUESTS:,} requests in one run", "llumctl bench --requests 10000"
            )
        fitted = fit(row, load.max_tokens, max_model_len)
        num_shortened += fitted != row
        (level,) = level_rng.choices(names, weights)
        requests.append(_request(len(requests), fitted, level, rows.prefix_hash_tokens))
    if not requests:
        raise UsageError(
            f"no request falls into the first {load.duration_s:g} s", "llumctl bench --requests 10"
        )
    return Workload(tuple(requests), num_shortened)


def fit(row: TraceRequest, max_tokens: int | None, max_model_len: int | None) -> TraceRequest:
    """Shortens prompts rather than outputs, of which most of a request's time is made."""
    prompt, outputs = row.num_prompt_tokens, row.num_output_tokens
    if max_tokens is not None:
        prompt, outputs = min(prompt, max_tokens), min(outputs, max_tokens)
    if max_model_len is not None:
        outputs = min(outputs, max_model_len - 1)
        prompt = min(prompt, max_model_len - outputs)
    return replace(row, num_prompt_tokens=prompt, num_output_tokens=outputs)


def prompt(seed: int, request: Request) -> list[int]:
    """The token ids. Where a trace has prefix hashes, equal hashes mean equal tokens."""
    ids: list[int] = []
    for number in request.prefix_hashes:
        if len(ids) >= request.num_prompt_tokens:
            break
        block = Random(f"{seed}/block/{number}")
        ids += block.choices(TOKEN_IDS, k=request.prefix_hash_tokens)
    own = Random(f"{seed}/prompt/{request.index}")
    ids += own.choices(TOKEN_IDS, k=max(0, request.num_prompt_tokens - len(ids)))
    return ids[: request.num_prompt_tokens]


def _request(index: int, row: TraceRequest, level: Level, prefix_hash_tokens: int) -> Request:
    return Request(
        index,
        row.arrival_s,
        row.num_prompt_tokens,
        row.num_output_tokens,
        level.name,
        level.priority,
        row.prefix_hashes,
        prefix_hash_tokens,
    )
