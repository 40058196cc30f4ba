"""A request that the global scheduler holds, with late binding or without."""

from controller.core.holding.held_queue import Held, Key
from controller.core.scheduler_events import DispatchRequested
from controller.core.value import value


@value
class HeldRequest:
    request: DispatchRequested
    since_s: float

    def entry(self, key: Key, demand_blocks: int) -> Held:
        request = self.request
        return Held(key, request.rank, request.arrival_time_s, demand_blocks, self.since_s)
