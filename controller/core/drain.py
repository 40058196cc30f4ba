"""Emptying an instance by live migration: what would go where, what is left, and how long yet.

A drain is about where requests run, never about whether: whatever a deadline does, requests run
on. A plan is made from the last statuses and changes nothing; the moves themselves are chosen by
the llumlet of the draining instance, one by one, as room becomes free.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import median

from controller.core.choose_destination import choose_destination, lacks
from controller.core.cluster_spec import DrainOrder
from controller.core.migration.record import MoveRecord
from controller.core.migration.refusals import MoveRefusal
from controller.core.snapshot import InstanceSnapshot, Level, QueueHead, blocks_for

NO_DESTINATION = "no_destination"
"""No other instance may take requests at all."""
TOO_BUSY = "too_busy"
"""Those with room for it are no destinations at present: below the threshold, or with evicted
requests that wait."""
_PASSING = frozenset({MoveRefusal.IN_PREFILL, MoveRefusal.MOVING})
"""Refusals that end by themselves within steps."""


class DrainState(StrEnum):
    DRAINING = "draining"
    DRAINED = "drained"
    """Nothing is left there, and nothing comes."""
    ACTIVE = "active"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class Departing:
    """A request that is to leave. `num_tokens`: prompt and outputs so far. `refusal`: why its
    instance cannot move it now; empty if it can."""

    request_id: str
    client_id: str
    rank: int
    num_tokens: int
    queued: bool
    arrival_time_s: float
    refusal: str = ""

    @property
    def order(self) -> tuple[bool, int, float, str]:
        """The queue first and in its own order: it moves without a copy. Then the lowest rank, and
        the fewest tokens."""
        if self.queued:
            return (False, -self.rank, self.arrival_time_s, self.request_id)
        return (True, self.rank, self.num_tokens, self.request_id)


@dataclass(frozen=True, slots=True)
class Departure:
    """Where it would go, or the code of why it stays for now. `num_blocks`: 0 for a queued one."""

    request: Departing
    num_blocks: int
    destination_id: str | None
    code: str = ""


def plan_departures(
    departing: Iterable[Departing],
    destinations: Iterable[InstanceSnapshot],
    levels: Sequence[Level],
    block_size: int,
    is_open: Callable[[InstanceSnapshot], bool] = lambda _: True,
) -> tuple[Departure, ...]:
    """Each request once, in the order in which they are tried. Every one takes its room at its
    destination before the next one is placed. `is_open`: whether a draining instance is paired
    with one that is like this."""
    room = {snapshot.instance_id: snapshot for snapshot in destinations if not snapshot.draining}
    planned = []
    for request in sorted(departing, key=lambda each: each.order):
        num_blocks = 0 if request.queued else blocks_for(request.num_tokens, block_size)
        target, code = None, request.refusal
        if not code:
            candidates = [snapshot for snapshot in room.values() if is_open(snapshot)]
            target = choose_destination(candidates, levels, num_blocks)
            if target is None:
                code = _why_nowhere(room.values(), num_blocks)
            else:
                room[target] = _with(room[target], request, num_blocks)
        planned.append(Departure(request, num_blocks, target, code))
    return tuple(planned)


def _why_nowhere(room: Iterable[InstanceSnapshot], num_blocks: int) -> str:
    lacking = {lacks(snapshot, num_blocks) for snapshot in room}
    if None in lacking:
        return TOO_BUSY
    if MoveRefusal.NO_SLOT in lacking:  # that one has the blocks
        return MoveRefusal.NO_SLOT
    return MoveRefusal.NO_BLOCKS if lacking else NO_DESTINATION


def _with(snapshot: InstanceSnapshot, request: Departing, num_blocks: int) -> InstanceSnapshot:
    """As it would be with the request there."""
    if request.queued:
        demand = blocks_for(request.num_tokens, snapshot.block_size)
        head = QueueHead(request.request_id, request.rank, demand, request.arrival_time_s)
        return replace(
            snapshot,
            num_queued=snapshot.num_queued + 1,
            queued_demand_blocks=snapshot.queued_demand_blocks + demand,
            queue_head=snapshot.queue_head or head,
        )
    by_rank = dict(snapshot.num_running_by_rank)
    by_rank[request.rank] = by_rank.get(request.rank, 0) + 1
    return replace(
        snapshot,
        num_free_blocks=snapshot.num_free_blocks - num_blocks,
        num_running=snapshot.num_running + 1,
        num_running_by_rank=by_rank,
    )


@dataclass(frozen=True, slots=True)
class Remainder:
    """What an instance still has, as it said last. `num_unreported`: dispatched before the drain,
    and in no status yet."""

    num_running: int = 0
    num_queued: int = 0
    num_unreported: int = 0
    num_moves_in: int = 0
    num_moves_out: int = 0

    @property
    def num_requests(self) -> int:
        return self.num_running + self.num_queued + self.num_unreported

    @property
    def nothing(self) -> bool:
        return not (self.num_requests or self.num_moves_in or self.num_moves_out)


@dataclass(frozen=True, slots=True)
class MovePace:
    """How moves went lately. `overhead_s`: of one move, beside its copies."""

    blocks_per_s: float | None
    overhead_s: float


def measured_pace(records: Iterable[MoveRecord]) -> MovePace | None:
    """None if none of them moved anything."""
    moved = [record for record in records if record.outcome == "migrated"]
    if not moved:
        return None
    num_blocks = sum(record.num_blocks for record in moved)
    copy_time_s = sum(record.copy_time_s for record in moved)
    overhead_s = median(max(0.0, record.duration_s - record.copy_time_s) for record in moved)
    return MovePace(num_blocks / copy_time_s if copy_time_s > 0 else None, overhead_s)


def estimate_s(
    departures: Sequence[Departure], pace: MovePace | None, max_moves: int
) -> float | None:
    """Until all of them have left, `max_moves` at a time. None while nothing is known to tell
    from: no move yet, or a request that stays until it ends or until there is room."""
    if not departures:
        return 0.0
    stays = any(each.destination_id is None and each.code not in _PASSING for each in departures)
    if stays or pace is None:
        return None
    num_blocks = sum(each.num_blocks for each in departures)
    copy_time_s = 0.0
    if num_blocks:
        if not pace.blocks_per_s:
            return None
        copy_time_s = num_blocks / pace.blocks_per_s
    # Copies share the link, the rest of a move runs beside the others.
    return copy_time_s + len(departures) * pace.overhead_s / max(1, max_moves)


def is_overdue(order: DrainOrder, now_s: float) -> bool:
    """`now_s`: seconds since the epoch."""
    return order.deadline_s is not None and now_s >= order.deadline_s
