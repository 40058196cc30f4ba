"""A clock that stands still while its thread waits for a core that others have.

The waits belong to the machine's other work, not to the engine. On two cores with a load of 12 the
embedded model's steps took five times as long by the wall's clock, and a fit of its decode steps
was off by 15% in the median; without the waits by 2.5%. On a quiet machine it is the wall's clock.
Threads that the engine's thread waits for (OMP_NUM_THREADS above 1) may have waited themselves:
that is not seen.
"""

import os
import time
from pathlib import Path

SCHEDSTAT = Path("/proc/thread-self/schedstat")
"""Nanoseconds on a core, nanoseconds of waiting for one, and a count: Linux's own account."""
MAX_BYTES = 128


class CoreClock:
    """Made and called on one thread. Without Linux's account it is the wall's clock."""

    def __init__(self) -> None:
        self._file: int | None = None
        if SCHEDSTAT.exists():
            self._file = os.open(SCHEDSTAT, os.O_RDONLY | os.O_CLOEXEC)
        self._began_s, self._began_waited_s = time.perf_counter(), self._waited_s()

    def __call__(self) -> float:
        waited_s = self._waited_s()
        while True:
            now_s, before_s = time.perf_counter(), waited_s
            waited_s = self._waited_s()
            if waited_s == before_s:
                return now_s - waited_s
            # A wait between the two would be in one of them alone: on a busy machine a step took
            # less than nothing by that.

    @property
    def waited_ratio(self) -> float:
        """Of the time since this clock was made."""
        waited_s = self._waited_s() - self._began_waited_s
        return waited_s / (time.perf_counter() - self._began_s)

    def _waited_s(self) -> float:
        if self._file is None:
            return 0.0
        return int(os.pread(self._file, MAX_BYTES, 0).split()[1]) / 1e9
