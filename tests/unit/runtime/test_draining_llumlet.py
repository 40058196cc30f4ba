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


async def test_nothing_moves_in(moving: MovingCluster) -> None:
    await moving.stream()
    await told(moving, "i-1", True)
    answer = await moving.move()
    assert answer.code == MoveRefusal.DRAINING
    assert answer.record is not None
    assert answer.record.outcome == "kept"
    assert (await moving.move("i-0", "i-2")).code == ""
    await moving.finishes()
    await moving.nothing_is_left()


async def test_what_is_there_moves_out_and_it_takes_moves_again_afterwards(
    moving: MovingCluster,
) -> None:
    await moving.stream()
    await told(moving, "i-0", True)
    assert (await moving.move()).code == ""
    await told(moving, "i-0", False)
    assert (await moving.move("i-1", "i-0")).code == ""
    assert moving.record().instance_id == "i-0"
    await moving.finishes()
    await moving.nothing_is_left()


async def test_what_was_dispatched_before_is_served(moving: MovingCluster) -> None:
    await told(moving, "i-0", True)
    await moving.stream()
    assert moving.record().instance_id == "i-0"
    await moving.finishes()
    await moving.nothing_is_left()


async def test_each_status_says_so(moving: MovingCluster) -> None:
    await told(moving, "i-2", True)
    moving.controller.statuses.pop("i-2")
    moving.controller.send("i-2", StatusPull())
    await moving.until(lambda: "i-2" in moving.controller.statuses)
    assert moving.controller.statuses["i-2"].snapshot.draining
    assert not moving.controller.statuses["i-1"].snapshot.draining
