"""Which instance steps slowly: far longer per step than the others, for a while. It is emptied.

A step's length depends on what runs in it, and load differs between instances by less than two
times after rescheduling; a GPU that throttles, or a neighbour that takes the cores, shows as more.
A step with a long prompt is as slow as it is meant to be, so medians are compared.

An instance is watched while it has something to do and nobody empties it; one that rested begins
anew. None is emptied while another one is: the others have enough to take. Whether it serves again
is for an operator to say, as an empty instance makes no steps that could tell.
"""

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from statistics import median

from controller.core.fleet.liveness import Key

ACTOR = "slow-watch"
"""Whose drains they are."""
MIN_SAMPLES = 20
MIN_OTHERS = 2
"""With fewer nobody knows which one is the exception."""


@dataclass(frozen=True, slots=True)
class StepsSeen:
    """The last step, in seconds, of each incarnation that has something to do. At even intervals.
    `drained`: the instances that somebody empties. An instance is slow whose steps take `factor`
    times as long as the others' for `window_s`; with factor 0 none is."""

    step_times_s: Mapping[Key, float]
    drained: Collection[str]
    factor: float
    window_s: float


@dataclass(frozen=True, slots=True)
class Empty:
    """Drain the instance, as an operator would, if another one serves beside it."""

    instance_id: str
    incarnation: int
    step_time_s: float
    """Its median step."""
    others_s: float
    """The median of the others' medians."""

    @property
    def factor(self) -> float:
        return self.step_time_s / self.others_s

    @property
    def why(self) -> str:
        return (
            f"its steps take {1000 * self.step_time_s:.0f} ms, {self.factor:.1f} times as long as"
            " the others'"
        )


class Slowness:
    """Times are seconds of any one monotonic clock."""

    def __init__(self) -> None:
        self._samples: dict[Key, deque[tuple[float, float]]] = {}
        """(when, the step) of just the incarnations that were busy at the last look, in order of
        time, none older than the window."""

    def handle(self, seen: StepsSeen, now_s: float) -> list[Empty]:
        if not seen.factor:
            self._samples = {}
            return []
        self._add(seen, now_s)
        if seen.drained:
            return []
        slowest = self._slowest(seen, now_s)
        return [] if slowest is None else [slowest]

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken."""
        for (instance_id, _), samples in self._samples.items():
            assert samples, f"{instance_id} is watched without a sample"
            times_s = [time_s for time_s, _ in samples]
            assert times_s == sorted(times_s), f"the samples of {instance_id} are out of order"

    def _add(self, seen: StepsSeen, now_s: float) -> None:
        busy = {
            key: step_s for key, step_s in seen.step_times_s.items() if key[0] not in seen.drained
        }
        self._samples = {key: self._samples.get(key, deque()) for key in busy}
        for key, step_time_s in busy.items():
            samples = self._samples[key]
            samples.append((now_s, step_time_s))
            while samples[0][0] < now_s - seen.window_s:
                samples.popleft()

    def _slowest(self, seen: StepsSeen, now_s: float) -> Empty | None:
        medians = {
            key: median(step_s for _, step_s in samples)
            for key, samples in self._samples.items()
            if len(samples) >= MIN_SAMPLES and samples[0][0] <= now_s - 0.9 * seen.window_s
        }
        if len(medians) <= MIN_OTHERS:
            return None
        key = max(medians, key=lambda each: (medians[each], each))
        slowest_s = medians.pop(key)
        others_s = median(medians.values())
        if others_s <= 0 or slowest_s < seen.factor * others_s:
            return None
        return Empty(*key, slowest_s, others_s)
