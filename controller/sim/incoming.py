"""Requests of a trace: when they arrive, and what the engine model takes of each."""

from collections.abc import Callable, Hashable

from controller.model.engine_state import ModelRequest
from controller.sim.event_queue import EventQueue
from controller.sim.workload.request import Trace, TraceRequest


class BlockNames:
    """Names the full KV blocks of one request by the trace's prefix hashes, so that prompts that
    begin alike share blocks. What no hash covers, as all outputs, is the request's own."""

    __slots__ = ("_block_size", "_hash_tokens", "_num_prompt_tokens", "_prefix_hashes", "_request")

    def __init__(
        self, request_id: str, traced: TraceRequest, hash_tokens: int, block_size: int
    ) -> None:
        self._request = request_id
        self._num_prompt_tokens = traced.num_prompt_tokens
        self._prefix_hashes = traced.prefix_hashes
        self._hash_tokens = hash_tokens
        self._block_size = block_size

    def __call__(self, index: int) -> Hashable:
        end = (index + 1) * self._block_size
        if end <= self._num_prompt_tokens:
            place = (end - 1) // self._hash_tokens
            if place < len(self._prefix_hashes):
                return self._prefix_hashes[place], index
        return self._request, index


def model_request(
    number: int, traced: TraceRequest, rank: int, hash_tokens: int, block_size: int
) -> ModelRequest:
    """The `number`-th request of a trace. A request without hashes shares nothing, so that its
    blocks need no names: the model is faster without."""
    request_id = f"r-{number}"
    return ModelRequest(
        request_id,
        traced.num_prompt_tokens,
        traced.num_output_tokens,
        rank,
        traced.arrival_s,
        BlockNames(request_id, traced, hash_tokens, block_size) if traced.prefix_hashes else None,
    )


def schedule_arrivals(
    events: EventQueue, trace: Trace, arrive: Callable[[int, TraceRequest], None]
) -> None:
    """Calls `arrive` with the number of each request and the request at its time. Only the next one
    is scheduled at a time: a trace may have a million."""
    coming = enumerate(trace.requests)

    def schedule_next() -> None:
        found = next(coming, None)
        if found is not None:
            events.at(found[1].arrival_s, lambda: come(*found))

    def come(number: int, traced: TraceRequest) -> None:
        arrive(number, traced)
        schedule_next()

    schedule_next()
