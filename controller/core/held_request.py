"""A request that the global scheduler holds, with late binding or without."""

from controller.core.holding.held_queue import Held, Key
from controller.core.load.snapshot import blocks_for
from controller.core.scheduler_events import DispatchRequested
from controller.core.value import value


@value
class HeldRequest:
    request: DispatchRequested
    since_s: float

    @property
    def order(self) -> tuple[int, float, str, str]:
        request = self.request
        return (-request.rank, request.arrival_time_s, request.request_id, request.frontend_id)

    def entry(self, key: Key, block_size: int) -> Held:
        """`block_size`: 0 if no instance has told it yet; then the demand is 0."""
        request = self.request
        demand_blocks = blocks_for(request.num_prompt_tokens, block_size) if block_size else 0
        return Held(key, request.rank, request.arrival_time_s, demand_blocks, self.since_s)
