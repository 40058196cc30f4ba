"""Which instance a request should move to: the freest that has room for it.

The measure is `freeness`. The caller leaves dead and silent instances out.
"""

from collections.abc import Iterable, Sequence

from controller.core.load.freeness import freeness, freest_first
from controller.core.load.snapshot import InstanceSnapshot, Level
from controller.core.migration.refusals import MoveRefusal

NO_DESTINATION = "no_destination"
"""No other instance may take requests at all."""


def lacks(snapshot: InstanceSnapshot, num_blocks: int) -> MoveRefusal | None:
    """What an instance lacks for a request that holds `num_blocks`; 0 for a queued one, which needs
    neither blocks nor a place in the batch."""
    if num_blocks == 0:
        return None
    if snapshot.arrivable_blocks < num_blocks:
        return MoveRefusal.NO_BLOCKS
    if snapshot.max_num_running and snapshot.num_running >= snapshot.max_num_running:
        return MoveRefusal.NO_SLOT
    return None


def choose_destination(
    candidates: Iterable[InstanceSnapshot], levels: Sequence[Level], num_blocks: int
) -> str | None:
    """The id of the chosen instance; None if none may take the request."""
    scores = {
        snapshot.instance_id: freeness(snapshot, levels)
        for snapshot in candidates
        if not snapshot.draining and lacks(snapshot, num_blocks) is None
    }
    return min(scores, key=lambda each: freest_first(scores[each], each), default=None)
