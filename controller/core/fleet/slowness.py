"""Which instance steps slowly: far longer per step than the others, for a while.

A step's length depends on what runs in it, and load differs between instances by less than two
times after rescheduling; a GPU that throttles, or a neighbour that takes the cores, shows as more.
A step with a long prompt is as slow as it is meant to be, so medians are compared.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from controller.core.fleet.liveness import Key

MIN_SAMPLES = 20
MIN_OTHERS = 2
"""With fewer nobody knows which one is the exception."""


@dataclass(frozen=True, slots=True)
class Slow:
    instance_id: str
    incarnation: int
    step_time_s: float
    """Its median step."""
    others_s: float
    """The median of the others' medians."""

    @property
    def factor(self) -> float:
        return self.step_time_s / self.others_s


class Slowness:
    """Times are seconds of any one monotonic clock."""

    def __init__(self) -> None:
        self._samples: dict[Key, deque[tuple[float, float]]] = {}

    def add(self, now_s: float, step_times_s: Mapping[Key, float], window_s: float) -> None:
        """The last step of each incarnation that has something to do; others are forgotten. Call
        it at even intervals. Mutates."""
        self._samples = {key: self._samples.get(key, deque()) for key in step_times_s}
        for key, step_time_s in step_times_s.items():
            samples = self._samples[key]
            samples.append((now_s, step_time_s))
            while samples[0][0] < now_s - window_s:
                samples.popleft()

    def slowest(self, now_s: float, window_s: float, factor: float) -> Slow | None:
        """The slowest of those whose steps took `factor` times as long as the others', in a window
        all of which they had something to do."""
        medians = {
            key: median(step_s for _, step_s in samples)
            for key, samples in self._samples.items()
            if len(samples) >= MIN_SAMPLES and samples[0][0] <= now_s - 0.9 * window_s
        }
        if len(medians) <= MIN_OTHERS:
            return None
        key = max(medians, key=lambda each: (medians[each], each))
        slowest_s = medians.pop(key)
        others_s = median(medians.values())
        if others_s <= 0 or slowest_s < factor * others_s:
            return None
        return Slow(*key, slowest_s, others_s)
