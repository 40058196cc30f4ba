"""A plan for emptying an instance by live migration: which request would go where.

The plan is made from the last statuses and changes nothing; the llumlet of the draining instance
chooses the moves themselves, one by one, as room becomes free.
"""

from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from controller.core.load.freeness import freeness
from controller.core.load.snapshot import InstanceSnapshot, Level
from controller.core.migration.refusals import MoveRefusal
from controller.core.rescheduling.candidate import Candidate
from controller.core.rescheduling.choose_destination import NO_DESTINATION, lacks
from controller.core.rescheduling.projection import with_arrivals, with_queued

TOO_BUSY = "too_busy"
"""Instances have room for the request, but are no destinations now: they are below the threshold,
or have evicted requests that wait."""


@dataclass(frozen=True, slots=True)
class Departure:
    """Where a request would go, or the code of why it stays. `client_id` is its client's name of
    it."""

    request: Candidate
    client_id: str
    destination_id: str | None
    code: str = ""


class DeparturePlan:
    """Requests are placed one by one; each takes its room before the next one is placed.

    One placement changes one destination, so only that one's freeness is computed anew: with 63
    destinations and 1,000 requests 1,000 times rather than 63,000. `is_open`: whether a draining
    instance may be paired with this destination.
    """

    def __init__(
        self,
        destinations: Iterable[InstanceSnapshot],
        levels: Sequence[Level],
        is_open: Callable[[InstanceSnapshot], bool],
    ) -> None:
        self._levels = levels
        self._is_open = is_open
        self._room = {each.instance_id: each for each in destinations if not each.draining}
        self._open: list[tuple[float, str]] = []
        """(-freeness, id), the freest first."""
        for snapshot in self._room.values():
            self._note(snapshot)

    def place(self, request: Candidate, client_id: str) -> Departure:
        if request.refusal:
            return Departure(request, client_id, None, request.refusal)
        for index, (_, instance_id) in enumerate(self._open):
            there = self._room[instance_id]
            if lacks(there, request.num_blocks) is None:
                del self._open[index]
                after = with_queued if request.queued else with_arrivals
                self._room[instance_id] = after(there, [request])
                self._note(self._room[instance_id])
                return Departure(request, client_id, instance_id)
        return Departure(request, client_id, None, self._why_nowhere(request.num_blocks))

    def _note(self, snapshot: InstanceSnapshot) -> None:
        if self._is_open(snapshot):
            insort(self._open, (-freeness(snapshot, self._levels), snapshot.instance_id))

    def _why_nowhere(self, num_blocks: int) -> str:
        lacking = {lacks(snapshot, num_blocks) for snapshot in self._room.values()}
        if None in lacking:
            return TOO_BUSY
        if MoveRefusal.NO_SLOT in lacking:  # some instance has the blocks
            return MoveRefusal.NO_SLOT
        return MoveRefusal.NO_BLOCKS if lacking else NO_DESTINATION
