"""The last minutes of the cluster, as the graphs show them: a point for each second or so.

The controller tells its history when the dashboard connects, and from then on what is new. A
recording begins with the same. Where nobody tells the history (in the rest of a recording, or if
the controller is older), points are derived from the statuses: then a P99 is that of the worst
frontend, and moves are those that a status lists as ended.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from controller.api.figures import gauges_of, loads_by_level
from controller.api.recording import PAST_S
from controller.api.wire.history import Column, HistoryReport
from controller.api.wire.status import ClusterStatus

POINT_S = 1.0


class LevelPast(NamedTuple):
    """The requests of a level. `ttft_p99_s`: of the last minute."""

    num_running: float
    num_waiting: float
    ttft_p99_s: float | None


class PastPoint(NamedTuple):
    """The `span_s` seconds up to `time_s`. Shares are of all memory; `num_moved` and `num_evicted`
    are what happened within this time."""

    time_s: float
    span_s: float
    kv_held: float | None
    kv_wanted: float | None
    num_moved: float
    num_evicted: float
    levels: Mapping[str, LevelPast]


@dataclass(frozen=True, slots=True)
class Past:
    """`points`: the oldest first. `is_told`: whether the controller itself tells its history, so
    that no points are derived."""

    points: tuple[PastPoint, ...] = ()
    is_told: bool = False
    freeness: Mapping[str, Sequence[tuple[float, float | None]]] = field(default_factory=dict)
    """What was told of the freeness of each instance: times and decode steps."""
    _evictions: Mapping[str, int] = field(default_factory=dict)
    """How many requests each process had evicted by the last status."""

    @property
    def last_s(self) -> float:
        """When the last point ends; minus infinity if there is none."""
        return self.points[-1].time_s if self.points else float("-inf")

    def with_history(self, report: HistoryReport) -> "Past":
        """The past after the controller, or a recording, told its history. Derived points give way
        to those that are told."""
        if report.instances:
            return replace(self, freeness=_freeness(report))
        new = tuple(_points(report))
        if not new:
            return self
        known = self.points if self.is_told else ()
        before = tuple(each for each in known if each.time_s < new[0].time_s)
        return replace(self, points=_kept((*before, *new)))

    def with_status(self, status: ClusterStatus) -> "Past":
        """The past after a status from which a point may have to be derived."""
        time_s, last_s = status.time_s, self.last_s
        if self.is_told or last_s <= time_s < last_s + POINT_S:
            return self
        points = self.points if time_s >= last_s else ()  # the clock was set back
        begin_s = points[-1].time_s if points else time_s - POINT_S
        evictions = {
            f"{each.id}/{each.incarnation}": each.num_evictions
            for each in status.instances
            if each.num_evictions is not None
        }
        gauges = gauges_of(status)
        ttfts_s = {each.name: each.ttft_p99_s for each in status.levels}
        point = PastPoint(
            time_s,
            min(time_s - begin_s, PAST_S),
            gauges.get("kv_held_share"),
            gauges.get("kv_wanted_share"),
            sum(
                each.outcome == "migrated" and each.ended_s > begin_s for each in status.ended_moves
            ),
            sum(
                max(0, num - self._evictions.get(process, num))
                for process, num in evictions.items()
            ),
            {
                name: LevelPast(*loads, ttfts_s[name])
                for name, loads in loads_by_level(status).items()
            },
        )
        return replace(self, points=_kept((*points, point)), _evictions=evictions)


def _kept(points: tuple[PastPoint, ...]) -> tuple[PastPoint, ...]:
    first, end = 0, points[-1].time_s - PAST_S
    while points[first].time_s <= end:
        first += 1
    return points[first:]


def _points(report: HistoryReport) -> Iterable[PastPoint]:
    levels = {
        name: _rows(report, each.num_running_reqs, each.num_waiting_reqs, each.ttft_p99_s)
        for name, each in report.levels.items()
    }
    names = ("kv_held_share", "kv_wanted_share", "num_migrated", "num_evictions")
    rows = _rows(report, report.span_s, *(report.cluster.get(name, ()) for name in names))
    for at, (time_s, row) in enumerate(zip(report.time_s, rows, strict=True)):
        if time_s is None:
            continue
        span_s, held, wanted, moved, evicted = row
        yield PastPoint(
            time_s,
            span_s or POINT_S,
            held,
            wanted,
            moved or 0.0,
            evicted or 0.0,
            {
                name: LevelPast(found[at][0] or 0.0, found[at][1] or 0.0, found[at][2])
                for name, found in levels.items()
                if found[at][0] is not None
            },
        )


def _rows(report: HistoryReport, *columns: Column) -> list[tuple[float | None, ...]]:
    """The columns by point. A column that is missing, or shorter than the others, has no values
    there."""
    num = len(report.time_s)
    whole = [(*column[:num], *(None,) * (num - len(column))) for column in columns]
    return list(zip(*whole, strict=True))


def _freeness(report: HistoryReport) -> dict[str, tuple[tuple[float, float | None], ...]]:
    return {
        instance_id: tuple(
            (time_s, row[0])
            for time_s, row in zip(
                report.time_s, _rows(report, columns.get("freeness_steps", ())), strict=True
            )
            if time_s is not None
        )
        for instance_id, columns in report.instances.items()
    }
