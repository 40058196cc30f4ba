"""What the controller orders an instance in a round. Orders travel as they are."""

from controller.core.instance_ref import InstanceRef
from controller.core.load.snapshot import InstanceSnapshot, Level
from controller.core.settings import ReschedulingConfig
from controller.core.value import value


@value
class ReliefOrder:
    """Where a source may send requests, and by which rules it chooses them. `snapshot_age_s`: how
    long ago the controller got the destination's snapshot. Both freenesses are those at the moment
    of pairing, in decode steps."""

    destination: InstanceRef
    snapshot: InstanceSnapshot
    snapshot_age_s: float
    source_freeness: float
    destination_freeness: float
    candidates: tuple[tuple[str, float], ...]
    """(instance id, freeness) of the freest destinations, best first, for an explanation."""
    levels: tuple[Level, ...]
    config: ReschedulingConfig


@value
class HeadOrder:
    """The queue head `request_id` is to wait at the destination, where it fits."""

    round_id: str
    request_id: str
    destination: InstanceRef
    config: ReschedulingConfig


@value
class Opening:
    """An instance to which requests may leave, and what they may take of it."""

    destination: InstanceRef
    spare_blocks: int


@value
class RoomOrder:
    """So many blocks are to become free by moves of requests of at most `rank`, or no move is to
    begin. `request_id`: for whom; empty for the growth of all that run there. `frontend`: the
    address of that of a request which the controller holds; else empty."""

    round_id: str
    request_id: str
    frontend: str
    rank: int
    lacking_blocks: int
    openings: tuple[Opening, ...]
    config: ReschedulingConfig
