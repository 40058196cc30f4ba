"""What is remembered of each instance: the last minute, the last hour and its changes of state."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from controller.api.wire.status import InstanceState, InstanceStatus
from controller.api.wire.stream import StatusFrame

TREND_S = 60.0
HEAT_MINUTES = 60
MAX_CHANGES = 50
REMEMBERED_S = 3600.0
"""How long an instance that left is remembered."""


class Sample(NamedTuple):
    time_s: float
    freeness_steps: float | None
    step_time_s: float | None = None


class Minute(NamedTuple):
    """The KV use in one minute of the controller's clock: the sum of so many samples."""

    minute: int
    sum: float
    num: int

    @property
    def mean(self) -> float:
        return self.sum / self.num


@dataclass(frozen=True, slots=True)
class Change:
    """An instance turned up, changed its state, or went away (state None)."""

    time_s: float
    state: InstanceState | None
    incarnation: int
    detail: str
    was_so: bool = False
    """It was so when this began to look: at some time before, which nobody knows here."""


@dataclass(frozen=True, slots=True)
class History:
    """One instance's freeness in the last minute and its last changes, oldest first."""

    samples: tuple[Sample, ...] = ()
    """One of each second, from its first status: curves show no more, and a second's further
    statuses cost nothing."""
    changes: tuple[Change, ...] = ()
    minutes: tuple[Minute, ...] = ()
    """The KV use of the last hour, oldest first; minutes without a figure are missing."""


def after(known: Mapping[str, History], frame: StatusFrame) -> dict[str, History]:
    """The histories after one more status."""
    present = {item.id: item for item in frame.status.instances}
    is_first = not known
    found = {
        instance_id: _observed(
            known.get(instance_id, History()), item, frame.time_s, is_first=is_first
        )
        for instance_id, item in present.items()
    }
    for instance_id, history in known.items():
        if instance_id not in present and frame.time_s - history.changes[-1].time_s < REMEMBERED_S:
            found[instance_id] = _departed(history, frame.time_s)
    return found


def _observed(history: History, item: InstanceStatus, time_s: float, *, is_first: bool) -> History:
    samples, minutes = history.samples, history.minutes
    if not samples or int(samples[-1].time_s) != int(time_s):
        freeness = None if item.state is InstanceState.DRAINING else item.freeness_steps
        samples = (*_recent(samples, time_s), Sample(time_s, freeness, item.step_time_s))
        minutes = _minutes(minutes, item.kv_cache_usage, int(time_s // 60))
    changes = _changes(history.changes, item, time_s, was_so=is_first)
    if samples is history.samples and changes is history.changes:
        return history
    return History(samples, changes, minutes)


def _recent(samples: tuple[Sample, ...], time_s: float) -> tuple[Sample, ...]:
    """The samples of the minute before `time_s`; none if the clock was set back."""
    if samples and samples[-1].time_s > time_s:
        return ()
    first = 0
    while first < len(samples) and samples[first].time_s <= time_s - TREND_S:
        first += 1
    return samples[first:]


def _changes(
    known: tuple[Change, ...], item: InstanceStatus, time_s: float, *, was_so: bool
) -> tuple[Change, ...]:
    last = known[-1] if known else None
    if last is None or last.state is not item.state or last.incarnation != item.incarnation:
        change = Change(time_s, item.state, item.incarnation, item.detail, was_so)
        return (*known, change)[-MAX_CHANGES:]
    if last.detail == item.detail:
        return known
    return (*known[:-1], replace(last, detail=item.detail))


def _minutes(known: tuple[Minute, ...], usage: float | None, now: int) -> tuple[Minute, ...]:
    if known and (known[-1].minute > now or known[0].minute <= now - HEAT_MINUTES):
        known = tuple(each for each in known if now - HEAT_MINUTES < each.minute <= now)
    if usage is None:
        return known
    if known and known[-1].minute == now:
        last = known[-1]
        return (*known[:-1], Minute(now, last.sum + usage, last.num + 1))
    return (*known, Minute(now, usage, 1))


def _departed(history: History, time_s: float) -> History:
    last = history.changes[-1]
    if last.state is None:
        return history
    gone = Change(time_s, None, last.incarnation, "no longer part of the cluster")
    return History((), (*history.changes, gone)[-MAX_CHANGES:])
