"""How many cores this process keeps busy, with all of its threads."""

import time
from collections.abc import Callable

WINDOW_S = 1.0


class ProcessCpu:
    def __init__(
        self,
        cpu_s: Callable[[], float] = time.process_time,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cpu_s, self._now_s = cpu_s, now_s
        self._from_cpu_s, self._from_s = cpu_s(), now_s()
        self._cores: float | None = None

    def cores(self) -> float | None:
        """The mean over the last full window, of WINDOW_S, or longer if it is asked less often;
        None before the first window is over."""
        passed_s = self._now_s() - self._from_s
        if passed_s >= WINDOW_S:
            cpu_s = self._cpu_s()
            self._cores = (cpu_s - self._from_cpu_s) / passed_s
            self._from_cpu_s, self._from_s = cpu_s, self._from_s + passed_s
        return self._cores
