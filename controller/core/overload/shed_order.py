"""Which of the held requests is refused when one too many is held: of the lowest rank the newest,
whatever its API key's turn is.
"""

import heapq

Order = tuple[int, float, str, str]
"""As of `DispatchRequested.order`."""


class _Latest:
    """Sorts the last in order first."""

    __slots__ = ("order",)

    def __init__(self, order: Order) -> None:
        self.order = order

    def __lt__(self, other: "_Latest") -> bool:
        return self.order > other.order


class ShedOrder:
    """Takes log n. What is discarded stays in the heap until it comes up or is half of it."""

    def __init__(self) -> None:
        self._orders: set[Order] = set()
        self._heap: list[_Latest] = []

    def __len__(self) -> int:
        return len(self._orders)

    def push(self, order: Order) -> None:
        """Must not be in it."""
        self._orders.add(order)
        heapq.heappush(self._heap, _Latest(order))

    def discard(self, order: Order) -> None:
        """Does nothing if it is not in it."""
        self._orders.discard(order)
        if len(self._heap) > 2 * len(self._orders) + 64:
            self._heap = [_Latest(each) for each in self._orders]
            heapq.heapify(self._heap)

    def last(self) -> Order | None:
        while self._heap and self._heap[0].order not in self._orders:
            heapq.heappop(self._heap)
        return self._heap[0].order if self._heap else None

    def check(self) -> None:
        """Raises AssertionError if the books disagree."""
        assert self._orders <= {each.order for each in self._heap}, "never to be refused"
        assert len(self._heap) <= 2 * len(self._orders) + 64, "it keeps what was discarded"
