"""A workload by its name: lengths drawn from a distribution, or a trace file."""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from controller.sim.workload.arrivals import (
    Shape,
    arrivals_s,
    constant,
    drawn_ranks,
    drawn_sessions,
)
from controller.sim.workload.lengths import UnknownLengthsError, lengths_named
from controller.sim.workload.trace import (
    Trace,
    TraceRequest,
    at_rate,
    faster,
    window,
    with_requests,
)
from controller.sim.workload.trace_files import read_trace

NUM_REQUESTS = 10_000
"""As many as each of the paper's traces has."""
FILE_SUFFIXES = (".csv", ".jsonl", ".json")
Streams = Mapping[str, np.random.Generator]
# Each has a stream of random numbers of its own. New ones come last: the order fixes the streams.
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

    Arrivals, prompts, outputs, ranks and sessions come from a random stream each: another rate has
    the same requests at other times, and more requests begin with the same ones.

    Lengths (`M-M` as the paper's authors drew them, `table1:M-M` as table 1 has them, `sharegpt`,
    `burstgpt`, `128,64`): `num_requests` (10,000) arrive at `rate`, with gaps of the coefficient of
    variation `cv` (1, Poisson), and the rate has a `shape` over time (constant). A `high_fraction`
    (0) has rank 1, and `num_clients` send them (None: no request says who sent it).

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
        trace = _drawn(name, rate, num_requests, cv, shape, streams)
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
    streams: Streams,
) -> Trace:
    try:
        prompts, outputs = lengths_named(name, "zipf")
    except UnknownLengthsError as error:
        raise ValueError(
            f"there is no workload {name[:40]!r}; did you mean {error.nearest}? A trace file has a"
            f" slash in its path or ends in {', '.join(FILE_SUFFIXES)}"
        ) from error
    num = NUM_REQUESTS if num_requests is None else num_requests
    if num < 1:
        raise ValueError(f"num_requests must be positive, not {num}")
    if rate is None:
        raise ValueError(f"{name} has no rate of its own: give a rate in requests per second")
    times_s = _arrivals_s(num, rate, cv, shape, streams)
    prompt_lengths = prompts.at(streams["prompts"].random(num)).tolist()
    output_lengths = outputs.at(streams["outputs"].random(num)).tolist()
    return Trace(name, list(map(TraceRequest, times_s, prompt_lengths, output_lengths)))


def _arrivals_s(
    num_requests: int, rate: float, cv: float | None, shape: Shape | None, streams: Streams
) -> list[float]:
    found = arrivals_s(
        num_requests,
        rate,
        1.0 if cv is None else cv,
        constant() if shape is None else shape,
        streams["arrivals"],
    )
    times_s: list[float] = found.tolist()
    return times_s


def _with_clients(
    trace: Trace, high_fraction: float | None, num_clients: int | None, streams: Streams
) -> Trace:
    if high_fraction is None and num_clients is None:
        return trace
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
