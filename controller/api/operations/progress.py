"""How far an order is that goes on after its answer: read from the statuses that come anyway."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from controller.api.text import rolling_words
from controller.api.wire.operations import DrainReport, ScaleReport
from controller.api.wire.status import ClusterStatus, InstanceState, InstanceStatus

_STARTING = (InstanceState.STARTING, InstanceState.RESTARTING, InstanceState.FAILED)


class End(StrEnum):
    """How an order ends for an instance."""

    DRAINED = "drained"
    REMOVED = "removed"
    RESTARTED = "restarted"
    STARTED = "started"
    ROLLED = "rolled"
    """All instances are restarted; the one of the order is none."""


@dataclass(frozen=True, slots=True)
class Awaited:
    """`drain_id`: the drain, or the rolling restart, that must be over; `incarnation`: that of the
    process that is to go."""

    instance_id: str
    end: End
    drain_id: str = ""
    incarnation: int | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    text: str
    is_over: bool = False
    failed: bool = False


def awaited(report: DrainReport) -> tuple[Awaited, ...]:
    """What remains of a drain, or of a restart, when it has begun."""
    end = End.RESTARTED if report.restarts_instance else End.DRAINED
    if report.removes_instance:
        end = End.REMOVED
    if not report.drain_id or (report.safe_to_delete and end is End.DRAINED):
        return ()
    return (Awaited(report.instance_id, end, report.drain_id, report.incarnation),)


def awaited_of_scale(report: ScaleReport) -> tuple[Awaited, ...]:
    new = tuple(Awaited(each, End.STARTED) for each in report.added)
    return new + tuple(item for each in report.draining for item in awaited(each))


def progress(wanted: Sequence[Awaited], status: ClusterStatus) -> Progress:
    """Of all of them together: over when each is."""
    instances = {item.id: item for item in status.instances}
    found = [
        (
            each,
            _rolled(each, status)
            if each.end is End.ROLLED
            else _one(each, instances.get(each.instance_id)),
        )
        for each in wanted
    ]
    if len(found) == 1:
        return found[0][1]
    return Progress(
        ", ".join(f"{each.instance_id}: {it.text}" for each, it in found),
        is_over=all(it.is_over for _, it in found),
        failed=any(it.failed for _, it in found),
    )


def _rolled(wanted: Awaited, status: ClusterStatus) -> Progress:
    found = status.rolling
    if found is None or found.rolling_id != wanted.drain_id:
        return Progress("another one began", is_over=True, failed=True)
    text = rolling_words.progress(found).removeprefix("rolling restart: ")
    return Progress(text, found.state != "going", failed=found.state in ("failed", "stopped"))


def _one(wanted: Awaited, found: InstanceStatus | None) -> Progress:
    if wanted.end is End.STARTED:
        return _start(found)
    if found is None:
        is_removed = wanted.end is End.REMOVED
        return Progress("removed" if is_removed else "it is gone", True, failed=not is_removed)
    drain = found.drain
    if drain is None or drain.drain_id != wanted.drain_id:
        return _without_drain(wanted, found)
    if wanted.end is End.RESTARTED and found.state in _STARTING:
        return _start(found)
    if drain.safe_to_delete and wanted.end is End.DRAINED:
        return Progress("drained", is_over=True)
    left = drain.num_requests_left
    words = f"{left} request{'' if left == 1 else 's'} left, {found.num_moves_out or 0} migrating"
    return Progress(words)


def _start(found: InstanceStatus | None) -> Progress:
    if found is None:
        return Progress("not launched yet")
    if found.state is InstanceState.ACTIVE:
        return Progress("serves", is_over=True)
    if found.state is InstanceState.FAILED:
        return Progress(f"failed: {found.detail}".rstrip(": "), is_over=True, failed=True)
    return Progress(found.detail or str(found.state))


def _without_drain(wanted: Awaited, found: InstanceStatus) -> Progress:
    """The drain is over and the instance is there: of a restart, another process may be."""
    before = wanted.incarnation
    if wanted.end is End.RESTARTED and before is not None and found.incarnation > before:
        if found.state not in _STARTING:
            return Progress("restarted", is_over=True)
        return _start(found)
    return Progress("taken back, or given up at its deadline", is_over=True, failed=True)
