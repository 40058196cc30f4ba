"""What people see of the requests that wait at the controller: the place, the reason, and which
requests may go ahead."""

from dataclasses import replace

import pytest

from controller.core.admission.placement import (
    OvertakenBy,
    Placement,
    Score,
    WaitingPlace,
    WaitingReason,
    WaitingView,
)
from controller.core.admission.policies import SchedulerConfig
from controller.core.admission.waiting_requests import Waiting
from controller.core.load.freeness import Room
from controller.core.scheduler import GlobalScheduler
from controller.core.scheduler_events import InstanceDied, InstanceStarted
from controller.core.settings import HoldingConfig
from tests.unit.core.core_builders import nothing_cached, request, running, status


def held(number: int, demand: int, rank: int = 0) -> Waiting:
    return Waiting(("f", f"r{number}"), rank, float(number), demand, 0.0)


def room(name: str, free: int, *, places: int = 10, num_requests: int = 1) -> Room:
    return Room(name, free, places, num_requests, 100, 0, 16, 0, 100 - free)


def alike(_rank: int) -> Score:
    return lambda _instance_id: 0.0


def seen(
    entries: list[Waiting], *rooms: Room, number: int = 1, **settings: bool | float
) -> WaitingPlace:
    """How request `number` stands when they have come, one after the other."""
    placement = Placement(HoldingConfig(**settings))  # type: ignore[arg-type]
    where = {each.instance_id: each for each in rooms}
    for each in entries:
        placement.queue.push(each)
        for _ in placement.place(where, alike, nothing_cached, 0.0):
            pass
    key = ("f", f"r{number}")
    found = WaitingView(placement.queue, placement, where).find(key)
    assert found is not None
    assert found == WaitingView(list(placement.queue), placement, where).find(key)
    return found


def test_the_first_has_an_instance_kept_and_knows_what_lacks_there() -> None:
    found = seen([held(1, 60)], room("a", 20), room("b", 40))
    assert (found.place, found.reason, found.instance_id) == (1, WaitingReason.HAS_RESERVATION, "b")
    assert (found.lacking_blocks, found.overtaken_by) == (20, OvertakenBy.ANY)


def test_of_several_that_are_kept_the_one_is_shown_that_lacks_the_least() -> None:
    rooms = [room("a", 20), room("b", 40), room("c", 30)]
    found = seen([held(1, 60)], *rooms, reserve_after_s=0.0, reserved_share=1.0)
    assert (found.instance_id, found.lacking_blocks) == ("b", 20)


def test_how_many_went_ahead_of_the_first() -> None:
    found = seen([held(1, 60), held(2, 10), held(3, 10)], room("a", 20), room("b", 40))
    assert (found.place, found.num_overtaken) == (1, 2)


def test_who_is_gone_is_not_overtaken_any_more() -> None:
    placement = Placement(HoldingConfig())
    placement.queue.push(held(1, 60))
    placement.queue.push(held(2, 10))
    assert len(list(placement.place({"a": room("a", 20)}, alike, nothing_cached, 0.0))) == 1
    assert placement.num_overtaken == {("f", "r1"): 1}
    placement.discard(("f", "r1"))
    assert placement.num_overtaken == {}
    placement.check()


FIRST = held(1, 60)
A10, A20, A40, B5, B40 = room("a", 10), room("a", 20), room("a", 40), room("b", 5), room("b", 40)
A20_FULL, B9_FULL = room("a", 20, places=0), room("b", 9, places=0)
TWO_HIGH = [held(1, 60, rank=1), held(2, 60, rank=1)]


@pytest.mark.parametrize(
    ("entries", "rooms", "overtaking", "reason"),
    [
        ([held(1, 101)], [room("a", 100)], True, WaitingReason.TOO_LARGE),
        ([held(1, 80), held(2, 70)], [A40, room("b", 65)], True, WaitingReason.FRAGMENTED),
        ([FIRST, held(2, 99)], [A10, B5], True, WaitingReason.MEMORY),
        ([FIRST, held(2, 50)], [A10, room("b", 55)], True, WaitingReason.RESERVED),
        ([FIRST, held(2, 10)], [A20_FULL, B40], True, WaitingReason.RESERVED),
        ([FIRST, held(2, 10)], [A20, B40], False, WaitingReason.BEHIND),
        ([*TWO_HIGH, held(3, 10)], [A20, B40, room("c", 15)], True, WaitingReason.BEHIND),
        ([held(1, 10), held(2, 5)], [A20_FULL, B9_FULL], True, WaitingReason.BATCH_FULL),
    ],
)
def test_why_the_last_one_waits(entries, rooms, overtaking, reason) -> None:
    rooms = [replace(each) for each in rooms]  # placing changes them
    found = seen(entries, *rooms, number=len(entries), overtaking=overtaking)
    assert found.reason == reason


def test_without_overtaking_nothing_may_go_ahead() -> None:
    found = seen([held(1, 60)], room("a", 20), room("b", 40), overtaking=False)
    assert found.overtaken_by == OvertakenBy.NOBODY


def test_where_all_instances_are_kept_nothing_may_go_ahead() -> None:
    assert seen([held(1, 60)], room("a", 20)).overtaken_by == OvertakenBy.NOBODY


def test_no_lower_rank_goes_ahead_of_one_without_an_instance() -> None:
    entries = [held(1, 60), held(2, 60)]
    found = seen(entries, room("a", 20), room("b", 40), room("c", 1), number=2)
    assert (found.place, found.instance_id, found.overtaken_by) == (2, None, OvertakenBy.ITS_RANK)
    assert found.lacking_blocks == 20  # where the fewest are missing, though kept for another


def test_the_scheduler_shows_what_it_holds_in_order() -> None:
    scheduler = GlobalScheduler(SchedulerConfig(holding=HoldingConfig(room_to_grow_tokens=0)))
    scheduler.handle(InstanceStarted("a", 1), 0.0)
    scheduler.handle(status("a", requests=[running("x", 95)]), 0.0)
    for name, rank in (("r1", 0), ("r2", 1), ("r3", 0)):
        scheduler.handle(request(name, tokens=160, rank=rank, arrival=float(name[1])), 0.0)
    view = scheduler.waiting_view()
    assert [each.request_id for each in view.entries] == ["r2", "r1", "r3"]
    assert [each.demand_blocks for each in view.entries] == [10, 10, 10]
    first = view.first()
    assert (first.waiting.request_id, first.reason, first.lacking_blocks) == ("r2", "kept", 5)
    assert view.reserved == {"a": ("f", "r2")}
    scheduler.check()


def test_while_no_instance_takes_requests() -> None:
    scheduler = GlobalScheduler(SchedulerConfig(holding=HoldingConfig()))
    scheduler.handle(request("r1", arrival=2.0), 0.0)
    scheduler.handle(request("r2", arrival=1.0), 0.0)
    view = scheduler.waiting_view()
    assert [(each.request_id, each.demand_blocks) for each in view.entries] == [
        ("r2", 0),
        ("r1", 0),
    ]
    first = view.first()
    assert (first.reason, first.lacking_blocks) == (WaitingReason.NO_INSTANCE, None)
    scheduler.handle(InstanceStarted("a", 1), 0.0)
    scheduler.handle(status("a", requests=[running("x", 95)]), 0.0)
    scheduler.handle(InstanceDied("a", 1), 1.0)
    view = scheduler.waiting_view()
    assert [each.demand_blocks for each in view.entries] == [10, 10]
    assert view.reserved == {}
    assert view.first().reason == WaitingReason.NO_INSTANCE  # type: ignore[union-attr]


def test_without_late_binding_too() -> None:
    scheduler = GlobalScheduler(SchedulerConfig())
    scheduler.handle(request("r1"), 0.0)
    first = scheduler.waiting_view().first()
    assert (first.reason, first.overtaken_by) == (WaitingReason.NO_INSTANCE, OvertakenBy.NOBODY)
    assert scheduler.waiting_view().find(("f", "another")) is None
