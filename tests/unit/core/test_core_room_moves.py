"""Which requests leave an instance to make room: rules that live and simulated instances share."""

from dataclasses import replace

from controller.core.emptying import room_plan
from controller.core.settings import ReschedulingConfig
from tests.unit.rescheduling.relief_builders import BLOCK_SIZE, queued, running

CONFIG = ReschedulingConfig(max_moves_per_minute=2)
TWICE = (("i-8", 59.0), ("i-9", 3.0))
HEAD = queued("head", 60, arrival_time_s=1.0)


def found(*here, lacking=10, spare=None, may_begin=4, config=CONFIG) -> room_plan.RoomPlan:
    order = room_plan.MakeRoom("i-0", "head", 0, lacking, spare or {"i-1": 50})
    return room_plan.room_plan_for(order, here, BLOCK_SIZE, may_begin, 4, config)


def moves(leaving) -> list[tuple[str, str]]:
    return [(each.candidate.request_id, each.destination_id) for each in leaving]


def test_nobody_leaves_who_has_moved_as_often_as_it_may_within_a_minute() -> None:
    often = running("often", 11, moves=TWICE)
    assert moves(found(often, running("other", 30)).plan) == [("other", "i-1")]
    assert found(often) == room_plan.RoomPlan((), (), 10, room_plan.NoRoom.NO_PLAN, 0)
    assert moves(found(often, config=replace(CONFIG, guard=False)).plan) == [("often", "i-1")]
    long_ago = replace(often, moves=(("i-8", 60.0), ("i-9", 3.0)))
    assert moves(found(long_ago).plan) == [("often", "i-1")]


def test_nor_does_a_head_or_one_behind_it() -> None:
    order = room_plan.MoveHead("i-0", "head", "i-1")
    assert room_plan.head_to_leave(order, [HEAD], CONFIG) == HEAD
    assert room_plan.head_to_leave(order, [replace(HEAD, moves=TWICE)], CONFIG) is None
    assert found(HEAD, queued("behind", 5, moves=TWICE)).let_go == ()


def test_a_head_leaves_only_while_it_waits_and_can() -> None:
    order = room_plan.MoveHead("i-0", "head", "i-1")
    for other in (
        replace(HEAD, queued=False),
        replace(HEAD, outgoing=True),
        replace(HEAD, refusal="multimodal"),
        replace(HEAD, request_id="another"),
    ):
        assert room_plan.head_to_leave(order, [other], CONFIG) is None


def test_those_let_go_take_their_room_before_a_plan_counts_on_it() -> None:
    behind, runs = queued("behind", 8, arrival_time_s=2.0), running("runs", 12)
    assert moves(found(HEAD, behind, runs, spare={"i-1": 21}).plan) == [("runs", "i-1")]
    tight = found(HEAD, behind, runs, spare={"i-1": 20})
    assert tight.let_go == (room_plan.RoomMove(behind, "i-1"),)
    assert (tight.plan, tight.refusal, tight.num_movable) == ((), room_plan.NoRoom.NO_PLAN, 1)


def test_what_is_on_its_way_is_not_asked_for_again() -> None:
    leaving = running("leaving", 6, outgoing=True)
    assert found(leaving, running("a", 5), running("b", 4)).lacking_blocks == 4
    assert moves(found(leaving, running("a", 5), running("b", 4)).plan) == [("b", "i-1")]
    assert found(replace(leaving, num_freed_blocks=10), running("a", 5)) == room_plan.RoomPlan()


def test_a_plan_is_begun_whole_or_not_at_all() -> None:
    batch = [running(name, 4) for name in "abc"]
    assert len(found(*batch).plan) == 3
    assert found(*batch, may_begin=2) == room_plan.RoomPlan((), (), 10, None, 3)
    assert found(*batch, may_begin=0) == room_plan.RoomPlan()
    assert found(HEAD, queued("behind", 5), *batch, may_begin=3).plan == ()
    many = [running(f"r{number}", 2) for number in range(5)]
    assert found(*many).refusal is room_plan.NoRoom.PLAN_TOO_LARGE
