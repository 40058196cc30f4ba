"""Trouble that an operator must see, each with its cause in a line:
`i-6: 61 wait, head for 3m02s needs 280 of 186 blocks; P99 TTFT 2m46s; memory is fragmented`.

The dashboard's alarm line and `llumctl status` say the same. `[console]` has the limits.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from controller.api.text.quantities import duration, latency, printable

if TYPE_CHECKING:
    from controller.api.settings.console import ConsoleTable
    from controller.api.wire.models import (
        ClusterStatus,
        FrontendStatus,
        InstanceStatus,
        QueueHeadStatus,
    )

CLUSTER = "cluster"
_STATES = ("failed", "stalled", "restarting")
"""States of a member that are trouble by themselves, the worst first."""
_LOAD, _MOVES, _BUSY = len(_STATES), len(_STATES) + 1, len(_STATES) + 2
_WHYS: Mapping[str, str] = {
    "fragmented": "memory is fragmented",
    "memory": "memory is full everywhere",
    "batch-full": "its batch is full",
}


@dataclass(frozen=True, slots=True)
class Alarm:
    """`subject`: a member's id, or CLUSTER. The lower `gravity` is, the worse it is."""

    subject: str
    causes: tuple[str, ...]
    gravity: tuple[int, float]

    @property
    def text(self) -> str:
        return printable(f"{self.subject}: {'; '.join(self.causes)}")


def alarms(
    status: "ClusterStatus",
    limits: "ConsoleTable",
    evicted_heads_s: Mapping[str, float] | None = None,
) -> list[Alarm]:
    """The worst first; ties in the order of the status.

    A request that ran and was evicted tells its age, not how long it has waited:
    `evicted_heads_s` has, by instance, how long it has been seen as the queue head.
    """
    if status.state == "stopping":
        return []
    is_known = any(
        _over(item.ttft_p99_s or 0.0, limits.alarm_ttft_p99_s) for item in status.instances
    )
    found = [
        *(
            _of_instance(item, status.time_s, limits, evicted_heads_s or {})
            for item in status.instances
        ),
        *(_of_frontend(item, limits, slow=not is_known) for item in status.frontends),
        _of_held(status, limits),
        _of_moves(status, limits),
    ]
    return sorted((alarm for alarm in found if alarm.causes), key=lambda alarm: alarm.gravity)


def in_need(item: "InstanceStatus") -> bool:
    """Whether more memory is wanted than there is, beyond the headroom that is kept beside
    requests of a high priority."""
    return _is_negative(item) and not is_reserved(item)


def is_reserved(item: "InstanceStatus") -> bool:
    """Whether the freeness is negative only because of headroom: the instance is kept free."""
    if not _is_negative(item) or item.virtual_usage_blocks is None or not item.num_total_blocks:
        return False
    capacity = item.num_total_blocks - (item.watermark_blocks or 0)
    return item.virtual_usage_blocks - (item.headroom_blocks or 0) <= capacity


def _is_negative(item: "InstanceStatus") -> bool:
    return item.freeness_steps is not None and item.freeness_steps < 0


def _of_instance(
    item: "InstanceStatus",
    now_s: float,
    limits: "ConsoleTable",
    evicted_heads_s: Mapping[str, float],
) -> Alarm:
    causes = list(_of_state(item))
    rank = _STATES.index(item.state) if causes else _LOAD
    head, waiting = item.queue_head, item.num_waiting_reqs or 0
    waited_s = 0.0
    if head is not None:
        waited_s = evicted_heads_s.get(item.id, 0.0) if head.evicted else head.waited_s
    late = _over(waited_s, limits.alarm_head_waited_s)
    crowded = _over(waiting, limits.alarm_waiting_reqs)
    slow = _over(item.ttft_p99_s or 0.0, limits.alarm_ttft_p99_s)
    queued = bool(late or crowded)
    if queued:
        causes.append(f"{waiting} wait{_of_head(item, head, waited_s)}")
    if slow:
        causes.append(f"P99 TTFT {latency(item.ttft_p99_s)}")
    if queued and head is not None and head.why in _WHYS:
        causes.append(_WHYS[head.why])
    drain = item.drain
    overdue_s = 0.0
    if drain is not None and drain.deadline_s is not None and not drain.safe_to_delete:
        overdue_s = max(0.0, now_s - drain.deadline_s)
        if overdue_s:
            left = drain.num_requests_left
            causes.append(f"drain {duration(overdue_s)} over its deadline, {left} requests left")
    if not causes and item.state == "active" and item.detail:
        return Alarm(item.id, (item.detail,), (_BUSY, 0.0))
    return Alarm(item.id, tuple(causes), (rank, -max(late, crowded, slow, overdue_s / 60)))


def _of_head(item: "InstanceStatus", head: "QueueHeadStatus | None", waited_s: float) -> str:
    if head is None:
        return ""
    words = f", head for {duration(waited_s)}" if waited_s else ""
    free = free_blocks(item)
    if free is not None and head.demand_blocks > free:
        words += f"{' ' if words else ', head '}needs {head.demand_blocks} of {free} blocks"
    return words


def free_blocks(item: "InstanceStatus") -> int | None:
    """Blocks that a queued request may take: free ones above the watermark."""
    if item.num_free_blocks is None:
        return None
    return max(0, item.num_free_blocks - (item.watermark_blocks or 0))


def _of_frontend(item: "FrontendStatus", limits: "ConsoleTable", *, slow: bool) -> Alarm:
    """`slow`: whether its TTFT is news; its requests are those of the instances."""
    causes = list(_of_state(item))
    if causes:
        return Alarm(item.id, tuple(causes), (_STATES.index(item.state), 0.0))
    slow = slow and bool(_over(item.ttft_p99_s or 0.0, limits.alarm_ttft_p99_s))
    words = (f"P99 TTFT {latency(item.ttft_p99_s)} over all instances",) if slow else ()
    return Alarm(item.id, words, (_BUSY, 0.0))


def _of_state(item: "InstanceStatus | FrontendStatus") -> Iterator[str]:
    if item.state in _STATES:
        silent = f", last heard of {duration(item.age_s)} ago" if item.age_s is not None else ""
        yield f"{item.state}{f' ({item.detail})' if item.detail else silent}"


def _of_held(status: "ClusterStatus", limits: "ConsoleTable") -> Alarm:
    over = _over(status.num_held_reqs, limits.alarm_waiting_reqs)
    words = (f"{status.num_held_reqs} requests are held, as no instance takes any",)
    return Alarm(CLUSTER, words if over else (), (_LOAD, -over))


def _of_moves(status: "ClusterStatus", limits: "ConsoleTable") -> Alarm:
    """Names the way and the reason that are most frequent among the last that came to nothing."""
    num_failed, num_migrated = status.num_failed_moves_last_minute, status.num_migrated_last_minute
    over = _over(num_failed, limits.alarm_failed_moves)
    if not over or num_failed <= num_migrated:
        return Alarm(CLUSTER, (), (_MOVES, 0.0))
    failed = Counter(
        f"{move.from_instance_id}>{move.to_instance_id} {move.why}"
        for move in status.ended_moves
        if move.outcome != "migrated"
    )
    mostly = f", mostly {failed.most_common(1)[0][0]}" if failed else ""
    words = f"{num_failed} of {num_failed + num_migrated} moves came to nothing{mostly}"
    return Alarm(CLUSTER, (words,), (_MOVES, -over))


def _over(value: float, limit: float) -> float:
    """How many times the limit the value is, if at least once; else 0. A limit of 0 is none."""
    return value / limit if limit and value >= limit else 0.0
