"""A workload by its name: lengths drawn from a distribution, or a trace file."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from controller.sim.workload.lengths import UnknownLengthsError, lengths_named
from controller.sim.workload.sessions import HASH_TOKENS, KINDS, turns
from controller.sim.workload.trace import (
    Trace,
    TraceRequest,
    at_rate,
    faster,
    window,
    with_requests,
)
from controller.sim.workload.trace_files import read_trace

DIURNAL_STEPS = 96


@dataclass(frozen=True, slots=True)
class Shape:
    """Steps of (duration in s, rate as a multiple of the mean rate), one after the other for ever.

    Raises:
        ValueError: a step is not positive, or the mean of the multiples is not 1.
    """

    steps: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        if not all(0 < value < math.inf for step in self.steps for value in step):
            raise ValueError("the steps of a shape must have positive durations and rates")
        if not self.steps or not math.isclose(self._work_s, self.period_s, rel_tol=1e-9):
            raise ValueError("the rates of a shape must be 1 on average")

    @property
    def period_s(self) -> float:
        return math.fsum(duration_s for duration_s, _ in self.steps)

    @property
    def _work_s(self) -> float:
        return math.fsum(duration_s * rate for duration_s, rate in self.steps)

    def times_s(self, even_times_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """Turns arrival times at an even rate into arrival times of this shape. The new times
        ascend too, and at the end of each whole period the old and the new time are equal.
        """
        durations_s, rates = (np.array(column) for column in zip(*self.steps, strict=True))
        until_s = np.concatenate(([0.0], np.cumsum(durations_s)))
        work_s = np.concatenate(([0.0], np.cumsum(durations_s * rates)))
        work_s *= until_s[-1] / work_s[-1]
        periods = np.floor(even_times_s / until_s[-1])
        within_s = even_times_s - periods * until_s[-1]
        times_s: NDArray[np.float64] = periods * until_s[-1] + np.interp(within_s, work_s, until_s)
        return times_s


def constant() -> Shape:
    return Shape(((1.0, 1.0),))


def diurnal(period_s: float = 600.0, low: float = 0.25) -> Shape:
    """A sine from `low` times the mean rate up to 2 - `low` times and back, in 96 steps."""
    if not 0 < low <= 1:
        raise ValueError(f"the low of a diurnal shape must be above 0 and at most 1, not {low:g}")
    width_s = period_s / DIURNAL_STEPS
    middles = ((i + 0.5) / DIURNAL_STEPS for i in range(DIURNAL_STEPS))
    return Shape(
        tuple((width_s, 1 - (1 - low) * math.cos(2 * math.pi * middle)) for middle in middles)
    )


def burst(every_s: float = 300.0, length_s: float = 30.0, factor: float = 4.0) -> Shape:
    """At the end of every `every_s` seconds, the rate is `factor` times the mean rate for
    `length_s`. The remaining arrivals are spread evenly over the remaining time."""
    if not 0 < length_s < every_s or not 0 < factor * length_s < every_s:
        raise ValueError(
            f"bursts of {length_s:g} s at {factor:g} times the rate leave nothing of {every_s:g} s:"
            " length times factor must be less than the time from burst to burst"
        )
    quiet_s = every_s - length_s
    return Shape(((quiet_s, (every_s - factor * length_s) / quiet_s), (length_s, factor)))


SHAPES: Mapping[str, Shape] = MappingProxyType(
    {"constant": constant(), "diurnal": diurnal(), "burst": burst()}
)


def arrivals_s(
    num_requests: int, rate: float, cv: float, shape: Shape, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Ascending times, with `rate` requests per second on average.

    `cv` is the coefficient of variation of the gaps: 1 for Poisson arrivals, above 1 for arrivals
    in bursts (Gamma gaps), and 0 for equal gaps. With the same generator, a different rate
    stretches the same arrivals, and a larger number of requests begins with the same arrivals.

    Raises:
        ValueError: the rate is not positive, or the variation negative.
    """
    if not 0 < rate < math.inf:
        raise ValueError(f"the rate must be a positive number of requests per second, not {rate:g}")
    if not 0 <= cv < math.inf:
        raise ValueError(f"the coefficient of variation must be 0 or a positive number, not {cv:g}")
    return shape.times_s(np.cumsum(_gaps(num_requests, cv, rng)) / rate)


def _gaps(num_requests: int, cv: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Gaps of mean 1."""
    if cv == 0:
        return np.ones(num_requests)
    if cv == 1:
        return rng.standard_exponential(num_requests)
    inverse_shape = cv * cv
    return rng.standard_gamma(1 / inverse_shape, num_requests) * inverse_shape


HIGH_RANK = 1


def drawn_ranks(num_requests: int, high_fraction: float, rng: np.random.Generator) -> list[int]:
    """Rank 1 for a random `high_fraction` of the requests, 0 for the others. With the same
    generator, a larger fraction includes the requests of a smaller one.

    Raises:
        ValueError: the fraction is not from 0 to 1.
    """
    if not 0 <= high_fraction <= 1:
        raise ValueError(f"high_fraction must be a number from 0 to 1, not {high_fraction:g}")
    is_high: NDArray[np.bool_] = rng.random(num_requests) < high_fraction
    return [HIGH_RANK if high else 0 for high in is_high.tolist()]


def drawn_sessions(num_requests: int, num_clients: int, rng: np.random.Generator) -> list[str]:
    """A name per request out of a fixed number of clients: the n-th client sends in proportion to
    1 / n.

    Raises:
        ValueError: there is no client.
    """
    if num_clients < 1:
        raise ValueError(f"num_clients must be positive, not {num_clients}")
    names = [f"client-{i}" for i in range(num_clients)]
    weights = np.cumsum(1 / np.arange(1.0, num_clients + 1))
    places = np.searchsorted(weights, rng.random(num_requests) * weights[-1], side="right")
    return [names[place] for place in np.minimum(places, num_clients - 1).tolist()]


NUM_REQUESTS = 10_000
"""How many requests a drawn workload has by default: as many as each of the paper's traces."""
FILE_SUFFIXES = (".csv", ".jsonl", ".json")
Streams = Mapping[str, np.random.Generator]
# Each of these has a stream of random numbers of its own. A new one must be added at the end,
# because the order decides which stream each one has.
_STREAMS = ("arrivals", "prompts", "outputs", "ranks", "sessions")


def workload(
    name: str,
    *,
    rate: float | None = None,
    num_requests: int | None = None,
    seed: int = 1,
    cv: float | None = None,
    shape: Shape | None = None,
    high_fraction: float | None = None,
    num_clients: int | None = None,
    speed: float | None = None,
    start_s: float | None = None,
    duration_s: float | None = None,
) -> Trace:
    """The requests that this name and these options mean, the same for the same seed.

    Arrivals, prompts, outputs, ranks and sessions come from a random stream each: a different rate
    gives the same requests at different times, and a larger number of requests begins with the same
    requests.

    Lengths (`M-M` as the paper's authors drew them, `table1:M-M` as table 1 has them, `sharegpt`,
    `burstgpt`, `128,64`): `num_requests` (10,000) arrive at `rate`, with gaps of the coefficient of
    variation `cv` (1, Poisson), and the rate has a `shape` over time (constant). A `high_fraction`
    (0) of the requests has rank 1. `num_clients` clients send them (None: no request says who sent
    it).

    Sessions (`agents`, `chats`): the same, but sessions begin at `rate` divided by their mean
    number of turns, and a later turn comes when its client has the previous answer.

    A trace file (a path, or a name that ends in .csv, .jsonl or .json): its requests as they are.
    `start_s` and `duration_s` take a window of its time; `num_requests` cuts or repeats it; `speed`
    divides its gaps, or `rate` scales them to that many requests per second. With a `cv` or a
    `shape` the lengths arrive as drawn ones do, at `rate` or at the file's own mean rate. A
    `high_fraction` replaces its ranks, `num_clients` its sessions.

    Raises:
        ValueError: an unknown name (the message has the nearest one), a file that cannot be read or
            has a wrong line (FILE:LINE), an option out of bounds or without a meaning here.
    """
    streams = _streams(seed)
    if is_file(name):
        trace = _windowed(read_trace(Path(name)), start_s, duration_s)
        if num_requests is not None:
            trace = with_requests(trace, num_requests)
        if rate is not None and speed is not None:
            raise ValueError("rate and speed both say how fast the trace goes; give one of them")
        if cv is None and shape is None:
            trace = _scaled(trace, rate, speed)
        else:
            mean_rate = trace.rate * (speed or 1.0) if rate is None else rate
            times_s = _arrivals_s(len(trace.requests), mean_rate, cv, shape, streams)
            arriving = map(TraceRequest.arriving, trace.requests, times_s)
            trace = Trace(trace.name, list(arriving), trace.prefix_hash_tokens)
    else:
        for option, value in (("speed", speed), ("start_s", start_s), ("duration_s", duration_s)):
            if value is not None:
                raise ValueError(f"{option} is for trace files; {name} has rate and num_requests")
        trace = _drawn(name, rate, num_requests, cv, shape, seed, streams)
    return _with_clients(trace, high_fraction, num_clients, streams)


def is_file(name: str) -> bool:
    return "/" in name or name.lower().endswith(FILE_SUFFIXES)


def _streams(seed: int) -> Streams:
    if seed < 0:
        raise ValueError(f"the seed must not be negative, not {seed}")
    return {
        name: np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(key,))))
        for key, name in enumerate(_STREAMS)
    }


def _windowed(trace: Trace, start_s: float | None, duration_s: float | None) -> Trace:
    if start_s is None and duration_s is None:
        return trace
    return window(trace, start_s or 0.0, math.inf if duration_s is None else duration_s)


def _scaled(trace: Trace, rate: float | None, speed: float | None) -> Trace:
    if rate is not None:
        return at_rate(trace, rate)
    return trace if speed is None else faster(trace, speed)


def _drawn(
    name: str,
    rate: float | None,
    num_requests: int | None,
    cv: float | None,
    shape: Shape | None,
    seed: int,
    streams: Streams,
) -> Trace:
    num = NUM_REQUESTS if num_requests is None else num_requests
    if num < 1:
        raise ValueError(f"num_requests must be positive, not {num}")
    if name in KINDS:
        mean_turns = KINDS[name].mean_turns
        begins_s = _arrivals_s(num, _needed(rate, name) / mean_turns, cv, shape, streams)
        return Trace(name, list(islice(turns(name, begins_s, seed), num)), HASH_TOKENS)
    try:
        prompts, outputs = lengths_named(name, "zipf")
    except UnknownLengthsError as error:
        raise ValueError(
            f"there is no workload {name[:40]!r}; did you mean {error.nearest}? A trace file has a"
            f" slash in its path or ends in {', '.join(FILE_SUFFIXES)}"
        ) from error
    times_s = _arrivals_s(num, _needed(rate, name), cv, shape, streams)
    prompt_lengths = prompts.at(streams["prompts"].random(num)).tolist()
    output_lengths = outputs.at(streams["outputs"].random(num)).tolist()
    return Trace(name, list(map(TraceRequest, times_s, prompt_lengths, output_lengths)))


def _needed(rate: float | None, name: str) -> float:
    if rate is None:
        raise ValueError(f"{name} has no rate of its own: give a rate in requests per second")
    return rate


def _arrivals_s(
    num_requests: int, rate: float, cv: float | None, shape: Shape | None, streams: Streams
) -> list[float]:
    arrivals = arrivals_s(
        num_requests,
        rate,
        1.0 if cv is None else cv,
        constant() if shape is None else shape,
        streams["arrivals"],
    )
    times_s: list[float] = arrivals.tolist()
    return times_s


def _with_clients(
    trace: Trace, high_fraction: float | None, num_clients: int | None, streams: Streams
) -> Trace:
    if high_fraction is None and num_clients is None:
        return trace
    if num_clients is not None and any(each.gap_s is not None for each in trace.requests):
        raise ValueError(f"{trace.name} has sessions of its own; leave out num_clients")
    num = len(trace.requests)
    ranks = (
        [request.rank for request in trace.requests]
        if high_fraction is None
        else drawn_ranks(num, high_fraction, streams["ranks"])
    )
    sessions = (
        [request.session for request in trace.requests]
        if num_clients is None
        else drawn_sessions(num, num_clients, streams["sessions"])
    )
    requests = [
        request.sent_by(rank, session)
        for request, rank, session in zip(trace.requests, ranks, sessions, strict=True)
    ]
    return Trace(trace.name, requests, trace.prefix_hash_tokens)
