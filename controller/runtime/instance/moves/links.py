"""How fast the last copies from this instance to others were."""

from collections import OrderedDict, deque

from controller.core.migration.record import MoveRecord

NUM_MOVES_MEASURED = 16
MAX_LINKS = 256


class Links:
    """The rates include waits for the bandwidth limit, which are part of a copy's time."""

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
        """The mean rate to that instance, or over all links if nothing went there yet; None if
        nothing was copied yet."""
        found = self._by_destination.get(destination_id) or self._all
        return sum(found) / len(found) if found else None
