"""The longest pause of a stream, without a look at each of its tokens.

All decoding requests of an instance get their tokens at the same moments. So the gaps between
those moments are kept once per instance, and a request that leaves asks for the largest one since
it came.
"""

from bisect import bisect_right


class Gaps:
    """Only gaps that no later one exceeds are kept: earlier ones decide nothing."""

    def __init__(self) -> None:
        self._ends_s: list[float] = []
        self._gaps_s: list[float] = []

    def add(self, end_s: float, gap_s: float) -> None:
        """`end_s` must not be before that of earlier gaps."""
        ends_s, gaps_s = self._ends_s, self._gaps_s
        while gaps_s and gaps_s[-1] <= gap_s:
            gaps_s.pop()
            ends_s.pop()
        ends_s.append(end_s)
        gaps_s.append(gap_s)

    def longest_since(self, time_s: float) -> float:
        """Of the gaps that ended after `time_s`; 0 if none did."""
        place = bisect_right(self._ends_s, time_s)
        return self._gaps_s[place] if place < len(self._gaps_s) else 0.0
