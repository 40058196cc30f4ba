"""The moves that are over, as the cluster counts them. Pure: times are the caller's."""

from bisect import bisect_left
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass
from statistics import median

from controller.core.load.windows import CountWindow
from controller.core.migration.record import MoveRecord

MAX_RECENT = 16
DOWNTIME_BOUNDS_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)
OUTCOMES = ("migrated", "kept", "resumed", "ended")


@dataclass(slots=True)
class EndedMove:
    """`downtime_s` and `excess_s` are known when the client got its next token."""

    record: MoveRecord
    ended_s: float
    downtime_s: float | None = None
    excess_s: float | None = None


class MoveLog:
    def __init__(self) -> None:
        self.recent: deque[EndedMove] = deque(maxlen=MAX_RECENT)
        """The last moves that ended, the newest last."""
        self.num_by_outcome: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))
        self.num_by_reason: Counter[tuple[str, str]] = Counter()
        """By (outcome, reason)."""
        self.num_bytes = 0
        """Bytes copied by all moves, also by those that came to nothing."""
        self.num_downtimes = [0] * (len(DOWNTIME_BOUNDS_S) + 1)
        """Moves by the first bound that their downtime does not exceed; the last number is of those
        above all bounds."""
        self.sum_downtimes_s = 0.0
        self._timed: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """(downtime, excess) by move, for the last few that were timed before they ended."""
        self._migrated, self._failed = CountWindow(), CountWindow()
        """Those of the last minute. A move whose request ended is neither."""

    def ended(self, record: MoveRecord, now_s: float, reason: str) -> None:
        """`reason`: one of `leaving.MOVE_REASONS`."""
        downtime_s, excess_s = self._timed.pop(record.migration_id, (None, None))
        self.recent.append(EndedMove(record, now_s, downtime_s, excess_s))
        self.num_by_outcome[record.outcome] += 1
        self.num_by_reason[record.outcome, reason] += 1
        self.num_bytes += record.num_bytes
        if record.outcome == "migrated":
            self._migrated.add(1, now_s)
        elif record.outcome != "ended":
            self._failed.add(1, now_s)

    def timed(self, migration_id: str, downtime_s: float, excess_s: float) -> None:
        """The request's frontend says how long its client waited in a move."""
        self.num_downtimes[bisect_left(DOWNTIME_BOUNDS_S, downtime_s)] += 1
        self.sum_downtimes_s += downtime_s
        for move in self.recent:
            if move.record.migration_id == migration_id:
                move.downtime_s, move.excess_s = downtime_s, excess_s
                return
        self._timed[migration_id] = (downtime_s, excess_s)
        if len(self._timed) > MAX_RECENT:
            self._timed.popitem(last=False)

    def last_minute(self, now_s: float) -> tuple[int, int]:
        """How many moves (migrated, failed)."""
        return self._migrated.total(now_s), self._failed.total(now_s)

    def typical_excess_s(self) -> float | None:
        """The median of the last moves; None if none was timed."""
        found = [move.excess_s for move in self.recent if move.excess_s is not None]
        return median(found) if found else None
