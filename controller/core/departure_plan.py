"""Emptying an instance by live migration: which request would go where.

Made from the last statuses, it changes nothing; the moves themselves are chosen by the llumlet of
the draining instance, one by one, as room becomes free.
"""

from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from controller.core.choose_destination import NO_DESTINATION, lacks
from controller.core.freeness import freeness
from controller.core.migration.refusals import MoveRefusal
from controller.core.rescheduling.victims import departing_in_turn
from controller.core.snapshot import InstanceSnapshot, Level, QueueHead, blocks_for

TOO_BUSY = "too_busy"
"""Those with room for it are no destinations at present: below the threshold, or with evicted
requests that wait."""


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


@dataclass(frozen=True, slots=True)
class Departure:
    """Where it would go, or the code of why it stays for now. `num_blocks`: 0 for a queued one."""

    request: Departing
    num_blocks: int
    destination_id: str | None
    code: str = ""


class DeparturePlan:
    """Requests are placed one by one; each takes its room before the next one is placed.

    One placement changes one destination, so only that one's freeness is computed anew: with 63
    others and 1,000 requests it is 1,000 times rather than 63,000. `is_open`: whether a draining
    instance is paired with one that is like this.
    """

    def __init__(
        self,
        destinations: Iterable[InstanceSnapshot],
        levels: Sequence[Level],
        block_size: int,
        is_open: Callable[[InstanceSnapshot], bool] = lambda _: True,
    ) -> None:
        self._levels = levels
        self._block_size = block_size
        self._is_open = is_open
        self._room = {each.instance_id: each for each in destinations if not each.draining}
        self._open: list[tuple[float, str]] = []
        """(-freeness, id), the freest first."""
        for snapshot in self._room.values():
            self._note(snapshot)

    def place(self, request: Departing) -> Departure:
        num_blocks = 0 if request.queued else blocks_for(request.num_tokens, self._block_size)
        if request.refusal:
            return Departure(request, num_blocks, None, request.refusal)
        for index, (_, instance_id) in enumerate(self._open):
            if lacks(self._room[instance_id], num_blocks) is None:
                del self._open[index]
                self._room[instance_id] = _with(self._room[instance_id], request, num_blocks)
                self._note(self._room[instance_id])
                return Departure(request, num_blocks, instance_id)
        return Departure(request, num_blocks, None, self._why_nowhere(num_blocks))

    def _note(self, snapshot: InstanceSnapshot) -> None:
        if self._is_open(snapshot):
            insort(self._open, (-freeness(snapshot, self._levels), snapshot.instance_id))

    def _why_nowhere(self, num_blocks: int) -> str:
        lacking = {lacks(snapshot, num_blocks) for snapshot in self._room.values()}
        if None in lacking:
            return TOO_BUSY
        if MoveRefusal.NO_SLOT in lacking:  # that one has the blocks
            return MoveRefusal.NO_SLOT
        return MoveRefusal.NO_BLOCKS if lacking else NO_DESTINATION


def plan_departures(
    departing: Iterable[Departing],
    destinations: Iterable[InstanceSnapshot],
    levels: Sequence[Level],
    block_size: int,
    is_open: Callable[[InstanceSnapshot], bool] = lambda _: True,
    victim: str = "llumnix",
) -> tuple[Departure, ...]:
    """Each request once, in the order in which they are tried."""
    plan = DeparturePlan(destinations, levels, block_size, is_open)
    return tuple(plan.place(each) for each in departing_in_turn(departing, victim))


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
