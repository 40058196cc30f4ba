"""A trace: the requests that clients send, in order of their arrivals. Functions here change its
rate, cut a window of its time, or change its number of requests.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from controller.core.value import value


@value
class TraceRequest:
    """`arrival_s` counts from the trace's start. The engine ends the request after exactly
    `num_output_tokens` tokens. `rank` is the scheduling priority; larger goes first.

    `session` names the client or the conversation that sends it; empty: unknown.

    Each of `prefix_hashes` names the prompt from its beginning to the end of one more block of
    `Trace.prefix_hash_tokens` tokens, the last block possibly cut by the prompt's end: two prompts
    with an equal hash agree in all tokens up to the end of that block. Empty: the prompt shares
    nothing.

    `gap_s`: the request is a later turn of its session. It arrives this long after the end of the
    answer to the session's previous request in the trace, and `arrival_s` is only an estimate. If
    it is None or no request comes before, the request arrives at `arrival_s`. `answer_hashes` go on
    where the hashes of the prompt's whole blocks end: they name prompt and answer together, with
    which the prompt of the next turn begins.
    """

    arrival_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    rank: int = 0
    session: str = ""
    prefix_hashes: tuple[int, ...] = ()
    answer_hashes: tuple[int, ...] = ()
    gap_s: float | None = None

    def arriving(self, arrival_s: float) -> "TraceRequest":
        """The same request with a different arrival time."""
        return TraceRequest(
            arrival_s,
            self.num_prompt_tokens,
            self.num_output_tokens,
            self.rank,
            self.session,
            self.prefix_hashes,
            self.answer_hashes,
            self.gap_s,
        )

    def sent_by(self, rank: int, session: str) -> "TraceRequest":
        """The same request with a different rank and client."""
        return TraceRequest(
            self.arrival_s,
            self.num_prompt_tokens,
            self.num_output_tokens,
            rank,
            session,
            self.prefix_hashes,
            self.answer_hashes,
            self.gap_s,
        )


@dataclass(frozen=True, slots=True)
class Trace:
    """`requests` ascend by arrival; the place in the list is a request's identity.

    A request takes about 160 bytes, and 8 bytes for each prefix hash in addition to the hash
    itself.

    Raises:
        ValueError: there is no request, they do not ascend, or hashes come without their size.
    """

    name: str
    requests: list[TraceRequest]
    prefix_hash_tokens: int = 0
    """Tokens per prefix hash; 0: there are no hashes."""

    def __post_init__(self) -> None:
        if not self.requests:
            raise ValueError(f"the trace {self.name} holds no request")
        if any(later.arrival_s < r.arrival_s for r, later in pairwise(self.requests)):
            raise ValueError(f"the requests of {self.name} must ascend by arrival_s")
        if self.prefix_hash_tokens < 1 and any(r.prefix_hashes for r in self.requests):
            raise ValueError(
                f"{self.name} has prefix hashes, so prefix_hash_tokens must be positive"
            )

    @property
    def span_s(self) -> float:
        """The time from the first arrival to the last one."""
        return self.requests[-1].arrival_s - self.requests[0].arrival_s

    @property
    def rate(self) -> float:
        """Requests per second on average; 0 if all requests arrive at once."""
        return (len(self.requests) - 1) / self.span_s if self.span_s > 0 else 0.0


class Turn(Protocol):
    @property
    def session(self) -> str: ...
    @property
    def gap_s(self) -> float | None: ...


def later_turns(requests: Iterable[Turn]) -> dict[int, int]:
    """For each request that a later turn of its session follows: the places of both. All other
    requests arrive at their times."""
    later: dict[int, int] = {}
    latest: dict[str, int] = {}
    for place, request in enumerate(requests):
        before = latest.get(request.session)
        if request.gap_s is not None and before is not None:
            later[before] = place
        if request.session:
            latest[request.session] = place
    return later


def faster(trace: Trace, speed: float) -> Trace:
    """The trace with the gaps between arrivals divided by `speed`; the requests stay as they are,
    and so does the time that clients take between two turns.

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
    """The trace with its gaps scaled so that `rate` requests per second arrive on average.

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
    """The requests that arrive within `duration_s` from `start_s` on; their arrival times then
    count from `start_s`.

    Raises:
    ValueError: no request arrives in this window.
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

    A repetition has the same sessions, but its prompts share nothing with an earlier one: otherwise
    the prefix cache would have the whole prompts, and they would cost nothing.

    Raises:
        ValueError: the number is not positive.
    """
    if num_requests < 1:
        raise ValueError(f"num_requests must be positive, not {num_requests}")
    once = trace.requests
    requests = once[:num_requests]
    if len(requests) < num_requests:
        period_s = trace.span_s + (1 / trace.rate if trace.rate else 0.0)
        num_hashes = 1 + max((max(hashes_of(r), default=0) for r in once), default=0)
        repetition = 0
        while len(requests) < num_requests:
            repetition += 1
            shift_s, shift = repetition * period_s, repetition * num_hashes
            # Equal hashes share one int object, to save memory: a million Mooncake requests have 30
            # million hashes, of which only 10 million are distinct.
            shifted: dict[int, int] = {}
            for request in once[: num_requests - len(requests)]:
                for number in hashes_of(request):
                    shifted.setdefault(number, number + shift)
                requests.append(_repeated(request, shift_s, shifted))
    return Trace(trace.name, requests, trace.prefix_hash_tokens)


def hashes_of(request: TraceRequest) -> tuple[int, ...]:
    """The hashes of the prompt and, if they are known, of the answer."""
    return request.prefix_hashes + request.answer_hashes


def _repeated(request: TraceRequest, shift_s: float, hashes: dict[int, int]) -> TraceRequest:
    return TraceRequest(
        request.arrival_s + shift_s,
        request.num_prompt_tokens,
        request.num_output_tokens,
        request.rank,
        request.session,
        tuple([hashes[number] for number in request.prefix_hashes]),
        tuple([hashes[number] for number in request.answer_hashes]),
        request.gap_s,
    )
