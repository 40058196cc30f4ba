"""Alarms: problems that an operator must see. Each has its causes in one line, so that nobody has
to look for the causes in the panes: `i-6: 61 wait, head for 3m02s needs 180 blocks, 86 are free;
P99 TTFT 2m46s; memory is full everywhere`.

The dashboard's alarm line and `llumctl status` say the same. `[console]` has the limits. The rules
come first in this file, the words about causes after them.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from controller.api.text.quantities import duration, latency, printable
from controller.api.text.status_words import (
    BACKGROUND_LEVEL,
    blocks,
    free_blocks,
    head_wait_s,
    held_why,
    is_reserved,
    no_requests,
)

if TYPE_CHECKING:
    from controller.api.settings.settings import ConsoleTable
    from controller.api.wire.status import (
        ClusterStatus,
        FrontendStatus,
        HeldHeadStatus,
        InstanceStatus,
        QueueHeadStatus,
    )

CLUSTER = "cluster"
CLEARED_SHARE = 0.8
"""A figure that has passed its limit stays an alarm until it is below this share of the limit.
Otherwise an alarm would come and go with every status when its figure goes up and down around the
limit."""
ABSENT_STATES = ("failed", "stalled", "restarting")
"""The states of a member that are alarms by themselves, the worst first."""
_CORRUPT, _LOAD, _MOVES, _BUSY = range(len(ABSENT_STATES), len(ABSENT_STATES) + 4)

GIANT_RATIO = 0.25
"""The words about a queue head that needs at least this share of an instance name the share."""
FEW_REQS = 10
"""If at most this many requests hold most of an instance, they are called giants. An instance has
room for some 30 usual requests."""
MOST_RATIO = 0.75

_QUEUE_WHYS: Mapping[str, str] = {
    "memory": "memory is full everywhere",
    "batch-full": "its batch is full",
}


@dataclass(frozen=True, slots=True)
class Alarm:
    """`subject`: a member's id, or CLUSTER. The lower `gravity` is, the worse the alarm is."""

    subject: str
    causes: tuple[str, ...]
    gravity: tuple[int, float]
    passed: tuple[str, ...] = ()
    """The names in `[console]` of the limits that are passed."""

    @property
    def text(self) -> str:
        return printable(f"{self.subject}: {'; '.join(self.causes)}")


@dataclass(frozen=True, slots=True)
class _Limits:
    table: "ConsoleTable"
    raised: Collection[tuple[str, str]]

    def over(self, subject: str, name: str, value: float) -> float:
        """The value divided by the limit of this name, if the value is an alarm; otherwise 0. A
        limit of 0 means no alarm."""
        limit: float = getattr(self.table, name)
        if not limit or value < limit * CLEARED_SHARE:
            return 0.0
        return value / limit if value >= limit or (subject, name) in self.raised else 0.0

    def all_over(self, subject: str, **values: float) -> dict[str, float]:
        """The names of the limits that these values pass, each with the quotient that `over`
        returns for it."""
        overs = {name: self.over(subject, name, value) for name, value in values.items()}
        return {name: over for name, over in overs.items() if over}


def alarms(
    status: "ClusterStatus", limits: "ConsoleTable", before: Collection[Alarm] = ()
) -> list[Alarm]:
    """The alarms, the worst first; equally bad ones in the order of the status. `before`: the
    alarms so far. Each of them lasts until its figure is well below the limit."""
    if status.state == "stopping":
        return []
    bounds = _Limits(limits, {(alarm.subject, name) for alarm in before for name in alarm.passed})
    of_instances = [_of_instance(item, status, bounds) for item in status.instances]
    is_known = any("alarm_ttft_p99_s" in alarm.passed for alarm in of_instances if alarm)
    found = [
        *of_instances,
        *(_of_frontend(item, bounds, slow=not is_known) for item in status.frontends),
        _of_held(status, bounds),
        _of_slow_moves(status, limits.alarm_move_s),
        _of_moves(status, bounds),
    ]
    return sorted(filter(None, found), key=lambda alarm: alarm.gravity)


def _of_instance(item: "InstanceStatus", status: "ClusterStatus", limits: _Limits) -> Alarm | None:
    causes = list(_of_state(item))
    if_well = _CORRUPT if item.corrupt_links else _LOAD
    rank = ABSENT_STATES.index(item.state) if causes else if_well
    causes += _of_links(item)
    if item.state == "stalled":
        causes += _hurt_by_silence(item)
    head, waiting = item.queue_head, item.num_waiting_reqs or 0
    waiting -= item.num_waiting_by_level.get(BACKGROUND_LEVEL, 0)
    if head is not None and head.level == BACKGROUND_LEVEL:
        head = None  # nobody waits for it
    waited_s = (head_wait_s(head) or 0.0) if head is not None else 0.0
    overs = limits.all_over(
        item.id,
        alarm_head_waited_s=waited_s,
        alarm_waiting_reqs=waiting,
        alarm_ttft_p99_s=item.ttft_p99_s or 0.0,
    )
    queued = not overs.keys().isdisjoint(("alarm_head_waited_s", "alarm_waiting_reqs"))
    if queued:
        causes.append(f"{waiting} wait{_of_head(item, head, waited_s)}")
    if "alarm_ttft_p99_s" in overs:
        causes.append(f"P99 TTFT {latency(item.ttft_p99_s)}")
    if queued:
        causes += _why_queued(item, status)
    if overs:
        causes += _by_levels(item, status)
    drain = item.drain
    overdue_s = 0.0
    if drain is not None and drain.deadline_s is not None and not drain.safe_to_delete:
        overdue_s = max(0.0, status.time_s - drain.deadline_s)
        if overdue_s:
            left = drain.num_requests_left
            causes.append(f"drain {duration(overdue_s)} over its deadline, {left} requests left")
            causes += _why_not_drained(item, status)
    if not causes:
        busy = item.state == "active" and item.detail
        return Alarm(item.id, (item.detail,), (_BUSY, 0.0)) if busy else None
    gravity = (rank, -max(*overs.values(), overdue_s / 60, 0.0))
    return Alarm(item.id, tuple(causes), gravity, tuple(overs))


def _of_head(item: "InstanceStatus", head: "QueueHeadStatus | None", waited_s: float) -> str:
    if head is None:
        return ""
    words = f", head for {duration(waited_s)}" if waited_s else ""
    free = free_blocks(item)
    if free is not None and head.demand_blocks > free:
        share = _share(head.demand_blocks, item.num_total_blocks)
        words += f"{' ' if words else ', head '}needs {head.demand_blocks} blocks{share}"
        words += f", {free} are free"
    return words


def _of_frontend(item: "FrontendStatus", limits: _Limits, *, slow: bool) -> Alarm | None:
    """The alarm about a frontend, if there is one. `slow`: whether a slow TTFT of the frontend
    counts. It does not count if an instance already has that alarm, because the frontend's requests
    run on the instances."""
    causes = list(_of_state(item))
    if causes:
        return Alarm(item.id, tuple(causes), (ABSENT_STATES.index(item.state), 0.0))
    name = "alarm_ttft_p99_s"
    if not (slow and limits.over(item.id, name, item.ttft_p99_s or 0.0)):
        return None
    words = f"P99 TTFT {latency(item.ttft_p99_s)} over all instances"
    return Alarm(item.id, (words,), (_BUSY, 0.0), (name,))


def _of_state(item: "InstanceStatus | FrontendStatus") -> Iterator[str]:
    if item.state in ABSENT_STATES:
        silent = f", last heard of {duration(item.age_s)} ago" if item.age_s is not None else ""
        yield f"{item.state}{f' ({item.detail})' if item.detail else silent}"


def _of_links(item: "InstanceStatus") -> Iterator[str]:
    """Says from where KV blocks came that were changed on their way."""
    if item.corrupt_links:
        yield f"KV copies from {', '.join(item.corrupt_links)} arrived changed"


def _of_held(status: "ClusterStatus", limits: _Limits) -> Alarm | None:
    """The alarm of the queue at the controller. It names the request that has waited longest in
    that queue."""
    held = status.held
    if held is None:
        return None
    num_held = status.num_held_reqs - held.num_by_level.get(BACKGROUND_LEVEL, 0)
    overs = limits.all_over(
        CLUSTER, alarm_head_waited_s=held.oldest_wait_s, alarm_waiting_reqs=num_held
    )
    if not overs:
        return None
    longest = held.oldest or held.head
    words = [f"{num_held} held, {_held_head(longest, status)}"]
    words += _why_held(longest, status)
    return Alarm(CLUSTER, tuple(words), (_LOAD, -max(overs.values())), tuple(overs))


def _of_slow_moves(status: "ClusterStatus", limit_s: float) -> Alarm | None:
    """The alarm of moves that take long. It names the instance that most of them come from or go
    to."""
    slow = [each for each in status.moves if limit_s and each.age_s >= limit_s]
    if not slow:
        return None
    to = Counter(each.to_instance_id for each in slow)
    of = Counter(each.from_instance_id for each in slow)
    (most_to, num_to), (most_of, num_of) = to.most_common(1)[0], of.most_common(1)[0]
    towards = num_to >= num_of
    instance_id, number = (most_to, num_to) if towards else (most_of, num_of)
    oldest = max(
        (each for each in slow if instance_id in (each.to_instance_id, each.from_instance_id)),
        key=lambda each: each.age_s,
    )
    words = (
        f"{number} slow move{'s' if number > 1 else ''} {'to' if towards else 'from'} it:"
        f" {oldest.num_blocks_copied} of {oldest.num_blocks} blocks in {duration(oldest.age_s)}"
    )
    return Alarm(instance_id, (words,), (_MOVES, -oldest.age_s / limit_s))


def _of_moves(status: "ClusterStatus", limits: _Limits) -> Alarm | None:
    """The alarm of failed moves. It names the way and the reason that are most frequent among the
    last moves that failed."""
    num_failed, num_migrated = status.num_failed_moves_last_minute, status.num_migrated_last_minute
    name = "alarm_failed_moves"
    over = limits.over(CLUSTER, name, num_failed)
    share = CLEARED_SHARE if (CLUSTER, name) in limits.raised else 1.0
    if not over or num_failed <= share * num_migrated:
        return None
    failed = Counter(
        f"{move.from_instance_id}>{move.to_instance_id} {move.why}"
        for move in status.ended_moves
        if move.outcome != "migrated"
    )
    mostly = f", mostly {failed.most_common(1)[0][0]}" if failed else ""
    words = f"{num_failed} of {num_failed + num_migrated} moves failed{mostly}"
    return Alarm(CLUSTER, (words,), (_MOVES, -over), (name,))


def _share(demand_blocks: int, num_total_blocks: int | None) -> str:
    """`, 81% of an instance` for a giant; else empty."""
    if not num_total_blocks or demand_blocks < GIANT_RATIO * num_total_blocks:
        return ""
    return f", {demand_blocks / num_total_blocks:.0%} of an instance"


def _why_queued(item: "InstanceStatus", status: "ClusterStatus") -> Iterator[str]:
    """Why requests wait at the instance."""
    head = item.queue_head
    # If all together have no room, the verdict says so, and no place for this one request helps.
    is_full = status.verdict is not None and status.verdict.word == "overloaded"
    if head is not None and not is_full:
        if head.why == "fragmented":
            yield _fragmented(item, head.demand_blocks, status)
        elif head.why in _QUEUE_WHYS:
            yield _QUEUE_WHYS[head.why]
    yield from _giants(item, "it")


def _giants(item: "InstanceStatus", name: str) -> Iterator[str]:
    """Says that a few requests hold most of the instance, if they do."""
    running, usage = item.num_running_reqs or 0, item.kv_cache_usage or 0.0
    if 0 < running <= FEW_REQS and usage >= MOST_RATIO:
        yield f"{running} request{'s hold' if running > 1 else ' holds'} {usage:.0%} of {name}"


def _held_head(head: "HeldHeadStatus", status: "ClusterStatus") -> str:
    """`head for 45s needs 688 blocks, lacks 198 on i-3, kept for it, 81% of an instance`. If a
    request other than the head has waited longest: `longest 45s (normal) needs ...`."""
    waited = duration(head.waited_s)
    words = f"head for {waited}" if head.place == 1 else f"longest {waited} ({head.level})"
    if head.demand_blocks is None:
        return words
    words += f" needs {blocks(head.demand_blocks)}"
    if head.why == "kept" and head.lacking_blocks:
        words += f", lacks {head.lacking_blocks} on {head.instance_id}, kept for it"
    largest = max((item.num_total_blocks or 0 for item in status.instances), default=0)
    return words + _share(head.demand_blocks, largest)


def _why_held(head: "HeldHeadStatus", status: "ClusterStatus") -> Iterator[str]:
    """Why the request waits at the controller."""
    if head.why != "kept" or not head.lacking_blocks:
        yield held_why(head)
    for item in status.instances:
        if item.id == head.instance_id:
            yield from _giants(item, item.id)
    if head.place > 1:
        yield f"{head.place - 1} before it"


def _fragmented(item: "InstanceStatus", demand_blocks: int, status: "ClusterStatus") -> str:
    """Says where there would be room for the head of a queue. Free blocks do not count as room for
    it if requests wait there, or their instance is reserved or gets no new requests."""
    alike = [each for each in status.instances if each.model == item.model and each.id != item.id]
    active = [each for each in alike if each.state == "active"]
    others = [each for each in active if not (no_requests(each) or each.num_waiting_reqs)]
    rooms = [(free_blocks(each) or 0, each.id) for each in others if not is_reserved(each)]
    blocks, freest = max(rooms, default=(0, ""))
    if freest and blocks >= demand_blocks:
        return f"{freest} has room for it ({blocks} blocks)"
    kept = [(free_blocks(each) or 0, each.id) for each in others if is_reserved(each)]
    num_kept, reserved = max(kept, default=(0, ""))
    if reserved and num_kept >= demand_blocks:
        return f"{reserved} has room ({num_kept} blocks), but it is reserved"
    return "memory is fragmented" + (f", {freest} has most: {blocks}" if freest else "")


def _by_levels(item: "InstanceStatus", status: "ClusterStatus") -> Iterator[str]:
    """Says that most of the instance's running requests have a priority level that keeps a
    headroom, if that is so."""
    running = item.num_running_reqs or 0
    for level in status.levels:
        number = item.num_running_by_level.get(level.name, 0)
        if level.target_load_tokens is not None and number > running / 2:
            yield f"{number} of {running} running are {level.name}"


def _hurt_by_silence(item: "InstanceStatus") -> Iterator[str]:
    """How many requests are on an instance that does not answer."""
    number = (item.num_running_reqs or 0) + (item.num_waiting_reqs or 0)
    if number:
        yield f"{number} request{'s stand' if number > 1 else ' stands'} still there"


def _why_not_drained(item: "InstanceStatus", status: "ClusterStatus") -> Iterator[str]:
    """Why the last moves away from an instance failed."""
    moves = [each for each in status.ended_moves if each.from_instance_id == item.id]
    failed = Counter(each.why for each in moves if each.outcome != "migrated" and each.why)
    if failed and len(moves) <= 2 * failed.total():
        yield f"its moves fail: {failed.most_common(1)[0][0]}"
