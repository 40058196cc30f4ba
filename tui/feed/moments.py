"""What the dashboard knew at any moment of a recording, without hearing all of it again.

Some states are kept (`shelf`): one after each stretch of the file, and at most MAX_KEPT.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence

from tui.feed.shelf import Known, Shelf
from tui.feed.state import DashboardState, Heard, reduce

STRETCH_BYTES = 256 << 10
"""Parsing and reducing so much takes some 12 ms."""
MAX_KEPT = 32


class Moments:
    """`first` is the state before all frames; `hear(n)` gives frame n; `offsets` are the frames'
    places in the file."""

    def __init__(
        self, first: DashboardState, hear: Callable[[int], Heard], offsets: Sequence[int]
    ) -> None:
        self._hear = hear
        self._num_frames = len(offsets)
        self._first: Known = (0, first)
        self._kept = Shelf()
        self._shown = self._farthest = self._first
        self._steps = _ends(offsets, STRETCH_BYTES)
        every = len(self._steps) // MAX_KEPT + 1
        self._ends = set(self._steps[every - 1 :: every])

    def at(self, count: int) -> DashboardState:
        """The state after so many frames."""
        at_hand = (self._first, self._shown, self._farthest)
        begin = max((each for each in at_hand if each[0] <= count), key=lambda each: each[0])
        kept = self._kept.count_before(count)
        if kept > begin[0]:
            begin = self._kept.take(kept) or begin
        self._shown = self._after(begin, count)
        return self._shown[1]

    def look_ahead(self) -> None:
        """Goes a stretch farther than ever before, so that a jump to there is short too."""
        place = bisect_right(self._steps, self._farthest[0])
        self._after(self._farthest, [*self._steps, self._num_frames][place])

    def _after(self, known: Known, count: int) -> Known:
        while known[0] < count:
            place = bisect_right(self._steps, known[0])
            upto = min([count, *self._steps[place : place + 1]])
            state = reduce(known[1], (self._hear(number) for number in range(known[0], upto)))
            known = (upto, state)
            if upto in self._ends and upto > self._kept.last:
                self._kept.put(known)
            if upto > self._farthest[0]:
                self._farthest = known
        return known


def _ends(offsets: Sequence[int], stretch_bytes: int) -> list[int]:
    """After how many frames each stretch ends."""
    found: list[int] = []
    begin = 0
    for number in range(1, len(offsets)):
        if offsets[number] - offsets[begin] >= stretch_bytes:
            found.append(number)
            begin = number
    return found
