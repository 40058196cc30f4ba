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
from controller.core.scheduler_events import InstanceDied
from controller.core.settings import HoldingConfig
from tests.unit.core.core_builders import nothing_cached, request, scheduler_with

PLUS = SchedulerConfig(holding=HoldingConfig(room_to_grow_tokens=0))
ALL_KEPT = {"reserve_after_s": 0.0, "reserved_share": 1.0}


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


FIRST = held(1, 60)
A20, B40 = room("a", 20), room("b", 40)


@pytest.mark.parametrize(
    ("entries", "rooms", "settings", "shown"),
    [
        ([FIRST], [A20, B40], {}, ("b", 20, OvertakenBy.ANY, 0)),
        ([FIRST, held(2, 10), held(3, 10)], [A20, B40], {}, ("b", 20, OvertakenBy.ANY, 2)),
        ([FIRST], [A20, B40], {"overtaking": False}, ("b", 20, OvertakenBy.NOBODY, 0)),
        # All instances are kept for it, and the one is shown that lacks the least.
        ([FIRST], [A20, B40, room("c", 30)], ALL_KEPT, ("b", 20, OvertakenBy.NOBODY, 0)),
        # Shown where the fewest are missing, though that instance is kept for another.
        ([held(0, 60), FIRST], [A20, B40, room("c", 1)], {}, (None, 20, OvertakenBy.ITS_RANK, 0)),
    ],
)
def test_what_is_shown_of_one_that_waits(entries, rooms, settings, shown) -> None:
    found = seen(entries, *(replace(each) for each in rooms), **settings)
    assert found.place == 1 + entries.index(FIRST)
    assert (
        found.instance_id,
        found.lacking_blocks,
        found.overtaken_by,
        found.num_overtaken,
    ) == shown


def test_who_is_gone_is_not_overtaken_any_more() -> None:
    placement = Placement(HoldingConfig())
    placement.queue.push(held(1, 60))
    placement.queue.push(held(2, 10))
    assert len(list(placement.place({"a": room("a", 20)}, alike, nothing_cached, 0.0))) == 1
    assert placement.num_overtaken == {("f", "r1"): 1}
    placement.discard(("f", "r1"))
    assert placement.num_overtaken == {}
    placement.check()


A10, A40, B5 = room("a", 10), room("a", 40), room("b", 5)
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


def test_the_scheduler_shows_what_it_holds_in_order() -> None:
    scheduler = scheduler_with(PLUS, a=95)
    for name, rank in (("r1", 0), ("r2", 1), ("r3", 0)):
        scheduler.handle(request(name, tokens=160, rank=rank, arrival=float(name[1])), 0.0)
    view = scheduler.waiting_view()
    shown = [(each.request_id, each.demand_blocks) for each in view.entries]
    assert shown == [("r2", 10), ("r1", 10), ("r3", 10)]
    first = view.first()
    assert (first.waiting.request_id, first.reason, first.lacking_blocks) == ("r2", "kept", 5)
    assert view.reserved == {"a": ("f", "r2")}
    assert view.find(("f", "another")) is None


@pytest.mark.parametrize("config", [SchedulerConfig(), PLUS], ids=["at once", "late binding"])
def test_while_no_instance_takes_requests(config: SchedulerConfig) -> None:
    scheduler = GlobalScheduler(config)
    scheduler.handle(request("r1", arrival=2.0), 0.0)
    scheduler.handle(request("r2", arrival=1.0), 0.0)
    view = scheduler.waiting_view()
    shown = [(each.request_id, each.demand_blocks) for each in view.entries]
    assert shown == [("r2", 0), ("r1", 0)]
    first = view.first()
    assert (first.reason, first.lacking_blocks) == (WaitingReason.NO_INSTANCE, None)
    assert first.overtaken_by == OvertakenBy.NOBODY


def test_after_the_last_instance_died() -> None:
    scheduler = scheduler_with(PLUS, a=95)
    scheduler.handle(request("r1"), 0.0)
    scheduler.handle(InstanceDied("a", 1), 1.0)
    view = scheduler.waiting_view()
    assert [each.demand_blocks for each in view.entries] == [10]
    assert view.reserved == {}
    assert view.first().reason == WaitingReason.NO_INSTANCE  # type: ignore[union-attr]
