"""States of a replay outside the memory of the process: each may hold on to a thousand events, and
two thirds of a minute of samples, that no other state has."""

import pickle
import tempfile
import weakref
import zlib
from bisect import bisect_right
from typing import IO

from tui.feed.state import DashboardState

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
