"""An order to move a request, and the records of moves: the plan of a move under way, the figures
of a move that is over, the cluster's log of moves that are over, and how fast blocks were copied
lately.

Times are by the caller's clock.
"""

from bisect import bisect_left
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median

from controller.core.load.snapshot import InstanceRef
from controller.core.migration.protocol import MAX_STAGES
from controller.core.migration.refusals import why
from controller.core.record.event_log import Number
from controller.core.record.windows import CountWindow

DESTINATION_DIED = "destination_died"

# -- one move ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MoveOrder:
    """An order to a source, by the controller or by the source itself. `migration_id` is empty if
    only a plan is wanted."""

    migration_id: str
    request_id: str
    destination: InstanceRef
    reason: str
    verify_kv: bool = False
    max_stages: int = MAX_STAGES


@dataclass(frozen=True, slots=True)
class StageRecord:
    """One stage's copy, as the source or the destination measured it. The time includes waits for
    the bandwidth limit."""

    num_blocks: int
    num_bytes: int
    copy_time_s: float


@dataclass(frozen=True, slots=True)
class MoveRecord:
    """One move that is over. `outcome`: the last state of the source's machine. `code`: why the
    outcome is not `migrated`. `num_cached_blocks`: how many blocks the destination already had."""

    migration_id: str
    request_id: str
    source_id: str
    destination_id: str
    reason: str
    outcome: str
    code: str
    num_tokens: int
    num_cached_blocks: int
    duration_s: float
    stages: tuple[StageRecord, ...] = ()
    decision: Mapping[str, Number] = field(default_factory=dict)
    """The figures by which the cluster chose the move; empty if the cluster did not choose it."""
    waited: bool = False
    """Whether the request waited for memory: before it moved, or at the destination before its
    first token there. Then its client waited for the memory, and not for the move."""
    differing: tuple[str, ...] = ()
    """In what the two engines differ (`ranks`, `vllm`). If in anything, the tokens after the move
    may differ from those without it."""

    @property
    def num_blocks(self) -> int:
        return sum(stage.num_blocks for stage in self.stages)

    @property
    def num_bytes(self) -> int:
        return sum(stage.num_bytes for stage in self.stages)

    @property
    def copy_time_s(self) -> float:
        return sum(stage.copy_time_s for stage in self.stages)

    def labels(self) -> Mapping[str, str]:
        """The labels of this move's event."""
        labels = {"from": self.source_id, "to": self.destination_id, "reason": self.reason}
        if self.differing:
            labels["inexact"] = " ".join(self.differing)
        return labels | ({"code": self.code, "why": why(self.code)} if self.code else {})

    def numbers(self) -> Mapping[str, Number]:
        """The figures of this move's event: the figures of the decision, totals, then the figures
        of each stage."""
        figures: dict[str, Number] = {
            **self.decision,
            "num_stages": len(self.stages),
            "num_tokens": self.num_tokens,
            "num_blocks": self.num_blocks,
            "num_cached_blocks": self.num_cached_blocks,
            "num_bytes": self.num_bytes,
            "copy_time_s": self.copy_time_s,
            "duration_s": self.duration_s,
        }
        for index, stage in enumerate(self.stages):
            figures[f"stage_{index}_blocks"] = stage.num_blocks
            figures[f"stage_{index}_bytes"] = stage.num_bytes
            figures[f"stage_{index}_copy_time_s"] = stage.copy_time_s
        return figures


@dataclass(frozen=True, slots=True)
class MoveInFlight:
    """One move under way, as its source sees it."""

    migration_id: str
    request_id: str
    destination_id: str
    state: str
    stage: int
    num_blocks_copied: int
    num_blocks: int
    """The number of the request's blocks: the full ones, and the one that is being filled. 0 while
    the request is queued."""
    reason: str
    age_s: float


@dataclass(frozen=True, slots=True)
class MovePlan:
    """What a move would cost: an estimate by the source, which moves nothing."""

    num_tokens: int
    num_blocks: int
    num_bytes: int
    expected_copy_time_s: float | None
    """None if this is not known, because nothing was copied yet."""


# -- the moves that are over --------------------------------------------------------------

MAX_RECENT = 16
DOWNTIME_BOUNDS_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)
OUTCOMES = ("migrated", "kept", "resumed", "ended")


@dataclass(slots=True)
class EndedMove:
    """A move that ended. `downtime_s` and `excess_s` are known once the client has got its next
    token."""

    record: MoveRecord
    ended_s: float
    downtime_s: float | None = None
    excess_s: float | None = None


class MoveLog:
    """The moves that are over, as the cluster counts them."""

    def __init__(self) -> None:
        self.recent: deque[EndedMove] = deque(maxlen=MAX_RECENT)
        """The latest moves that ended, the newest at the end."""
        self.num_by_outcome: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))
        self.num_by_reason: Counter[tuple[str, str]] = Counter()
        """How many moves ended, by (outcome, reason)."""
        self.num_bytes = 0
        """The bytes copied by all moves, including failed moves."""
        self.num_downtimes = [0] * (len(DOWNTIME_BOUNDS_S) + 1)
        """For each bound, how many moves had a downtime up to that bound but above the previous
        one. The last number counts the downtimes above all bounds."""
        self.sum_downtimes_s = 0.0
        self._timed: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """(downtime, excess) by move, for the latest few that were timed before they ended."""
        self._migrated, self._failed = CountWindow(), CountWindow()
        """The moves that ended within the last minute. A move whose request ended is in neither
        collection."""

    def ended(self, record: MoveRecord, now_s: float, reason: str) -> None:
        """Counts a move that is over. `reason`: one of `cluster_spec.MOVE_REASONS`."""
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
        """The request's frontend reports how long its client waited in a move."""
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
        """How many moves ended in the last minute: (migrated, failed)."""
        return self._migrated.total(now_s), self._failed.total(now_s)

    def typical_excess_s(self) -> float | None:
        """The median excess of the latest moves; None if none of them was timed."""
        excesses_s = [move.excess_s for move in self.recent if move.excess_s is not None]
        return median(excesses_s) if excesses_s else None


# -- how fast blocks are copied -----------------------------------------------------------

NUM_MOVES_MEASURED = 16
MAX_LINKS = 256
_Copied = tuple[int, float]
"""(how much was copied, in how many seconds)."""


class CopyRates:
    """How fast blocks were copied lately over each of one instance's links, from the latest moves
    over the link that succeeded and copied something.

    An instance uses it to estimate how long a move to a destination would take. The controller uses
    `measured_pace` to estimate how long a drain will take. Both estimates divide all that was
    copied by all the time that it took. In a mean of the rates of single moves, a move of one
    block, most of whose time is the round trip, would weigh as much as a move of hundreds of
    blocks. Waits for the bandwidth limit are part of a copy's time.
    """

    def __init__(self) -> None:
        self._all: deque[_Copied] = deque(maxlen=NUM_MOVES_MEASURED)
        self._by_destination: OrderedDict[str, deque[_Copied]] = OrderedDict()
        """By link, in bytes; the link that was used most recently is at the end."""

    def measured(self, record: MoveRecord) -> None:
        """Takes a move's record into account. Ignores a move that failed or copied nothing."""
        if record.outcome != "migrated" or record.copy_time_s <= 0 or not record.num_bytes:
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
        """The rate to that instance, or the rate over all links if nothing was copied to that
        instance yet; None if nothing was copied at all."""
        return _rate(self._by_destination.get(destination_id) or self._all)


@dataclass(frozen=True, slots=True)
class MovePace:
    """How fast moves went lately. `overhead_s`: the time that one move takes in addition to its
    copies."""

    blocks_per_s: float | None
    overhead_s: float


def measured_pace(records: Iterable[MoveRecord]) -> MovePace | None:
    """The pace of these moves; None if none of them moved a request. The pace is in blocks, because
    the controller does not know how many bytes a block has."""
    moved = [record for record in records if record.outcome == "migrated"]
    if not moved:
        return None
    overhead_s = median(max(0.0, record.duration_s - record.copy_time_s) for record in moved)
    return MovePace(_rate((each.num_blocks, each.copy_time_s) for each in moved), overhead_s)


def _rate(copied: Iterable[_Copied]) -> float | None:
    amounts = list(copied)
    time_s = sum(each[1] for each in amounts)
    return sum(each[0] for each in amounts) / time_s if time_s > 0 else None
