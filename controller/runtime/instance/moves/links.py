"""How fast blocks get from here to other instances, as the last copies showed."""

from collections import OrderedDict, deque

from controller.core.migration.record import MoveRecord

NUM_MOVES_MEASURED = 16
MAX_LINKS = 256


class Links:
    """Waits for the bandwidth limit are part of a copy's time, and so of what it shows."""

    def __init__(self) -> None:
        self._all: deque[float] = deque(maxlen=NUM_MOVES_MEASURED)
        self._by_destination: OrderedDict[str, deque[float]] = OrderedDict()
        """Bytes per second, the last used link last."""

    def measured(self, record: MoveRecord) -> None:
        if record.copy_time_s <= 0 or not record.num_bytes:
            return
        bytes_per_s = record.num_bytes / record.copy_time_s
        link = self._by_destination.setdefault(
            record.destination_id, deque(maxlen=NUM_MOVES_MEASURED)
        )
        self._by_destination.move_to_end(record.destination_id)
        if len(self._by_destination) > MAX_LINKS:
            self._by_destination.popitem(last=False)
        for found in (self._all, link):
            found.append(bytes_per_s)

    def bytes_per_s(self, destination_id: str) -> float | None:
        """To that instance; of all links if nothing went there yet. None if nothing was copied at
        all."""
        found = self._by_destination.get(destination_id) or self._all
        return sum(found) / len(found) if found else None
