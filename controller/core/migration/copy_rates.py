"""How fast blocks went from one instance to another lately: the one estimate of it.

An instance asks how long a move to a destination would take, the controller how long a drain will.
Both divide all that went by all the time that it took. In a mean of the single moves' rates a move
of one block, most of whose time is the way there and back, would weigh as much as one of hundreds.
Waits for the bandwidth limit are part of a copy's time.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from controller.core.migration.record import MoveRecord

NUM_MOVES_MEASURED = 16
MAX_LINKS = 256
_Copied = tuple[int, float]
"""How much, and in how many seconds."""


class CopyRates:
    """Of one instance's links, by the last moves over each that came to something."""

    def __init__(self) -> None:
        self._all: deque[_Copied] = deque(maxlen=NUM_MOVES_MEASURED)
        self._by_destination: OrderedDict[str, deque[_Copied]] = OrderedDict()
        """In bytes; the last used link last."""

    def measured(self, record: MoveRecord) -> None:
        """Ignores a move that came to nothing, or copied nothing."""
        if not _moved(record) or record.copy_time_s <= 0 or not record.num_bytes:
            return
        link = self._by_destination.setdefault(
            record.destination_id, deque(maxlen=NUM_MOVES_MEASURED)
        )
        self._by_destination.move_to_end(record.destination_id)
        if len(self._by_destination) > MAX_LINKS:
            self._by_destination.popitem(last=False)
        for copied in (self._all, link):
            copied.append((record.num_bytes, record.copy_time_s))

    def bytes_per_s(self, destination_id: str) -> float | None:
        """To that instance, or over all links if nothing went there yet; None if nothing was copied
        yet."""
        return _rate(self._by_destination.get(destination_id) or self._all)


@dataclass(frozen=True, slots=True)
class MovePace:
    """How fast moves went lately. `overhead_s`: the time of one move beside its copies."""

    blocks_per_s: float | None
    overhead_s: float


def measured_pace(records: Iterable[MoveRecord]) -> MovePace | None:
    """None if none of the moves moved anything. In blocks, as the controller does not know how many
    bytes a block has."""
    moved = [record for record in records if _moved(record)]
    if not moved:
        return None
    overhead_s = median(max(0.0, record.duration_s - record.copy_time_s) for record in moved)
    return MovePace(_rate((each.num_blocks, each.copy_time_s) for each in moved), overhead_s)


def _moved(record: MoveRecord) -> bool:
    return record.outcome == "migrated"


def _rate(copied: Iterable[_Copied]) -> float | None:
    amounts = list(copied)
    time_s = sum(each[1] for each in amounts)
    return sum(each[0] for each in amounts) / time_s if time_s > 0 else None
