"""Counts and percentiles within a sliding window of time, of all samples and of each kind. And
latencies counted in buckets, whose counts can be added over processes and over times."""

import math
from collections import Counter, deque
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from controller.core.admission.traffic import NOTHING_COUNTED, TrafficCounts

Kind = TypeVar("Kind", bound=Hashable)
MINUTE_S = 60.0
SLOT_S = 1.0


class CountWindow:
    """How many things happened within a window of time, counted in slots of one second, so no limit
    on samples makes the count too small. `now_s` must never decrease, except for `take_back`."""

    def __init__(self, window_s: float = MINUTE_S) -> None:
        self._window_s = window_s
        self._slots: deque[list[int]] = deque()
        """[the slot's number, how many]"""
        self._total = 0

    def add(self, number: int, now_s: float) -> None:
        slot = int(now_s // SLOT_S)
        if self._slots and self._slots[-1][0] == slot:
            self._slots[-1][1] += number
        else:
            self._forget(now_s)  # otherwise a window that nobody reads would grow for ever
            self._slots.append([slot, number])
        self._total += number

    def take_back(self, number: int, added_s: float) -> None:
        """Undoes an `add` at `added_s`."""
        slot = int(added_s // SLOT_S)
        for each in reversed(self._slots):
            if each[0] == slot:
                each[1] -= number
                self._total -= number
                return

    def total(self, now_s: float) -> int:
        """The count of the last `window_s`, and of up to SLOT_S before that."""
        self._forget(now_s)
        return self._total

    def per_s(self, now_s: float) -> float:
        """The rate over the time since the first count of the window. If less than a second has
        passed since then, one second is used."""
        self._forget(now_s)
        if not self._slots:
            return 0.0
        return self._total / max(SLOT_S, now_s - self._slots[0][0] * SLOT_S)

    def _forget(self, now_s: float) -> None:
        while self._slots and (self._slots[0][0] + 1) * SLOT_S <= now_s - self._window_s:
            self._total -= self._slots.popleft()[1]


class LatencyWindow:
    """The latency samples of the last `window_s`, but at most the newest `max_samples`. The number
    of samples is not a count of what happened: at 70 first tokens a second, a minute already has
    more than 4,096. `LatencyWindows` counts separately. `now_s` must never decrease."""

    def __init__(self, window_s: float = MINUTE_S, max_samples: int = 4096) -> None:
        self._window_s = window_s
        self._samples: deque[tuple[float, float]] = deque(maxlen=max_samples)

    def add(self, now_s: float, latency_s: float) -> None:
        self._samples.append((now_s, latency_s))

    def percentile(self, share: float, now_s: float) -> float | None:
        """The smallest sample that is not exceeded by the given `share` of all samples; None
        without samples."""
        samples = self._samples
        while samples and samples[0][0] < now_s - self._window_s:
            samples.popleft()
        if not samples:
            return None
        ordered = sorted(latency for _, latency in samples)
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


@dataclass(frozen=True, slots=True)
class Percentiles(Generic[Kind]):
    """The same percentile of all samples, and of each kind that has samples."""

    all_s: float | None = None
    by_kind_s: Mapping[Kind, float] = field(default_factory=dict)


class LatencyWindows(Generic[Kind]):
    """A window for all samples, and one window for each kind of samples."""

    def __init__(self, window_s: float = MINUTE_S, max_samples: int = 4096) -> None:
        self._window_s, self._max_samples = window_s, max_samples
        self._all = LatencyWindow(window_s, max_samples)
        self._count = CountWindow(window_s)
        self._by_kind: dict[Kind, LatencyWindow] = {}

    def add(self, now_s: float, latency_s: float, kind: Kind) -> None:
        self._all.add(now_s, latency_s)
        self._count.add(1, now_s)
        if kind not in self._by_kind:
            self._by_kind[kind] = LatencyWindow(self._window_s, self._max_samples)
        self._by_kind[kind].add(now_s, latency_s)

    def percentiles(self, share: float, now_s: float) -> Percentiles[Kind]:
        by_kind_s = {
            kind: window.percentile(share, now_s) for kind, window in self._by_kind.items()
        }
        return Percentiles(
            self._all.percentile(share, now_s),
            {kind: latency_s for kind, latency_s in by_kind_s.items() if latency_s is not None},
        )

    def count(self, now_s: float) -> int:
        """How many samples came in the last `window_s`, and in up to one second before that."""
        return self._count.total(now_s)


FIRST_BOUND_S = 0.001
BUCKET_RATIO = 1.2
"""Each bucket is so many times as wide as the one before: a percentile that is read from counts is
off by at most a tenth."""
MAX_BUCKET = 75
"""The last bucket begins at 720 s."""

BucketCounts = Mapping[int, int]
"""How many latencies fell into each bucket. Bucket 0 has those up to FIRST_BOUND_S."""


def bucket_of(latency_s: float) -> int:
    if latency_s <= FIRST_BOUND_S:
        return 0
    return min(MAX_BUCKET, math.ceil(math.log(latency_s / FIRST_BOUND_S, BUCKET_RATIO)))


def percentile_of(counts: BucketCounts, share: float) -> float | None:
    """The latency that is not exceeded by the given `share` of all that were counted; None if none
    was. Within a bucket, latencies count as spread evenly."""
    total = sum(counts.values())
    if total <= 0:
        return None
    left = share * total
    for bucket in sorted(counts):
        number = counts[bucket]
        if left <= number:
            upper_s = FIRST_BOUND_S * BUCKET_RATIO**bucket
            lower_s = upper_s / BUCKET_RATIO if bucket else 0.0
            return lower_s + (upper_s - lower_s) * max(0.0, left / number)
        left -= number
    return FIRST_BOUND_S * BUCKET_RATIO ** max(counts)


def added(counts: Iterable[BucketCounts]) -> Counter[int]:
    """The counts of several processes or times together."""
    total = Counter[int]()
    for each in counts:
        total.update(each)
    return total


@dataclass(frozen=True, slots=True)
class Kept:
    """How many of the requests that ended kept their targets."""

    num_kept: int = 0
    num_ended: int = 0

    def __add__(self, other: "Kept") -> "Kept":
        return Kept(self.num_kept + other.num_kept, self.num_ended + other.num_ended)

    @property
    def share(self) -> float | None:
        """The goodput; None if no request ended."""
        return self.num_kept / self.num_ended if self.num_ended else None


class KeptWindows(Generic[Kind]):
    """How many requests of each kind kept their targets in the last minute."""

    def __init__(self) -> None:
        self._by_kind: dict[Kind, tuple[CountWindow, CountWindow]] = {}

    def add(self, now_s: float, kind: Kind, *, is_kept: bool) -> None:
        kept, ended = self._by_kind.setdefault(kind, (CountWindow(), CountWindow()))
        kept.add(int(is_kept), now_s)
        ended.add(1, now_s)

    def at(self, now_s: float) -> dict[Kind, Kept]:
        return {
            kind: Kept(kept.total(now_s), ended.total(now_s))
            for kind, (kept, ended) in self._by_kind.items()
        }


@dataclass(frozen=True, slots=True)
class ServedInAll:
    """What a frontend's clients got since its process began. These figures only grow, so that their
    differences can be added over frontends and over times. `ttft` and `tpot`: the latencies of each
    level, TPOT of the requests that ended."""

    num_arrived: int = 0
    num_ended: int = 0
    num_output_tokens: int = 0
    ttft: Mapping[str, BucketCounts] = field(default_factory=dict)
    tpot: Mapping[str, BucketCounts] = field(default_factory=dict)


NOTHING_SERVED = ServedInAll()


@dataclass(frozen=True, slots=True)
class ServedLately:
    """The latencies that a frontend's clients saw in the last minute. The TTFT is given over all
    requests and for each level, the TPOT over the requests that ended. `kept_targets`: of each
    level with targets, how many requests kept them."""

    ttft_p99: Percentiles[str] = field(default_factory=Percentiles)
    tpot_p99_s: float | None = None
    num_first_tokens: int = 0
    kept_targets: Mapping[str, Kept] = field(default_factory=dict)
    in_all: ServedInAll = NOTHING_SERVED
    traffic: TrafficCounts = NOTHING_COUNTED
