"""The waiting requests of one engine in queue order, and what the cluster asks about them.

`by_arrival`: higher rank, earlier arrival, id; where an evicted request has its old place. Else
first come, first served within a rank, and an evicted request goes to the front.
"""

import heapq

from controller.core.snapshot import blocks_for
from controller.model.request import RequestState


class WaitingQueue:
    """`demand_blocks` sums what all of them need in order to start."""

    def __init__(self, block_size: int, *, by_arrival: bool) -> None:
        self.num_evicted = 0
        self.demand_blocks = 0
        self._block_size = block_size
        self._by_arrival = by_arrival
        self._num_queued = 0
        self._num_pushed = 0
        # A discarded request stays in the heap, with `queued` unset, until it is the first.
        self._heap: list[tuple[int, float, str, int, RequestState]] = []

    def __len__(self) -> int:
        return self._num_queued

    def push(self, request: RequestState) -> None:
        """Takes in a new request, or one that was `evicted`."""
        self._num_pushed += 1
        turn = self._num_pushed
        if self._by_arrival:
            order, name = request.arrival_time_s, request.request_id
        else:
            order, name = float(-turn if request.evicted else turn), ""
        heapq.heappush(self._heap, (-request.rank, order, name, turn, request))
        request.queued = True
        self._count(request, 1)

    def head(self) -> RequestState:
        """The first one.

        Raises:
            IndexError: nobody waits.
        """
        while not self._heap[0][-1].queued:
            heapq.heappop(self._heap)
        return self._heap[0][-1]

    def pop(self) -> RequestState:
        """Lets the first one go, which then may come back.

        Raises:
            IndexError: nobody waits.
        """
        request = self.head()
        heapq.heappop(self._heap)
        self.discard(request)
        return request

    def discard(self, request: RequestState) -> None:
        """Lets one go for ever, wherever it stands."""
        request.queued = False
        self._count(request, -1)

    def in_order(self) -> list[RequestState]:
        """All of them; n log n."""
        return [entry[-1] for entry in sorted(self._heap) if entry[-1].queued]

    def _count(self, request: RequestState, sign: int) -> None:
        self._num_queued += sign
        self.num_evicted += sign * request.evicted
        self.demand_blocks += sign * blocks_for(request.num_tokens, self._block_size)
