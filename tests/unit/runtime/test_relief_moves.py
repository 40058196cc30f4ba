"""Sources that relieve themselves or make room for blocked requests, with real llumlets of 64
blocks of 16 tokens each, engine threads and moves."""

from dataclasses import replace

import pytest

from controller.core.emptying.rounds import HeadOrder, Opening, ReliefOrder, RoomOrder
from controller.core.load.freeness import freeness
from controller.core.load.snapshot import DEFAULT_LEVELS, InstanceSnapshot
from controller.core.migration.protocol import Verb
from controller.core.migration.refusals import MoveRefusal
from controller.core.record.event_log import EventKind, LoggedEvent
from controller.core.settings import ReschedulingConfig
from controller.runtime.messages.members import DrainSet, Message
from controller.runtime.messages.move_messages import (
    HeadMoveOrdered,
    MoveEnvelope,
    MoveLimitsSet,
    ReliefFruitless,
    ReliefOrdered,
    RoomOrdered,
)
from tests.unit.runtime.moving_cluster import MovingCluster, says

CONFIG = ReschedulingConfig()
UNGUARDED = replace(CONFIG, guard=False)
"""Steps take next to no time here, so no move is worth it."""


async def snapshot(moving: MovingCluster, instance_id: str) -> InstanceSnapshot:
    instance = moving.instances[instance_id]
    return await moving.at_boundary(instance, lambda engine: engine.snapshot(instance_id, 1))


async def order(
    moving: MovingCluster,
    source_id: str = "i-0",
    destination_id: str = "i-1",
    config: ReschedulingConfig = UNGUARDED,
) -> None:
    found = await snapshot(moving, destination_id)
    source = await snapshot(moving, source_id)
    steps = {each.instance_id: freeness(each, DEFAULT_LEVELS) for each in (source, found)}
    relief = ReliefOrder(
        moving.controller.ref(destination_id),
        found,
        0.0,
        steps[source_id],
        steps[destination_id],
        tuple(steps.items()),
        DEFAULT_LEVELS,
        config,
    )
    moving.controller.send(source_id, ReliefOrdered("round-x-1", relief))


def at(moving: MovingCluster, instance_id: str) -> set[str]:
    return set(moving.instances[instance_id].serving.requests)


def told(moving: MovingCluster) -> list[LoggedEvent]:
    return [e for e in moving.controller.events if e.kind is EventKind.NOT_MOVED]


PRE_ALLOC = says(Verb.PRE_ALLOC)
LENGTHS = {"r0": 65, "r1": 81, "r2": 113, "r3": 129, "r4": 145, "r5": 161}
"""49 blocks of 64: 40 steps for the six of them, 64 without r0, 104 without
r1 too."""
TWO = replace(UNGUARDED, source_below_steps=100.0, destination_above_steps=100.0)


@pytest.mark.parametrize("how", ["withdrawn", "expired"])
async def test_without_an_order_no_further_move_begins(moving: MovingCluster, how: str) -> None:
    """What is under way ends."""
    await moving.crowd(LENGTHS)
    moving.controller.send("i-0", MoveLimitsSet(1, None))
    moving.network.hold(PRE_ALLOC)
    await order(moving, config=TWO)
    await moving.until(lambda: moving.network.num_held)
    if how == "expired":  # and no other one came: the controller is gone
        moving.clock.now_s += 2 * CONFIG.interval_s
    else:
        moving.controller.send("i-0", ReliefOrdered("round-x-2"))
        await moving.until(lambda: moving.a.serving.chosen_moves.machine.view().destination is None)
    moving.network.release()
    await moving.until(lambda: moving.controller.records)
    await moving.all_finish()
    (record,) = moving.controller.records
    assert (record.request_id, record.code) == ("r0", "")


async def test_one_that_will_be_ended_sends_one_after_the_other_over_a_limited_link(
    moving: MovingCluster,
) -> None:
    await moving.crowd(LENGTHS)
    moving.controller.send("i-0", MoveLimitsSet(4, 1e12))
    moving.controller.send("i-0", DrainSet(draining=True, leaves_in_s=600.0))
    moving.network.hold(PRE_ALLOC)
    moves = moving.a.serving.instance_moves
    await order(moving)
    await moving.until(moves.in_flight)
    await order(moving)
    await snapshot(moving, "i-0")
    assert [move.request_id for move in moves.in_flight()] == ["r5"]
    await order(moving, destination_id="i-2")  # another link
    await moving.until(lambda: len(moves.in_flight()) == 2)
    moving.network.release()
    await moving.until(lambda: not at(moving, "i-0"))
    assert {record.reason for record in moving.controller.records} == {"evacuate"}


@pytest.mark.parametrize("stage", ["/0", "/1"])
async def test_when_a_drain_is_cancelled_whoever_it_sends_and_is_not_handed_over_stays(
    moving: MovingCluster, stage: str
) -> None:
    """In its last stage a request is out of the batch, and goes on."""
    await moving.stream()
    moving.controller.send("i-0", DrainSet(draining=True))
    moving.a.transfer.holds = lambda stage_id: stage_id.endswith(stage)
    await order(moving)
    await moving.until(lambda: moving.a.transfer.holds_some)
    moving.controller.send("i-0", DrainSet(draining=False))
    await moving.until(lambda: not moving.a.serving.instance_moves.draining)
    moving.a.transfer.let_go()
    await moving.until(lambda: moving.controller.records)
    (record,) = moving.controller.records
    stays = stage == "/0"
    assert (record.outcome, record.code) == (
        ("kept", "drain_cancelled") if stays else ("migrated", "")
    )
    assert at(moving, "i-0" if stays else "i-1") == {"r"}


async def test_one_in_16_of_the_moves_that_it_begins_is_verified(moving: MovingCluster) -> None:
    """The first one, and later ones after 15 others; and none in a hurry."""
    asked: dict[str, bool] = {}

    def note(message: Message) -> bool:
        if isinstance(message, MoveEnvelope) and message.arriving is not None:
            asked[message.request_id] = message.arriving.verify_kv
        return False

    moving.network.drops = note
    await moving.crowd(LENGTHS)
    await order(moving, config=TWO)
    await moving.until(lambda: len(moving.controller.records) == 2)
    assert asked == {"r0": True, "r1": False}
    assert {record.outcome for record in moving.controller.records} == {"migrated"}


# -- nothing that may go there ----------------------------------------------------------------


async def test_the_controller_hears_once_of_an_order_that_nobody_can_go_there(
    moving: MovingCluster,
) -> None:
    """And so does who asks for the history of a request."""
    await moving.crowd(LENGTHS)
    moving.a.engine.moves.refusals = dict.fromkeys(LENGTHS, MoveRefusal.MULTIMODAL)
    fruitless = moving.controller.fruitless
    await order(moving)
    await moving.until(lambda: fruitless)
    await snapshot(moving, "i-0")
    assert fruitless == [ReliefFruitless("round-x-1", "i-0", 1, "i-1", 1)]
    await moving.until(lambda: len(told(moving)) == 2)
    assert [event.request_id for event in told(moving)] == ["r0", "r1"]
    (event,) = moving.events(EventKind.NOT_MOVED, "r0")
    assert event.cause_id == "round-x-1"
    assert event.reason == "to i-1: it has multimodal input (multimodal)"
    assert event.numbers["freeness_of_i-0"] == 40.0
    moving.a.engine.moves.refusals = {}
    await order(moving, config=TWO)
    await moving.until(lambda: len(moving.controller.records) == 2)
    assert len(fruitless) == 1, "something came of this one"


async def test_where_a_request_came_from_travels_with_it(moving: MovingCluster) -> None:
    await moving.stream()
    await moving.move()
    moving.clock.now_s += 5.0
    await moving.move("i-1", "i-2")
    moving.clock.now_s += 2.0
    past_instances = moving.instances["i-2"].serving.requests["r"].past_instances
    assert past_instances.ages(moving.clock.now_s) == (("i-0", 7.0), ("i-1", 2.0))


async def test_nothing_moves_in_to_a_draining_instance_until_it_takes_moves_again(
    moving: MovingCluster,
) -> None:
    async def drains(instance_id: str, draining: bool) -> None:
        moving.controller.send(instance_id, DrainSet(draining))
        statuses = moving.controller.statuses
        await moving.until(
            lambda: (found := statuses.get(instance_id)) and found.snapshot.draining is draining
        )

    await moving.stream()
    await drains("i-1", True)
    assert await moving.tried() == ("kept", MoveRefusal.DRAINING)
    assert await moving.tried("i-0", "i-2") == ("migrated", "")
    await drains("i-2", True)  # what is there moves out
    await drains("i-1", False)
    assert await moving.tried("i-2", "i-1") == ("migrated", "")


# -- room for blocked requests ------------------------------------------------------------


FEW = {"r0": 65, "r1": 129, "r2": 193}
"""5, 9 and 13 blocks."""
HELD = "held"


def order_room(
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


def told_no_room(moving: MovingCluster) -> list[LoggedEvent]:
    return [e for e in moving.controller.events if e.kind is EventKind.ROOM_NOT_MADE]


async def test_a_plan_is_given_up_whole_when_one_of_its_moves_fails(moving: MovingCluster) -> None:
    await moving.crowd(FEW)
    moving.controller.send("i-2", DrainSet(draining=True))
    await moving.until(lambda: moving.instances["i-2"].serving.instance_moves.draining)
    order_room(moving, 20, i_1=15, i_2=11)
    await moving.until(lambda: len(moving.controller.records) == 2)
    codes = {r.request_id: r.code for r in moving.controller.records}
    assert codes == {"r1": "draining", "r2": "plan_failed"}
    assert set(moving.a.serving.requests) == set(FEW)
    await moving.until(lambda: told_no_room(moving))
    (event,) = told_no_room(moving)
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
    order_room(moving, 1, source_id="i-1", i_2=60)
    await looked(moving, "i-1")
    here = moving.b.serving.instance_moves
    assert here.in_flight() == ()
    await moving.until(lambda: told_no_room(moving))
    assert told_no_room(moving)[0].labels["code"] == "no_plan"
    moving.network.drops = lambda envelope: False
    moving.clock.now_s += 0.5
    await moving.answer(move_id)
    await moving.until(lambda: here.refusal("r") is None)
    order_room(moving, 1, source_id="i-1", i_2=60)
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
