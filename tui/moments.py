"""What the dashboard knew at any moment of a recording, without hearing all of it again.

Some states are kept: one after each stretch of the file, and at most MAX_KEPT. They are kept
outside the memory of the process, on a shelf: each may hold on to a thousand events, and two thirds
of a minute of samples, that no other state has. The shelf is pickled, and no other file may do so
(tests/unit/test_security.py): this one is apart from `tui.replay`.
"""

import pickle
import tempfile
import weakref
import zlib
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import IO

from tui.state import DashboardState, Heard, reduce

Known = tuple[int, DashboardState]
"""A state, and after how many frames."""
_FASTEST = 1


class Shelf:
    """A file without a name, which only this process can read and which ends with it. Without room
    for it nothing is kept: then a jump takes longer."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._counts: list[int] = []
        self._places: list[tuple[int, int]] = []
        """Where each state begins, and how long it is."""

    def __len__(self) -> int:
        return len(self._counts)

    @property
    def last(self) -> int:
        """After how many frames the last state is."""
        return self._counts[-1] if self._counts else 0

    def put(self, known: Known) -> None:
        """States must come in order."""
        count, state = known
        told = zlib.compress(pickle.dumps(state, pickle.HIGHEST_PROTOCOL), _FASTEST)
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - as long as self
                weakref.finalize(self, self._file.close)
            place = self._file.seek(0, 2)
            self._file.write(told)
        except OSError:
            return
        self._counts.append(count)
        self._places.append((place, len(told)))

    def count_before(self, count: int) -> int:
        """After how many frames the nearest state is that is not later; 0: there is none."""
        place = bisect_right(self._counts, count)
        return self._counts[place - 1] if place else 0

    def take(self, count: int) -> Known | None:
        """That state; None if it cannot be read."""
        if self._file is None:
            return None
        place, length = self._places[self._counts.index(count)]
        try:
            self._file.seek(place)
            told = self._file.read(length)
            state: DashboardState = pickle.loads(zlib.decompress(told))
        except (OSError, zlib.error):
            return None
        return count, state


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
