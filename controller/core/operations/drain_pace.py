"""How long a drain may take yet, from how moves went lately."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from controller.core.migration.record import MoveRecord
from controller.core.migration.refusals import reason_of
from controller.core.operations.departure_plan import Departure


@dataclass(frozen=True, slots=True)
class MovePace:
    """How fast moves went lately. `overhead_s`: the time of one move beside its copies."""

    blocks_per_s: float | None
    overhead_s: float


def measured_pace(records: Iterable[MoveRecord]) -> MovePace | None:
    """None if none of the moves moved anything."""
    moved = [record for record in records if record.outcome == "migrated"]
    if not moved:
        return None
    num_blocks = sum(record.num_blocks for record in moved)
    copy_time_s = sum(record.copy_time_s for record in moved)
    overhead_s = median(max(0.0, record.duration_s - record.copy_time_s) for record in moved)
    return MovePace(num_blocks / copy_time_s if copy_time_s > 0 else None, overhead_s)


def estimate_s(
    departures: Sequence[Departure], pace: MovePace | None, max_moves: int, num_left: int = 0
) -> float | None:
    """Seconds until all `departures` have left, `max_moves` at a time. None while that cannot be
    told: nothing was moved yet, a request stays until it ends or until there is room, or the
    instance counts more requests (`num_left`) than the plan has."""
    if len(departures) < num_left:
        return None
    if not departures:
        return 0.0
    stays = any(
        each.destination_id is None and not reason_of(each.code).passes for each in departures
    )
    if stays or pace is None:
        return None
    num_blocks = sum(each.request.num_blocks for each in departures)
    copy_time_s = 0.0
    if num_blocks:
        if not pace.blocks_per_s:
            return None
        copy_time_s = num_blocks / pace.blocks_per_s
    # Copies share the link; the rest of a move runs beside other moves.
    return copy_time_s + len(departures) * pace.overhead_s / max(1, max_moves)
