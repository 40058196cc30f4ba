"""Requests in a run: how they are made from a trace, what engines get of them, and when their
clients get tokens, without looking at each request in each step.
"""

from bisect import bisect_right
from collections.abc import Callable

from controller.model.engine_state import NEVER, ModelRequest, Segment
from controller.sim.event_queue import EventQueue
from controller.sim.workload.trace import Trace, TraceRequest, hashes_of, later_turns


class RequestRun:
    """One request: what its client asked for, and what the client has seen so far. `number`: its
    place in the trace. Times are virtual, in seconds, and None before they have come.
    `decoding_since_s` is None unless the request decodes: it then is the time of the token up to
    which `longest_pause_s` is known.
    `traced` is what the client sent; `request` is what engines get of it, without the rank if the
    policy ignores ranks."""

    __slots__ = (
        "changed_over",
        "decoding_since_s",
        "downtimes_s",
        "evicted_s",
        "finished_s",
        "first_token_s",
        "hop",
        "instance_id",
        "last_token_s",
        "longest_pause_s",
        "loss_s",
        "moves",
        "num_evictions",
        "num_overtaking",
        "number",
        "overtaken_s",
        "overtaken_since_s",
        "request",
        "traced",
    )

    def __init__(self, number: int, request: ModelRequest, traced: TraceRequest) -> None:
        self.number = number
        self.request = request
        self.traced = traced
        self.instance_id = ""
        self.hop = 0
        """The hop in which the request runs, as counted by the machines of its moves."""
        self.first_token_s: float | None = None
        self.last_token_s: float | None = None
        self.finished_s: float | None = None
        self.decoding_since_s: float | None = None
        self.evicted_s: float | None = None
        self.longest_pause_s = 0.0
        self.loss_s = 0.0
        self.num_evictions = 0
        self.num_overtaking = 0
        """How many later requests of at most its rank were dispatched while it waited at the
        controller."""
        self.overtaken_since_s: float | None = None
        self.overtaken_s = 0.0
        """The time from the first of these dispatches until the request's own dispatch."""
        self.moves: list[tuple[str, float]] = []
        """The instances that the request left, and when."""
        self.changed_over = False
        """Whether it moved while it ran and has not got a token since."""
        self.downtimes_s: list[float] = []
        """For each move while the request ran: the time from the latest token before the move to
        the first token after it."""

    def overtaken(self, time_s: float) -> None:
        self.num_overtaking += 1
        if self.overtaken_since_s is None:
            self.overtaken_since_s = time_s

    def dispatched(self, time_s: float) -> None:
        if self.overtaken_since_s is not None:
            self.overtaken_s = time_s - self.overtaken_since_s

    def token(self, time_s: float) -> None:
        """Notes a token that did not come from a plain decode step."""
        if self.first_token_s is None:
            self.first_token_s = time_s
        if self.last_token_s is not None:
            pause_s = time_s - self.last_token_s
            self.longest_pause_s = max(self.longest_pause_s, pause_s)
            if self.changed_over:
                self.downtimes_s.append(pause_s)
        self.changed_over = False
        if self.evicted_s is not None:
            self.loss_s += time_s - self.evicted_s
            self.evicted_s = None
        self.last_token_s = time_s

    def evict(self, time_s: float) -> None:
        self.changed_over = False  # from here on the request waits because of its eviction
        self.num_evictions += 1
        if self.evicted_s is None:
            self.evicted_s = time_s


# -- tokens ----------------------------------------------------------------------------------------
#
# All decoding requests of an instance get their tokens at the same moments. So those moments, and
# the gaps between them, are noted once per batch: a request notes only its first token in the batch
# and, when it leaves, the gaps since then.


class Gaps:
    """The longest pause of a stream, without looking at each of its tokens. A gap is stored only as
    long as no later gap exceeds it, because the others do not matter."""

    def __init__(self) -> None:
        self._ends_s: list[float] = []
        self._gaps_s: list[float] = []

    def add(self, end_s: float, gap_s: float) -> None:
        """`end_s` must not be before the `end_s` of earlier gaps."""
        ends_s, gaps_s = self._ends_s, self._gaps_s
        while gaps_s and gaps_s[-1] <= gap_s:
            gaps_s.pop()
            ends_s.pop()
        ends_s.append(end_s)
        gaps_s.append(gap_s)

    def longest_since(self, time_s: float) -> float:
        """The longest of the gaps that ended after `time_s`; 0 if none did."""
        place = bisect_right(self._ends_s, time_s)
        return self._gaps_s[place] if place < len(self._gaps_s) else 0.0


class TokenTimes:
    """When the requests of one batch get their tokens."""

    def __init__(self) -> None:
        self._gaps = Gaps()
        self._last_s = 0.0
        self._joined: list[RequestRun] = []
        """Requests that decode from the next step on."""

    def join(self, run: RequestRun, now_s: float) -> None:
        run.decoding_since_s = now_s
        self._joined.append(run)

    def prefilled(self, run: RequestRun, now_s: float) -> None:
        """Notes that the request gets the token with which its prefill ends, and joins the
        batch."""
        run.token(now_s)
        self.join(run, now_s)

    def decoded(self, end_s: float) -> None:
        """Notes the end of a step in which all decoding requests got a token."""
        self._gaps.add(end_s, end_s - self._last_s)
        self._last_s = end_s
        if self._joined:
            for run in self._joined:
                run.token(end_s)
                run.decoding_since_s = end_s
            self._joined.clear()

    def decoded_on(self, end_s: float, longest_s: float) -> None:
        """Notes that more such steps followed. The longest of them took `longest_s`, and the last
        one ended at `end_s`."""
        self._gaps.add(end_s, longest_s)
        self._last_s = end_s

    def leave(self, run: RequestRun) -> None:
        """Notes that the request leaves the batch after the step that has just ended. Does nothing
        if the request does not decode."""
        since_s = run.decoding_since_s
        if since_s is None:
            return
        if run in self._joined:
            self._joined.remove(run)
        else:
            run.longest_pause_s = max(run.longest_pause_s, self._gaps.longest_since(since_s))
            run.last_token_s = self._last_s
        run.decoding_since_s = None


# -- arrivals --------------------------------------------------------------------------------------


class BlockNames:
    """Names the full KV blocks of one request by the trace's prefix hashes, so that prompts that
    begin alike share blocks. Blocks that no hash covers, such as most outputs, are the request's
    own. It is the request's `segment_at`."""

    __slots__ = ("_block_size", "_hash_tokens", "_num_named", "_prefix_hashes", "_request")

    def __init__(
        self, request_id: str, traced: TraceRequest, hash_tokens: int, block_size: int
    ) -> None:
        self._request = request_id
        self._prefix_hashes = hashes_of(traced)
        self._hash_tokens = hash_tokens
        self._block_size = block_size
        num_known = traced.num_prompt_tokens
        if traced.answer_hashes:
            num_known += traced.num_output_tokens
        self._num_named = min(num_known, len(self._prefix_hashes) * hash_tokens) // block_size
        """How many blocks, from the first one on, have names of the trace."""

    def __call__(self, index: int) -> Segment:
        if index >= self._num_named:
            return self._request, self._num_named, NEVER
        size, hash_tokens = self._block_size, self._hash_tokens
        place = ((index + 1) * size - 1) // hash_tokens
        end = min((place + 1) * hash_tokens // size, self._num_named)
        return self._prefix_hashes[place], place * hash_tokens // size, end


def model_request(
    number: int, traced: TraceRequest, rank: int, hash_tokens: int, block_size: int
) -> ModelRequest:
    """The `number`-th request of a trace. A request without hashes shares nothing, so its blocks
    need no names: the model is faster without names."""
    request_id = f"r-{number}"
    return ModelRequest(
        request_id,
        traced.num_prompt_tokens,
        traced.num_output_tokens,
        rank,
        traced.arrival_s,
        BlockNames(request_id, traced, hash_tokens, block_size) if traced.prefix_hashes else None,
    )


class Arrivals:
    """When the requests of a trace arrive: the first turns of all sessions at their times, and each
    later turn after the answer to the previous one. `arrive` is called with a request's number and
    the request. Only the next first turn is scheduled at a time, because a trace may have a million
    requests."""

    def __init__(
        self, events: EventQueue, trace: Trace, arrive: Callable[[int, TraceRequest], None]
    ) -> None:
        self.num_to_come = len(trace.requests)
        """How many requests have not arrived yet."""
        self._events = events
        self._arrive = arrive
        self._requests = trace.requests
        self._later = later_turns(trace.requests)
        waiting = set(self._later.values())
        self._first = (each for each in enumerate(trace.requests) if each[0] not in waiting)
        self._schedule_next()

    def answered(self, number: int) -> None:
        """Notes that the request has ended: the turn that follows it comes in a while."""
        later = self._later.pop(number, None)
        if later is not None:
            request = self._requests[later]
            assert request.gap_s is not None
            arrival_s = self._events.now_s + request.gap_s
            self._events.at(arrival_s, lambda: self._come(later, request.arriving(arrival_s)))

    def failed(self, number: int) -> int:
        """Notes that the request has failed. Returns how many turns therefore never come."""
        num_lost = 0
        while (later := self._later.pop(number, None)) is not None:
            number, num_lost = later, num_lost + 1
        self.num_to_come -= num_lost
        return num_lost

    def _schedule_next(self) -> None:
        coming = next(self._first, None)
        if coming is not None:
            self._events.at(coming[1].arrival_s, lambda: self._come_first(*coming))

    def _come_first(self, number: int, request: TraceRequest) -> None:
        self._come(number, request)
        self._schedule_next()

    def _come(self, number: int, request: TraceRequest) -> None:
        self.num_to_come -= 1
        self._arrive(number, request)
