"""Wire models of what waits at the controller instead of at an instance.

The compatibility rules are those of `base`. Codes and units: docs/metrics.md.
"""

from pydantic import Field

from controller.api.wire.base import WireModel


class HeldPlaceStatus(WireModel):
    """A held request. `place`: 1 goes first. `why` it waits and by whom it may be `overtaken_by`
    are codes. `instance_id`: the instance that is kept for it, and the blocks that lack there; if
    none is, where the fewest are missing. `num_overtaken`: how many went ahead while it was the
    first. Blocks are null while no instance has told the size of one, or none takes requests."""

    place: int
    why: str
    demand_blocks: int | None = None
    instance_id: str | None = None
    lacking_blocks: int | None = None
    overtaken_by: str = ""
    num_overtaken: int = 0


class HeldHeadStatus(HeldPlaceStatus):
    """The first of all that is held, or the oldest. `waited_s`: since it came to its frontend."""

    request_id: str
    frontend_id: str
    level: str
    rank: int
    waited_s: float


class HeldStatus(WireModel):
    """All that the controller holds. `oldest_wait_s`: of whichever arrived first; that is `oldest`,
    if it is not the head."""

    num_by_level: dict[str, int] = Field(default_factory=dict)
    demand_blocks: int | None = None
    oldest_wait_s: float
    head: HeldHeadStatus
    oldest: HeldHeadStatus | None = None


class KeptForStatus(WireModel):
    """The held request that an instance is kept free for, and the blocks that lack there."""

    request_id: str
    level: str
    demand_blocks: int
    lacking_blocks: int
    waited_s: float
