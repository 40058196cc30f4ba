"""A quantile of the last few samples."""

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque


class SlidingQuantile:
    """Keeps the last `max_samples`. A sample costs two searches and shifts of a sorted list."""

    def __init__(self, max_samples: int) -> None:
        self._max_samples = max_samples
        self._by_age: deque[int] = deque()
        self._sorted: list[int] = []

    def add(self, sample: int) -> None:
        if len(self._by_age) == self._max_samples:
            del self._sorted[bisect_left(self._sorted, self._by_age.popleft())]
        self._by_age.append(sample)
        insort(self._sorted, sample)

    def quantile(self, share: float, above: int, min_samples: int) -> int | None:
        """The smallest sample above `above` that `share` of the samples above it do not exceed;
        None if there are fewer than `min_samples` of them."""
        first = bisect_right(self._sorted, above)
        num_samples = len(self._sorted) - first
        if num_samples < min_samples:
            return None
        return self._sorted[first + max(0, math.ceil(share * num_samples) - 1)]

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken."""
        assert len(self._by_age) <= self._max_samples
        assert sorted(self._by_age) == self._sorted
