"""The history of the cluster: a sample each second for 15 minutes, and one for each ten seconds for
6 hours. It shows operators what led to the present.

    Seen       what the controller sees at one moment; totals only grow while their process lives
    Sample     a short time: the means of its gauges, and how much its totals grew
    Point      a sample as it is shown: with percentiles, over at least the last minute

Percentiles are read from latencies counted in buckets, which are added over frontends and times. A
percentile is never a mean of percentiles.

The figures of an instance take 2 bytes each (`struct`'s half floats, good to three digits). With 64
instances the whole history takes 8 MB, with 1,024 it takes 59 MB (measured).
"""

import math
import struct
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import fmean

from controller.core.record.windows import (
    MINUTE_S,
    BucketCounts,
    ServedInAll,
    added,
    percentile_of,
)
from controller.core.value import value

FINE_S = 1.0
COARSE_S = 10.0
FINE_FOR_S = 900.0
COARSE_FOR_S = 6 * 3600.0

GAUGES = (
    "num_instances",
    "num_serving",
    "num_running_reqs",
    "num_waiting_reqs",
    "kv_held_share",
    "kv_wanted_share",
    "freeness_steps",
    "backlog_s",
    "longest_wait_s",
)
"""What is so at one moment. `kv_held_share` and `kv_wanted_share`: of the memory of all instances
that serve, and `freeness_steps` and `backlog_s` their means. `longest_wait_s`: of the requests that
wait now."""
COUNTS = (
    "num_arrived",
    "num_ended",
    "num_output_tokens",
    "num_evictions",
    "num_migrated",
    "num_failed_moves",
    "num_replayed",
)
"""What happened within a time."""
INSTANCE_FIGURES = (
    "freeness_steps",
    "kv_held_share",
    "kv_wanted_share",
    "num_running_reqs",
    "num_waiting_reqs",
    "ttft_p99_s",
)
"""The figures of an instance, in the order of `InstanceFigures`. NaN: not known."""
InstanceFigures = tuple[float, float, float, float, float, float]
UNKNOWN = math.nan
_LARGEST = 65_000.0
"""Half floats end at 65,504. Freeness is kept in units of _FREENESS_UNIT steps, as an idle instance
with a small model has several 100,000 steps."""
_FREENESS_UNIT = 16.0


@value
class LevelSeen:
    num_running: int = 0
    num_waiting: int = 0


@value
class Seen:
    """`time_s`: seconds since the epoch. `gauges`: by name, without those that are not known.
    `totals`: for each of COUNTS that frontends do not count, the totals by their sources; a source
    that has restarted must have another name. `served`: the totals of frontends, likewise by
    process."""

    time_s: float
    gauges: Mapping[str, float]
    totals: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    served: Mapping[str, ServedInAll] = field(default_factory=dict)
    levels: Mapping[str, LevelSeen] = field(default_factory=dict)
    instances: Mapping[str, InstanceFigures] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LevelSample:
    """The requests of a priority level: means of those that run and wait, and the latencies that
    were counted in this time."""

    num_running: float = 0.0
    num_waiting: float = 0.0
    ttft: BucketCounts = field(default_factory=dict)
    tpot: BucketCounts = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sample:
    """The time of `span_s` seconds up to `time_s`. `figures`: those of the instances, packed."""

    time_s: float
    span_s: float
    gauges: Mapping[str, float]
    counts: Mapping[str, int]
    levels: Mapping[str, LevelSample]
    instance_ids: tuple[str, ...] = ()
    figures: bytes = b""

    def check(self) -> None:
        """Raises ValueError if the figures are not as many as the instances."""
        if len(self.figures) != 2 * len(INSTANCE_FIGURES) * len(self.instance_ids):
            raise ValueError("the figures are not those of the instances")

    def instances(self) -> dict[str, InstanceFigures]:
        """The figures of each instance."""
        width = len(INSTANCE_FIGURES)
        values = struct.unpack(f"<{width * len(self.instance_ids)}e", self.figures)
        return {
            instance_id: (
                _FREENESS_UNIT * values[width * at],
                *values[width * at + 1 : width * (at + 1)],
            )
            for at, instance_id in enumerate(self.instance_ids)
        }


def packed(figures: Iterable[InstanceFigures]) -> bytes:
    values = [
        each if math.isnan(each) else max(-_LARGEST, min(_LARGEST, each))
        for freeness_steps, *others in figures
        for each in (freeness_steps / _FREENESS_UNIT, *others)
    ]
    return struct.pack(f"<{len(values)}e", *values)


class _Growth:
    """By how much totals grew since the look before. What is seen for the first time has not grown:
    this controller does not know since when it counts."""

    def __init__(self) -> None:
        self._before: dict[str, int] = {}

    def of(self, totals: Mapping[str, int]) -> int:
        before, self._before = self._before, dict(totals)
        return sum(max(0, total - before.get(key, total)) for key, total in totals.items())


class _LatencyGrowth:
    """The same for the latencies of each level."""

    def __init__(self) -> None:
        self._before: dict[str, Mapping[str, BucketCounts]] = {}

    def of(self, totals: Mapping[str, Mapping[str, BucketCounts]]) -> dict[str, Counter[int]]:
        grown: dict[str, Counter[int]] = {}
        for source, levels in totals.items():
            before = self._before.get(source)
            for level, counts in levels.items() if before is not None else ():
                assert before is not None
                known = before.get(level, {})
                more = {b: n - known.get(b, 0) for b, n in counts.items() if n > known.get(b, 0)}
                grown.setdefault(level, Counter()).update(more)
        self._before = {
            source: {level: dict(counts) for level, counts in levels.items()}
            for source, levels in totals.items()
        }
        return grown


class History:
    """`kept`: the coarse samples that an earlier controller kept, in order."""

    def __init__(self, kept: Iterable[Sample] = ()) -> None:
        # for one coarse sample longer, so that the two meet
        self._fine: deque[Sample] = deque(maxlen=int((FINE_FOR_S + COARSE_S) / FINE_S))
        self._coarse: deque[Sample] = deque(kept, maxlen=int(COARSE_FOR_S / COARSE_S))
        self._begun: list[Sample] = []
        """The fine samples of the coarse one that is not complete yet."""
        self._growth = {name: _Growth() for name in COUNTS}
        self._ttft, self._tpot = _LatencyGrowth(), _LatencyGrowth()
        self._ids: tuple[str, ...] = ()

    @property
    def latest(self) -> Sample | None:
        return self._fine[-1] if self._fine else None

    def handle(self, seen: Seen, span_s: float) -> Sample | None:
        """Takes a look that came `span_s` after the one before. Returns the coarse sample that is
        complete by it and is to be kept, if one is."""
        sample = self._sample(seen, span_s)
        self._fine.append(sample)
        self._begun.append(sample)
        if sum(each.span_s for each in self._begun) < COARSE_S - 0.5 * FINE_S:
            return None
        coarse, self._begun = merged(self._begun), []
        self._coarse.append(coarse)
        return coarse

    def since(self, begin_s: float) -> list[Sample]:
        """The samples that end after `begin_s` (seconds since the epoch), in order: the coarse ones
        up to where the fine ones begin."""
        if not self._fine:
            return [each for each in self._coarse if each.time_s > begin_s]
        fine_from_s = self._fine[0].time_s - self._fine[0].span_s + 0.5 * FINE_S
        meet_s = max(fine_from_s, self._fine[-1].time_s - FINE_FOR_S)
        coarse = [each for each in self._coarse if each.time_s <= meet_s]
        if coarse:
            begin_s, since_s = max(begin_s, coarse[-1].time_s), begin_s
            coarse = [each for each in coarse if each.time_s > since_s]
        return coarse + [each for each in self._fine if each.time_s > begin_s]

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken."""
        for samples in (self._fine, self._coarse):
            for before, after in pairwise(samples):
                assert before.time_s <= after.time_s, "samples are out of order"
        assert sum(each.span_s for each in self._begun) < COARSE_S

    def _sample(self, seen: Seen, span_s: float) -> Sample:
        served = seen.served
        totals = {
            "num_arrived": {key: each.num_arrived for key, each in served.items()},
            "num_ended": {key: each.num_ended for key, each in served.items()},
            "num_output_tokens": {key: each.num_output_tokens for key, each in served.items()},
            **seen.totals,
        }
        ttft = self._ttft.of({key: each.ttft for key, each in served.items()})
        tpot = self._tpot.of({key: each.tpot for key, each in served.items()})
        ids = tuple(seen.instances)
        if ids != self._ids:  # else all samples share one tuple
            self._ids = ids
        return Sample(
            seen.time_s,
            span_s,
            dict(seen.gauges),
            {name: self._growth[name].of(totals.get(name, {})) for name in COUNTS},
            {
                name: LevelSample(
                    level.num_running, level.num_waiting, ttft.get(name, {}), tpot.get(name, {})
                )
                for name, level in seen.levels.items()
            },
            self._ids,
            packed(seen.instances.values()),
        )


def merged(samples: Sequence[Sample]) -> Sample:
    """One sample for the time of several."""
    if len(samples) == 1:
        return samples[0]
    names = {name: None for each in samples for name in each.levels}
    last = samples[-1]
    by_instance: dict[str, list[InstanceFigures]] = {}
    for each in samples:
        for instance_id, figures in each.instances().items():
            by_instance.setdefault(instance_id, []).append(figures)
    return Sample(
        last.time_s,
        sum(each.span_s for each in samples),
        {name: mean for name in GAUGES if (mean := _mean(samples, name)) is not None},
        {name: sum(each.counts.get(name, 0) for each in samples) for name in COUNTS},
        {
            name: _merged_level([e.levels[name] for e in samples if name in e.levels])
            for name in names
        },
        tuple(by_instance),
        packed(map(_mean_figures, by_instance.values())),
    )


def _mean(samples: Sequence[Sample], name: str) -> float | None:
    known = [each.gauges[name] for each in samples if name in each.gauges]
    return fmean(known) if known else None


def _merged_level(levels: Sequence[LevelSample]) -> LevelSample:
    return LevelSample(
        fmean(each.num_running for each in levels),
        fmean(each.num_waiting for each in levels),
        added(each.ttft for each in levels),
        added(each.tpot for each in levels),
    )


def _mean_figures(figures: Sequence[InstanceFigures]) -> InstanceFigures:
    """The means of what is known. The last figure is a percentile, which has no mean: the latest
    one counts."""
    means = []
    for column in zip(*figures, strict=True):
        known = [each for each in column if not math.isnan(each)]
        means.append(fmean(known) if known else UNKNOWN)
    return (*means[:-1], figures[-1][-1])  # type: ignore[return-value]  # as many as INSTANCE_FIGURES


# -- what is shown ---------------------------------------------------------------------------------


@value
class LevelPoint:
    """The requests of a level, and its percentiles over the last minute, or over the point's time
    if that is longer; None if nothing was counted."""

    num_running: float
    num_waiting: float
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    tpot_p99_s: float | None


@value
class Point:
    time_s: float
    span_s: float
    gauges: Mapping[str, float]
    counts: Mapping[str, int]
    levels: Mapping[str, LevelPoint]
    instances: Mapping[str, InstanceFigures]


def points(
    samples: Sequence[Sample], begin_s: float, max_points: int, *, instances: bool = True
) -> list[Point]:
    """The samples after `begin_s` as at most `max_points` points. `samples` should begin a minute
    earlier, for the percentiles of the first points. `instances`: whether the points have the
    figures of instances. For 1,024 instances and 15 minutes these take seconds of CPU."""
    shown = [each for each in samples if each.time_s > begin_s]
    if not instances:
        shown = [replace(each, instance_ids=(), figures=b"") for each in shown]
    windows = {name: _Windows() for each in samples for name in each.levels}
    found: list[Point] = []
    waiting = iter(samples)
    before = next(waiting, None)
    for group in _groups(shown, max_points):
        sample = merged(group)
        while before is not None and before.time_s <= sample.time_s:
            for name, level in before.levels.items():
                windows[name].add(before.time_s, level)
            before = next(waiting, None)
        for window in windows.values():
            window.forget(sample.time_s - max(MINUTE_S, sample.span_s))
        levels = {
            name: LevelPoint(
                level.num_running,
                level.num_waiting,
                percentile_of(windows[name].ttft, 0.5),
                percentile_of(windows[name].ttft, 0.99),
                percentile_of(windows[name].tpot, 0.99),
            )
            for name, level in sample.levels.items()
        }
        found.append(
            Point(
                sample.time_s,
                sample.span_s,
                sample.gauges,
                sample.counts,
                levels,
                sample.instances(),
            )
        )
    return found


class _Windows:
    """The latencies of a level within a sliding time."""

    def __init__(self) -> None:
        self.ttft, self.tpot = Counter[int](), Counter[int]()
        self._samples: deque[tuple[float, LevelSample]] = deque()

    def add(self, time_s: float, level: LevelSample) -> None:
        self._samples.append((time_s, level))
        self.ttft.update(level.ttft)
        self.tpot.update(level.tpot)

    def forget(self, until_s: float) -> None:
        while self._samples and self._samples[0][0] <= until_s:
            _, level = self._samples.popleft()
            self.ttft.subtract(level.ttft)
            self.tpot.subtract(level.tpot)


def _groups(samples: Sequence[Sample], max_groups: int) -> Iterator[Sequence[Sample]]:
    """The samples in at most `max_groups` groups of about equal time. A time without samples, while
    no controller ran, is in no group."""
    if not samples:
        return
    first_s = samples[0].time_s - samples[0].span_s
    span_s = max(FINE_S, (samples[-1].time_s - first_s) / max_groups)
    group: list[Sample] = []
    end_s = first_s + span_s
    for each in samples:
        if group and each.time_s > end_s + 0.5 * FINE_S:
            yield group
            group = []
        while each.time_s > end_s + 0.5 * FINE_S:
            end_s += span_s
        group.append(each)
    yield group
