"""A llumlet that is told to drain: no request moves in, requests that are there or still come are
served, and its statuses say that it drains."""

from controller.core.migration.refusals import MoveRefusal
from controller.runtime.messages.members import DrainSet, StatusPull
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


async def test_what_was_dispatched_before_is_served_and_each_status_says_so(
    moving: MovingCluster,
) -> None:
    await told(moving, "i-0", True)
    await moving.stream()
    assert moving.record().instance_id == "i-0"
    moving.controller.statuses.pop("i-0")
    moving.controller.send("i-0", StatusPull())
    await moving.until(lambda: "i-0" in moving.controller.statuses)
    assert moving.controller.statuses["i-0"].snapshot.draining
    assert not moving.controller.statuses["i-1"].snapshot.draining
