"""A trace at another rate, in a window of its time, or with another number of requests."""

import math

from controller.sim.workload.request import Trace, TraceRequest


def faster(trace: Trace, speed: float) -> Trace:
    """The gaps between arrivals divided by `speed`; the requests stay as they are.

    Raises:
        ValueError: the speed is not positive.
    """
    if not 0 < speed < math.inf:
        raise ValueError(f"the speed must be a positive factor, not {speed:g}")
    if speed == 1:
        return trace
    moved = [request.arriving(request.arrival_s / speed) for request in trace.requests]
    return Trace(trace.name, moved, trace.prefix_hash_tokens)


def at_rate(trace: Trace, rate: float) -> Trace:
    """The gaps scaled so that `rate` requests per second arrive in the mean.

    Raises:
        ValueError: the rate is not positive, or all requests arrive at once.
    """
    if not 0 < rate < math.inf:
        raise ValueError(f"the rate must be a positive number of requests per second, not {rate:g}")
    if not trace.rate:
        raise ValueError(
            f"all requests of {trace.name} arrive at once, so no rate can be made of it;"
            " draw its arrivals anew by a cv"
        )
    return faster(trace, rate / trace.rate)


def window(trace: Trace, start_s: float, duration_s: float) -> Trace:
    """The requests that arrive from `start_s` on for `duration_s`; `start_s` becomes 0.

    Raises:
        ValueError: none arrives there.
    """
    kept = [
        request.arriving(request.arrival_s - start_s)
        for request in trace.requests
        if start_s <= request.arrival_s < start_s + duration_s
    ]
    if not kept:
        raise ValueError(
            f"no request of {trace.name} arrives in the {duration_s:g} s from {start_s:g} s on;"
            f" its last one arrives at {trace.requests[-1].arrival_s:g} s"
        )
    return Trace(trace.name, kept, trace.prefix_hash_tokens)


def with_requests(trace: Trace, num_requests: int) -> Trace:
    """The first `num_requests`; a trace that has fewer begins anew, one mean gap after its end.

    A repetition has the same sessions, but its prompts share nothing with an earlier one: found in
    a prefix cache, all of them would cost nothing.

    Raises:
        ValueError: the number is not positive.
    """
    if num_requests < 1:
        raise ValueError(f"num_requests must be positive, not {num_requests}")
    once = trace.requests
    requests = once[:num_requests]
    if len(requests) < num_requests:
        period_s = trace.span_s + (1 / trace.rate if trace.rate else 0.0)
        num_hashes = 1 + max((max(r.prefix_hashes, default=0) for r in once), default=0)
        repetition = 0
        while len(requests) < num_requests:
            repetition += 1
            shift_s, shift = repetition * period_s, repetition * num_hashes
            # Equal hashes are one object in memory: a million of Mooncake's requests have 30
            # million hashes, a third of them different.
            shifted: dict[int, int] = {}
            for request in once[: num_requests - len(requests)]:
                for number in request.prefix_hashes:
                    shifted.setdefault(number, number + shift)
                requests.append(_repeated(request, shift_s, shifted))
    return Trace(trace.name, requests, trace.prefix_hash_tokens)


def _repeated(request: TraceRequest, shift_s: float, hashes: dict[int, int]) -> TraceRequest:
    return TraceRequest(
        request.arrival_s + shift_s,
        request.num_prompt_tokens,
        request.num_output_tokens,
        request.rank,
        request.session,
        tuple([hashes[number] for number in request.prefix_hashes]),
    )
