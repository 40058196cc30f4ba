"""The waiting requests of one engine in queue order, and what the cluster asks about them.

`by_arrival` orders by higher rank, earlier arrival, id, and gives an evicted request its old place.
Otherwise first come is first served within a rank, and an evicted request goes to the front. A
request that is set aside for a move keeps its place, but cannot be admitted.
"""

import heapq

from controller.core.load.snapshot import blocks_for
from controller.model.request import RequestState

_Entry = tuple[int, float, str, int, RequestState]


class WaitingQueue:
    """`demand_blocks` sums what all of them need in order to start, those aside among them."""

    def __init__(self, block_size: int, *, by_arrival: bool) -> None:
        self.num_queued = 0
        self.num_queued_by_rank: dict[int, int] = {}
        self.num_evicted = 0
        self.demand_blocks = 0
        self._block_size = block_size
        self._by_arrival = by_arrival
        self._num_pushed = 0
        # A discarded request stays in the heap, with `queued` unset, until it is the first.
        self._heap: list[_Entry] = []
        self._aside: dict[str, _Entry] = {}

    def __len__(self) -> int:
        """How many can be admitted."""
        return self.num_queued - len(self._aside)

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
        """The first one that can be admitted.

        Raises:
            IndexError: there is none.
        """
        while not self._heap[0][-1].queued:
            heapq.heappop(self._heap)
        return self._heap[0][-1]

    def first(self) -> RequestState:
        """The first one, which may be aside.

        Raises:
            ValueError: nobody waits.
        """
        entries = list(self._aside.values())
        if len(self):
            self.head()  # so that the heap begins with a request that still waits
            entries.append(self._heap[0])
        return min(entries)[-1]

    def pop(self) -> RequestState:
        """Takes out the first request that can be admitted; it may be pushed again.

        Raises:
            IndexError: nobody can be admitted.
        """
        request = self.head()
        heapq.heappop(self._heap)
        self.discard(request)
        return request

    def discard(self, request: RequestState) -> None:
        """Takes a request out for good, wherever it stands."""
        request.queued = False
        self._aside.pop(request.request_id, None)
        self._count(request, -1)

    def set_aside(self, request: RequestState) -> None:
        """Keeps the request's place but stops its admission; linear in the queue."""
        (entry,) = (entry for entry in self._heap if entry[-1] is request)
        self._heap.remove(entry)
        heapq.heapify(self._heap)
        self._aside[request.request_id] = entry

    def put_back(self, request: RequestState) -> None:
        heapq.heappush(self._heap, self._aside.pop(request.request_id))

    def set_rank(self, request: RequestState, rank: int) -> None:
        """The request takes the place that it would have had with this rank from the start.
        Linear."""
        aside = self.is_aside(request)
        if not aside:
            self.set_aside(request)
        self._count_rank(request, -1)
        request.rank = rank
        self._count_rank(request, 1)
        self._aside[request.request_id] = (-rank, *self._aside[request.request_id][1:])
        if not aside:
            self.put_back(request)

    def is_aside(self, request: RequestState) -> bool:
        return request.request_id in self._aside

    def in_order(self) -> list[RequestState]:
        """All waiting requests, those aside among them; takes n log n."""
        everybody = sorted([*self._heap, *self._aside.values()])
        return [entry[-1] for entry in everybody if entry[-1].queued]

    def check(self) -> None:
        """Raises AssertionError: something is miscounted or out of place."""
        queued = self.in_order()
        assert len(queued) == self.num_queued
        assert not queued or self.first() is queued[0]
        ready = [r for r in queued if not self.is_aside(r)]
        assert len(ready) == len(self)
        assert not ready or self.head() is ready[0]
        ranks = [r.rank for r in queued]
        assert self.num_queued_by_rank == {rank: ranks.count(rank) for rank in ranks}
        assert self.num_evicted == sum(r.evicted for r in queued)
        assert self.demand_blocks == sum(blocks_for(r.num_tokens, self._block_size) for r in queued)

    def _count(self, request: RequestState, sign: int) -> None:
        self.num_queued += sign
        self._count_rank(request, sign)
        self.num_evicted += sign * request.evicted
        self.demand_blocks += sign * blocks_for(request.num_tokens, self._block_size)

    def _count_rank(self, request: RequestState, sign: int) -> None:
        num = self.num_queued_by_rank.get(request.rank, 0) + sign
        self.num_queued_by_rank[request.rank] = num
        if not num:
            del self.num_queued_by_rank[request.rank]
