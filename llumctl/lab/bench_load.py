"""What is sent and when, all of it known before the first request goes out.

Arrivals, lengths, levels and prompts come from streams of random numbers of their own, all
derived from one seed: another rate sends the same requests at other times.
"""

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import numpy as np

from controller.api.errors import UsageError
from controller.sim.workload.lengths import Lengths, UnknownLengthsError, lengths_named
from controller.sim.workload.trace import Trace, TraceRequest
from controller.sim.workload.trace_files import TraceError, read_trace
from llumctl.lab.option_values import Arrivals


@dataclass(frozen=True, slots=True)
class Level:
    """`priority` as a request carries it: vLLM's, where lower goes first, so minus the rank."""

    name: str
    priority: int


Shares = Mapping[Level, float]
"""They sum to 1."""

DEFAULT_LEVEL = Level("normal", 0)


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
        trace = read_trace_file(load.trace)
        faster = (request.arriving(request.arrival_s / load.speed) for request in trace.requests)
        return Rows(faster, trace.prefix_hash_tokens)
    check_arrivals(load.arrivals, load.rate, load.cv)
    prompts, outputs = parse_lengths(load.lengths)
    rng = Random(f"{load.seed}/lengths")
    arrival_rng = Random(f"{load.seed}/arrivals")
    times_s = arrival_times_s(load.arrivals, load.rate, load.cv, arrival_rng)
    drawn = zip(times_s, draw_lengths(prompts, outputs, rng), strict=False)
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


# -- priority levels: which share of the requests is of each ----------------------------


def parse_shares(wanted: Sequence[str], known: Sequence[Level]) -> Shares:
    """Parses `high=0.1`, or `-1=0.1` with the request's `priority` itself; the level of priority 0
    gets what is left.

    Raises:
        UsageError: an unknown level, or shares that are none or sum to more than 1.
    """
    shares: dict[Level, float] = {}
    for text in wanted:
        name, equals, raw = text.rpartition("=")
        level = _level(name.strip(), known) if equals else None
        if level is None:
            raise UsageError(
                f"--priority: {text[:40]!r} is not of the form LEVEL=SHARE", _example(known)
            )
        if level in shares:
            raise UsageError(f"--priority: {level.name} is given twice", _example(known))
        shares[level] = _share(text, raw, known)
    total = math.fsum(shares.values())
    if total > 1 + 1e-9:
        raise UsageError(f"--priority: the shares sum to {total:g}, more than 1", _example(known))
    rest = next((level for level in known if level.priority == 0), DEFAULT_LEVEL)
    if total < 1 - 1e-9:
        shares[rest] = shares.get(rest, 0.0) + 1 - total
    return shares


def _level(name: str, known: Sequence[Level]) -> Level:
    for level in known:
        if level.name == name:
            return level
    try:
        priority = int(name)
    except ValueError:
        names = [level.name for level in known]
        near = difflib.get_close_matches(name, names, 1)
        raise UsageError(
            f"--priority: there is no level {name[:40]!r}; the levels are {', '.join(names)}",
            f"llumctl bench --priority {(near or names)[0]}=0.1",
        ) from None
    if abs(priority) > 100:
        raise UsageError(
            f"--priority: {priority} is beyond -100 to 100, which all ranks are within",
            _example(known),
        )
    same = next((level for level in known if level.priority == priority), None)
    return same or Level(str(priority), priority)


def _share(text: str, raw: str, known: Sequence[Level]) -> float:
    try:
        share = float(raw)
    except ValueError:
        share = math.nan
    if not 0 <= share <= 1:
        raise UsageError(
            f"--priority: the share in {text[:40]!r} is no number from 0 to 1", _example(known)
        )
    return share


def _example(known: Sequence[Level]) -> str:
    first = min(known, key=lambda level: level.priority, default=Level("high", -1))
    return f"llumctl bench --priority {first.name}=0.1"


# -- when requests come: endless gaps between them --------------------------------------


def arrival_times_s(kind: Arrivals, rate: float, cv: float | None, rng: Random) -> Iterator[float]:
    """Seconds from the start at which each request is due, without end; `rate` in 1/s."""
    now_s = 0.0
    for gap_s in _gaps_s(kind, rate, 1.0 if cv is None else cv, rng):
        now_s += gap_s
        yield now_s


def check_arrivals(kind: Arrivals, rate: float, cv: float | None) -> None:
    """Raises UsageError. `cv` is None where nobody gave one."""
    if not 0 < rate < float("inf"):
        raise UsageError(
            f"--rate: must be a positive number of requests per second, not {rate:g}",
            "llumctl bench --rate 2",
        )
    if cv is None:
        return
    if kind is not Arrivals.GAMMA:
        raise UsageError(
            f"--cv: {kind} arrivals have no coefficient of variation to choose",
            f"llumctl bench --arrivals gamma --cv {cv:g}",
        )
    if not 0 < cv < float("inf"):
        raise UsageError(
            f"--cv: must be a positive number, not {cv:g}",
            "llumctl bench --arrivals gamma --cv 4      or      llumctl bench --arrivals constant",
        )


def _gaps_s(kind: Arrivals, rate: float, cv: float, rng: Random) -> Iterator[float]:
    if kind is Arrivals.CONSTANT:
        while True:
            yield 1.0 / rate
    if kind is Arrivals.POISSON:
        while True:
            yield rng.expovariate(rate)
    shape = 1.0 / (cv * cv)
    while True:
        yield rng.gammavariate(shape, 1.0 / (rate * shape))


# -- lengths by name, as the simulator knows them, and endless draws of them ------------

DRAWN_AT_ONCE = 1024


def parse_lengths(text: str) -> tuple[Lengths, Lengths]:
    """Lengths of prompts and outputs from `M-M`, which means table 1 here, `zipf:M-M`, `sharegpt`,
    or `IN,OUT` in tokens.

    Raises:
        UsageError: it is none of these.
    """
    try:
        return lengths_named(text, "table1")
    except UnknownLengthsError as error:
        raise UsageError(
            f"--lengths: {error}", f"llumctl bench --lengths {error.nearest}"
        ) from error


def draw_lengths(prompts: Lengths, outputs: Lengths, rng: Random) -> Iterator[tuple[int, int]]:
    """Lengths of a prompt and of its outputs, in tokens, without end."""
    while True:
        shares = np.array([rng.random() for _ in range(2 * DRAWN_AT_ONCE)])
        yield from zip(
            prompts.at(shares[::2]).tolist(), outputs.at(shares[1::2]).tolist(), strict=True
        )


# -- recorded traffic, in every format that the simulator reads -------------------------


def read_trace_file(path: Path) -> Trace:
    """Raises UsageError: no such file, no such format, or a line that is none (FILE:LINE)."""
    try:
        return read_trace(path)
    except TraceError as error:
        raise UsageError(f"--trace: {error.message}", error.hint) from error
