"""A request as the model sees it: what its client asks for, and how far it has got."""

from collections.abc import Callable, Hashable

from controller.core.value import value
from controller.model.block_pool import CachedBlock

NEVER = 1 << 62


@value
class ModelRequest:
    """What the client asks for.

    The model ends it after exactly `max_output_tokens` tokens (at least 1), or earlier where
    the engine's `max_model_len` ends it. `rank` is the scheduling priority; larger goes first.

    `block_hash(i)` names the content of its i-th full block, counted over prompt and outputs:
    equal for two requests if, and only if, they agree in all tokens up to the end of that block.
    It is asked for full blocks only. None: nothing of this request is cached or found in a cache.
    """

    request_id: str
    num_prompt_tokens: int
    max_output_tokens: int
    rank: int = 0
    arrival_time_s: float = 0.0
    block_hash: Callable[[int], Hashable] | None = None


class RequestState:
    """How far a request has got. `num_tokens` counts the prompt and the outputs so far, of which
    the KV cache holds `num_computed`; this step adds `num_new`, which is 1 after the prefill.

    It holds `num_blocks` blocks, room for `num_slots` tokens; the first ones are full and in
    `cached`. At `full_at` tokens the next one is.
    """

    __slots__ = (
        "arrival_time_s",
        "block_hash",
        "cached",
        "end_tokens",
        "evicted",
        "full_at",
        "in_prefill",
        "num_blocks",
        "num_computed",
        "num_new",
        "num_slots",
        "num_tokens",
        "queued",
        "rank",
        "request_id",
    )

    def __init__(self, request: ModelRequest, end_tokens: int, caching: bool) -> None:
        self.request_id = request.request_id
        self.rank = request.rank
        self.arrival_time_s = request.arrival_time_s
        self.block_hash = request.block_hash if caching else None
        self.num_tokens = request.num_prompt_tokens
        self.end_tokens = end_tokens
        self.queued = False
        self.evicted = False
        self.start_over()

    def start_over(self) -> None:
        """Sets the state before an admission: nothing computed, no blocks."""
        self.in_prefill = True
        self.num_computed = 0
        self.num_new = 0
        self.num_blocks = 0
        self.num_slots = 0
        self.full_at = NEVER
        self.cached: list[CachedBlock] = []
