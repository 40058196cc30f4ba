"""A llumlet that is told to drain: no request moves in, requests that are there or still come are
served, and its statuses say that it drains."""

from controller.core.migration.refusals import MoveRefusal
from controller.runtime.messages.members import DrainSet
from tests.unit.runtime.moving_cluster import MovingCluster


async def told(moving: MovingCluster, instance_id: str, draining: bool) -> None:
    moving.controller.send(instance_id, DrainSet(draining))
    await moving.until(
        lambda: (
            instance_id in moving.controller.statuses
            and moving.controller.statuses[instance_id].snapshot.draining is draining
        )
    )


async def test_nothing_moves_in_until_it_takes_moves_again(moving: MovingCluster) -> None:
    await moving.stream()
    await told(moving, "i-1", True)
    assert await moving.tried() == ("kept", MoveRefusal.DRAINING)
    assert await moving.tried("i-0", "i-2") == ("migrated", "")
    await told(moving, "i-2", True)  # what is there moves out
    await told(moving, "i-1", False)
    assert await moving.tried("i-2", "i-1") == ("migrated", "")
