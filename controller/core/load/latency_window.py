"""A percentile of recent samples."""

import math
from collections import deque


class LatencyWindow:
    """Samples of the last `window_s`, at most `max_samples` of them. Times only go up."""

    def __init__(self, window_s: float = 60.0, max_samples: int = 4096) -> None:
        self._window_s = window_s
        self._samples: deque[tuple[float, float]] = deque(maxlen=max_samples)

    def add(self, now_s: float, latency_s: float) -> None:
        self._samples.append((now_s, latency_s))

    def percentile(self, share: float, now_s: float) -> float | None:
        """The smallest sample that `share` of them do not exceed; None without samples."""
        samples = self._samples
        while samples and samples[0][0] < now_s - self._window_s:
            samples.popleft()
        if not samples:
            return None
        ordered = sorted(latency for _, latency in samples)
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
