"""Room that is made for blocked requests, with real llumlets, engine threads and moves.

Each instance has 64 blocks of 16 tokens.
"""

from controller.core.emptying.rounds import HeadOrder, Opening, RoomOrder
from controller.core.migration.protocol import Verb
from controller.core.record.event_log import EventKind, LoggedEvent
from controller.core.settings import ReschedulingConfig
from controller.runtime.messages.members import DrainSet
from controller.runtime.messages.move_messages import (
    HeadMoveOrdered,
    MoveLimitsSet,
    RoomOrdered,
)
from tests.unit.runtime.moving_cluster import MovingCluster, says

CONFIG = ReschedulingConfig()
LENGTHS = {"r0": 65, "r1": 129, "r2": 193}
"""5, 9 and 13 blocks."""
HELD = "held"


def order(
    moving: MovingCluster,
    lacking_blocks: int,
    request_id: str = HELD,
    source_id: str = "i-0",
    **spare_blocks: int,
) -> None:
    """`spare_blocks` by instance, `i_1` for i-1."""
    openings = tuple(
        Opening(moving.controller.ref(name.replace("_", "-")), blocks)
        for name, blocks in spare_blocks.items()
    )
    frontend = moving.controller.members["f-0"].address if request_id else ""
    room = RoomOrder("round-x-1", request_id, frontend, 0, lacking_blocks, openings, CONFIG)
    moving.controller.send(source_id, RoomOrdered(room))


async def looked(moving: MovingCluster, source_id: str = "i-0") -> None:
    """The order before this call has been looked at."""
    source = moving.instances[source_id]

    limit = MoveLimitsSet(source.serving.instance_moves.max_moves, None)
    moving.controller.send(source_id, limit)
    for _ in range(3):
        await moving.at_boundary(source, lambda engine: None)


def under_way(moving: MovingCluster) -> dict[str, str]:
    """Request to destination."""
    moves = moving.a.serving.instance_moves.in_flight()
    return {move.request_id: move.destination_id for move in moves}


def told(moving: MovingCluster) -> list[LoggedEvent]:
    return [e for e in moving.controller.events if e.kind is EventKind.ROOM_NOT_MADE]


async def test_those_leave_that_make_the_room_with_the_fewest_blocks(moving: MovingCluster) -> None:
    await moving.crowd(LENGTHS)
    order(moving, 7, i_1=20, i_2=12)
    await moving.until(lambda: moving.controller.records)
    (record,) = moving.controller.records
    assert (record.request_id, record.destination_id) == ("r1", "i-2")
    assert (record.outcome, record.reason) == ("migrated", "room")
    assert (record.decision["lacking_blocks"], record.decision["freed_blocks"]) == (7, 9)


async def test_a_plan_is_given_up_whole_when_one_of_its_moves_fails(moving: MovingCluster) -> None:
    await moving.crowd(LENGTHS)
    moving.controller.send("i-2", DrainSet(draining=True))
    await moving.until(lambda: moving.instances["i-2"].serving.instance_moves.draining)
    order(moving, 20, i_1=15, i_2=11)
    await moving.until(lambda: len(moving.controller.records) == 2)
    codes = {r.request_id: r.code for r in moving.controller.records}
    assert codes == {"r1": "draining", "r2": "plan_failed"}
    assert set(moving.a.serving.requests) == set(LENGTHS)
    await moving.until(lambda: told(moving))
    (event,) = told(moving)
    assert (event.request_id, event.instance_id, event.cause_id) == (HELD, "i-0", "round-x-1")
    assert event.reason == (
        "on i-0: of 2 moves one to i-2 failed: the destination is draining (draining)"
    )


async def test_one_that_has_come_stays_until_its_source_has_let_go_of_it(
    moving: MovingCluster,
) -> None:
    """In the hop after this one its source may have it back: two instances would decode in it."""
    await moving.stream("r")
    moving.network.drops = says(Verb.COMMITTED)
    move_id = moving.order(request_id="r")
    await moving.until(lambda: moving.destination_state(move_id) == "committed")
    order(moving, 1, source_id="i-1", i_2=60)
    await looked(moving, "i-1")
    here = moving.b.serving.instance_moves
    assert here.in_flight() == ()
    await moving.until(lambda: told(moving))
    assert told(moving)[0].labels["code"] == "no_plan"
    moving.network.drops = lambda envelope: False
    moving.clock.now_s += 0.5
    await moving.answer(move_id)
    await moving.until(lambda: here.refusal("r") is None)
    order(moving, 1, source_id="i-1", i_2=60)
    await moving.until(lambda: moving.controller.records)
    assert moving.controller.records[0].destination_id == "i-2"


async def test_a_blocked_head_goes_elsewhere_with_nothing_to_copy(moving: MovingCluster) -> None:
    await moving.crowd({"r0": 480, "r1": 480, "r2": 100})
    assert list(moving.a.engine.waiting) == ["r2"]
    destination = moving.controller.ref("i-1")
    for request_id in ("r0", "r2"):  # r0 runs: it is no head any more
        head = HeadOrder("round-x-1", request_id, destination, CONFIG)
        moving.controller.send("i-0", HeadMoveOrdered(head))
    await moving.until(lambda: moving.controller.records)
    (record,) = moving.controller.records
    assert (record.request_id, record.outcome) == ("r2", "migrated")
    assert (record.reason, record.num_bytes) == ("blocked head", 0)
    assert set(moving.b.serving.requests) == {"r2"}
