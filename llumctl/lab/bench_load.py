"""Plans the load: all requests are known before the first one is sent, and so are their times,
except for the later turns of sessions.

Arrivals, lengths, levels and prompts each have a stream of random numbers, derived from one seed.
So with a different rate the same requests are sent at different times.
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
from controller.sim.workload.sessions import HASH_TOKENS as SESSION_HASH_TOKENS
from controller.sim.workload.sessions import KINDS, turns
from controller.sim.workload.trace import Trace, TraceRequest
from controller.sim.workload.trace_files import TraceError, read_trace
from llumctl.arguments import within
from llumctl.lab.option_values import Arrivals


@dataclass(frozen=True, slots=True)
class Level:
    """A priority level. `priority`: the number that a request to vLLM has, which is minus the rank:
    lower goes first."""

    name: str
    priority: int


Shares = Mapping[Level, float]
"""Shares of the requests by level; they sum to 1."""

DEFAULT_LEVEL = Level("normal", 0)


MAX_REQUESTS = 1_000_000
TOKEN_IDS = range(300, 1000)
"""Token ids of prompts. Every vocabulary has them, and they come after the special tokens and
single bytes with which many vocabularies begin."""


@dataclass(frozen=True, slots=True)
class Load:
    """The load that the command line asks for. `rate`: requests per second. The load ends at
    `duration_s` or after `num_requests`, whichever comes first. A `trace` is replayed `speed` times
    as fast as it was recorded; then rate, arrivals, cv and lengths are not used."""

    rate: float = 1.0
    arrivals: Arrivals = Arrivals.POISSON
    cv: float | None = None
    lengths: str = "S-S"
    trace: Path | None = None
    speed: float = 1.0
    duration_s: float | None = 30.0
    num_requests: int | None = None
    max_tokens: int | None = None
    """Prompts and outputs are shortened to this length."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """A request that is due `at_s` after the start. `priority` is vLLM's: lower goes first."""

    index: int
    at_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    level: str = ""
    priority: int = 0
    prefix_hashes: tuple[int, ...] = ()
    prefix_hash_tokens: int = 0
    session: str = ""
    gap_s: float | None = None
    """As in `TraceRequest`: a later turn is due this long after the answer to the one before."""


@dataclass(frozen=True, slots=True)
class Workload:
    """The planned requests. `num_shortened`: how many were longer than the limit or the model's
    context."""

    requests: tuple[Request, ...]
    num_shortened: int


@dataclass(frozen=True, slots=True)
class Rows:
    """Times and lengths of requests. Only the requests of a trace have an end; ranks of a trace are
    not replayed. `prefix_hash_tokens`: as in a trace."""

    requests: Iterator[TraceRequest]
    prefix_hash_tokens: int = 0


def rows(load: Load) -> Rows:
    """The requests of a load before they are fitted to a model.

    Raises:
        UsageError: the trace, the rate or the name of the lengths is wrong; raised at once.
    """
    if load.trace is not None:
        trace = read_trace_file(load.trace)
        faster = (request.arriving(request.arrival_s / load.speed) for request in trace.requests)
        return Rows(faster, trace.prefix_hash_tokens)
    check_arrivals(load.arrivals, load.rate, load.cv)
    arrival_rng = Random(f"{load.seed}/arrivals")
    if load.lengths in KINDS:
        session_rate = load.rate / KINDS[load.lengths].mean_turns
        begins_s = arrival_times_s(load.arrivals, session_rate, load.cv, arrival_rng)
        return Rows(turns(load.lengths, begins_s, load.seed), SESSION_HASH_TOKENS)
    prompts, outputs = parse_lengths(load.lengths)
    rng = Random(f"{load.seed}/lengths")
    times_s = arrival_times_s(load.arrivals, load.rate, load.cv, arrival_rng)
    drawn = zip(times_s, draw_lengths(prompts, outputs, rng), strict=False)
    return Rows(TraceRequest(at_s, *tokens) for at_s, tokens in drawn)


def plan(load: Load, rows: Rows, shares: Shares, max_model_len: int | None) -> Workload:
    """Plans the requests for a model. Raises UsageError if there is no request, or far too many."""
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
                f"--requests: more than {MAX_REQUESTS:,} in one run",
                "llumctl bench --requests 10000",
            )
        fitted = fit(row, load.max_tokens, max_model_len)
        num_shortened += fitted != row
        (level,) = level_rng.choices(names, weights)
        requests.append(_request(len(requests), fitted, level, rows.prefix_hash_tokens))
    if not requests:
        raise UsageError(
            f"--duration: no request falls into the first {load.duration_s:g} s",
            "llumctl bench --requests 10",
        )
    return Workload(tuple(requests), num_shortened)


def fit(row: TraceRequest, max_tokens: int | None, max_model_len: int | None) -> TraceRequest:
    """Shortens a request that is too long. The prompt is shortened rather than the output, because
    the output takes most of a request's time."""
    prompt, outputs = row.num_prompt_tokens, row.num_output_tokens
    if max_tokens is not None:
        prompt, outputs = min(prompt, max_tokens), min(outputs, max_tokens)
    if max_model_len is not None:
        outputs = min(outputs, max_model_len - 1)
        prompt = min(prompt, max_model_len - outputs)
    return replace(row, num_prompt_tokens=prompt, num_output_tokens=outputs)


def prompt(seed: int, request: Request, before: Sequence[int] = ()) -> list[int]:
    """The token ids of a prompt. If a trace has prefix hashes, equal hashes give equal tokens.
    `before`: the prompt and the answer of the session's turn before. The prompt begins with them,
    unless it is shorter: then the session has begun a new text."""
    ids = list(before) if len(before) <= request.num_prompt_tokens else []
    for number in () if ids else request.prefix_hashes:
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
        row.session,
        row.gap_s,
    )


# -- priority levels: the share of each in the requests ---------------------------------


def parse_shares(wanted: Sequence[str], known: Sequence[Level]) -> Shares:
    """Parses `high=0.1`, or `-1=0.1` with vLLM's number of the priority. The level of priority 0
    gets the remaining share.

    Raises:
        UsageError: a level is unknown, a share is not a number from 0 to 1, or the shares sum to
            more than 1.
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
            f"--priority: the share in {text[:40]!r} is not a number from 0 to 1", _example(known)
        )
    return share


def _example(known: Sequence[Level]) -> str:
    first = min(known, key=lambda level: level.priority, default=Level("high", -1))
    return f"llumctl bench --priority {first.name}=0.1"


# -- arrivals: the gaps between requests, without end -----------------------------------


def arrival_times_s(kind: Arrivals, rate: float, cv: float | None, rng: Random) -> Iterator[float]:
    """The seconds after the start at which requests are due, without end. `rate` in 1/s."""
    now_s = 0.0
    for gap_s in _gaps_s(kind, rate, 1.0 if cv is None else cv, rng):
        now_s += gap_s
        yield now_s


def check_arrivals(kind: Arrivals, rate: float, cv: float | None) -> None:
    """Raises UsageError for a wrong rate or CV. `cv` is None if none was given."""
    within(0, rate, "--rate", above=True)
    if cv is None:
        return
    if kind is not Arrivals.GAMMA:
        raise UsageError(
            f"--cv: {kind} arrivals have no coefficient of variation to choose",
            f"llumctl bench --arrivals gamma --cv {cv:g}",
        )
    within(0, cv, "--cv", above=True)


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


# -- lengths by name, as in the simulator, and draws from them without end --------------

DRAWN_AT_ONCE = 1024


def parse_lengths(text: str) -> tuple[Lengths, Lengths]:
    """The lengths of prompts and outputs that a text names: `M-M` (the paper's table 1),
    `zipf:M-M`, `sharegpt`, or `IN,OUT` in tokens.

    Raises:
        UsageError: the text is none of these.
    """
    try:
        return lengths_named(text, "table1")
    except UnknownLengthsError as error:
        raise UsageError(
            f"--lengths: {error}", f"llumctl bench --lengths {error.nearest}"
        ) from error


def draw_lengths(prompts: Lengths, outputs: Lengths, rng: Random) -> Iterator[tuple[int, int]]:
    """Draws pairs of lengths, of a prompt and of its output, in tokens, without end."""
    while True:
        shares = np.array([rng.random() for _ in range(2 * DRAWN_AT_ONCE)])
        yield from zip(
            prompts.at(shares[::2]).tolist(), outputs.at(shares[1::2]).tolist(), strict=True
        )


# -- recorded traffic, in every format that the simulator reads -------------------------


def read_trace_file(path: Path) -> Trace:
    """Reads a trace. Raises UsageError if the file or its format is unknown, or for a wrong line
    (FILE:LINE)."""
    try:
        return read_trace(path)
    except TraceError as error:
        raise UsageError(f"--trace: {error.message}", error.hint) from error
