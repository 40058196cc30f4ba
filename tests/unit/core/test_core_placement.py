"""Late binding: which requests wait at the controller, where they go, for which room is made, and
what people see of those that wait."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.core import scheduler_events as events
from controller.core.admission.placement import (
    OvertakenBy,
    Placement,
    QueueReason,
    Score,
    WaitingPlace,
    WaitingReason,
    WaitingView,
    best_fitting,
    queue_reason,
)
from controller.core.admission.policies import Prompt, SchedulerConfig
from controller.core.admission.waiting_requests import Waiting, WaitingQueue
from controller.core.emptying.room_plan import (
    MakeRoom,
    MoveHead,
    help_blocked,
    plan_leaving,
    plan_room,
)
from controller.core.load.cached_prefixes import CacheReport
from controller.core.load.freeness import MAX_QUEUED, STEP_TOKENS, Room
from controller.core.load.snapshot import (
    InstanceSnapshot,
    Level,
    PrefillSpeed,
    QueueHead,
    Unreported,
)
from controller.core.scheduler import MAX_LATE, GlobalScheduler
from controller.core.scheduler_events import StatusReported
from controller.core.settings import HoldingConfig, WhenLate
from tests.unit.core.core_builders import (
    DRAINS,
    RequestSnapshot,
    all_as_soon,
    request,
    running,
    scheduler_with,
    status,
)
from tests.unit.rescheduling import relief_builders as relief

FREEST = {"a": 3.0, "b": 2.0, "c": 1.0, "d": 0.0}


def held(number: int, demand: int, rank: int = 0, since_s: float = 0.0) -> Waiting:
    return Waiting(("f", f"r{number:02}"), rank, float(number), demand, since_s)


def room(name: str, free: int, *, num_requests: int = 0, growth: int = 0) -> Room:
    return Room(name, free, 100, num_requests, 100, growth, 100 - free)


def rooms(**free: int) -> dict[str, Room]:
    return {name: room(name, blocks) for name, blocks in free.items()}


def place(
    placement: Placement, where: dict[str, Room], now_s: float = 0.0
) -> list[tuple[str, str]]:
    score_of = lambda _rank: FREEST.__getitem__  # noqa: E731
    found = placement.place(where, score_of, all_as_soon, now_s)
    out = [(each.waiting.request_id, each.instance_id) for each in found]
    placement.check()
    return out


def told(placement: Placement, now_s: float = 0.0, **free: int) -> tuple[str, str]:
    """Which requests were placed where, in order, and which instances are kept for which."""
    placed = " ".join(f"{name}-{to}" for name, to in place(placement, rooms(**free), now_s))
    kept = sorted((instance_id, key[1]) for instance_id, key in placement.reserved.items())
    return placed, " ".join(f"{instance_id}-{name}" for instance_id, name in kept)


def waiting(*entries: Waiting, **settings: float) -> Placement:
    parts = {"reserved_share": 0.1, "reserve_after_s": 5.0, "evict_margin_steps": 0.0} | settings
    placement = Placement(HoldingConfig(**parts))  # type: ignore[arg-type]
    for each in entries:
        placement.queue.push(each)
    return placement


# -- the queue ---------------------------------------------------------------------------


@given(
    st.lists(st.tuples(*(st.integers(0, n) for n in (2, 3, 9, 6))), max_size=30),
    st.data(),
)
def test_the_queue_finds_those_that_fit(entries, data) -> None:
    queue, known = WaitingQueue(), []
    for number, (rank, turn, arrival, demand) in enumerate(entries):
        known.append(Waiting(("f", str(number)), rank, float(arrival), demand, 0.0, float(turn)))
        queue.push(known[-1])
    for key in data.draw(st.sets(st.sampled_from([h.key for h in known]))) if known else ():
        assert queue.discard(key) is not None
        assert queue.discard(key) is None
        known = [each for each in known if each.key != key]
        queue.check()
    known.sort(key=lambda each: each.order)
    assert list(queue) == known
    for size in range(8):
        assert list(queue.fitting(size)) == [h for h in known if h.demand_blocks <= size]
    assert queue.first() == (known[0] if known else None)


# -- placement ---------------------------------------------------------------------------


def test_requests_go_in_order_to_the_freest_instance_on_which_they_fit() -> None:
    placement = waiting(held(2, 10), held(1, 30), held(3, 10))
    assert told(placement, a=20, b=40) == ("r01-b r02-a r03-a", "")
    assert not placement.queue
    placement = waiting(held(1, 50), held(2, 10))
    assert told(placement, a=20, b=40) == ("r02-a", "b-r01"), "what fits nowhere is overtaken"
    placement = waiting(held(1, 50), held(2, 10), overtaking=False)
    assert told(placement, a=20, b=40)[0] == "", "all wait for the first"


def test_an_instance_is_kept_for_a_blocked_request_until_it_goes() -> None:
    placement = waiting(held(1, 50))
    told(placement, a=20, b=40)
    placement.queue.push(held(2, 10))
    assert told(placement, a=5, b=45)[0] == ""
    assert told(placement, a=5, b=50)[0] == "r01-b"
    assert told(placement, a=5, b=10)[0] == "r02-b"
    for after, found in (
        ({"a": 60, "b": 45}, ("r01-a", "")),  # it fits there first
        ({"a": 20}, ("", "a-r01")),  # the kept one is gone
    ):
        placement = waiting(held(1, 50))
        told(placement, a=20, b=40)
        assert told(placement, **after) == found
    placement = waiting(held(1, 50))
    told(placement, a=10, b=5)
    assert told(placement, a=10, b=20) == ("", "a-r01"), "30 is not much less than 40"
    assert told(placement, a=10, b=21) == ("", "b-r01")


def test_higher_ranks_have_theirs_first() -> None:
    placement = waiting(held(1, 50, rank=1), held(2, 60, rank=1), held(3, 5))
    assert told(placement, a=20, b=30, c=10) == ("", "b-r01"), "nothing was kept for the first"
    assert told(placement, a=20, b=30, c=10)[0] == "", "nothing is kept for the second"
    placement.discard(("f", "r02"))
    assert told(placement, a=20, b=30, c=10)[0] == "r03-a"
    placement = waiting(held(1, 50))
    told(placement, a=20, b=40)
    placement.queue.push(held(2, 50, rank=1))
    assert told(placement, a=20, b=40) == ("", "b-r02")


def test_an_admission_leaves_room_to_grow_unless_the_instance_is_empty() -> None:
    busy = {"a": room("a", 30, num_requests=1, growth=5)}
    assert place(waiting(held(1, 26)), busy) == []
    assert place(waiting(held(1, 25)), busy) == [("r01", "a")]
    assert place(waiting(held(1, 30)), {"a": room("a", 30, growth=5)}) == [("r01", "a")]


FOUR = {"a": 20, "b": 30, "c": 10, "d": 9}


@pytest.mark.parametrize(
    ("num_waiting", "share", "now_s", "kept"),
    [
        # One for each that has waited, and one more for the first each time that it has.
        (2, 0.5, 4.9, "b-r01"),
        (2, 0.5, 5.0, "a-r02 b-r01"),
        (1, 0.75, 0.0, "b-r01"),
        (1, 0.75, 5.0, "a-r01 b-r01"),
        (1, 0.75, 14.9, "a-r01 b-r01 c-r01"),
        (1, 0.75, 30.0, "a-r01 b-r01 c-r01"),
        # Others have theirs before the first has more.
        (3, 1.0, 10.0, "a-r02 b-r01 c-r03 d-r01"),
    ],
)
def test_more_instances_are_kept_for_those_that_have_waited(
    num_waiting, share, now_s, kept
) -> None:
    entries = [held(number + 1, 50) for number in range(num_waiting)]
    placement = waiting(*entries, reserved_share=share, reserve_after_s=5.0)
    assert told(placement, now_s, **FOUR) == ("", kept)


def test_in_a_long_overload_more_are_kept_until_the_order_is_strict() -> None:
    for now_s, num_kept in ((10.0, 1), (60.0, 2), (120.0, 4)):
        four = [held(number, 90) for number in range(1, 5)]
        placement = waiting(*four, reserved_share=0.25, share_doubles_s=60.0)
        told(placement, now_s, **FOUR)
        assert len(placement.reserved) == num_kept
    placement.queue.push(held(5, 5))
    assert told(placement, 120.0, **FOUR)[0] == ""


@given(st.data())
def test_a_kept_instance_gets_nothing_before_the_request_that_it_is_kept_for(data) -> None:
    """The bound on overtaking: once an instance is kept, only what runs there already delays."""
    placement = waiting(reserved_share=data.draw(st.sampled_from([0.0, 0.5, 1.0])))
    number = 0
    for now in range(data.draw(st.integers(1, 12))):
        for demand in data.draw(st.lists(st.integers(1, 100), max_size=4)):
            number += 1
            placement.queue.push(held(number, demand, data.draw(st.integers(0, 1)), float(now)))
        kept = dict(placement.reserved)
        where = rooms(**{name: data.draw(st.integers(0, 100)) for name in FREEST})
        placed = place(placement, where, float(now))
        first = placement.queue.first()
        for instance_id, (_, request_id) in kept.items():
            there = [request for request, instance in placed if instance == instance_id]
            went = request_id in [request for request, _ in placed]
            assert went or not there
            waits = placement.queue.get(("f", request_id))
            if waits is not None and placement.reserved.get(instance_id) != waits.key:
                lacking = {i: each.lacking_blocks(waits.demand_blocks) for i, each in where.items()}
                others = [i for i, key in placement.reserved.items() if key == waits.key]
                has_better = any(lacking[i] < lacking[instance_id] for i in others)
                assert has_better or first.rank > waits.rank, "it lost its instance"
        if first is not None and first.key not in placement.reserved.values():
            ranks = [placement.queue.get(key).rank for key in placement.reserved.values()]
            assert min(ranks) >= first.rank, "nothing is kept for the first"
        for each in where.values():
            assert each.free_blocks >= 0


# -- room --------------------------------------------------------------------------------


def test_the_room_of_an_instance_leaves_out_all_that_is_known_to_come() -> None:
    snapshot = InstanceSnapshot(
        "i-0", 1, 16, 100, 60, 2, 3, max_num_running=8, num_running=4, num_queued=1,
        queued_demand_blocks=10,
    )  # fmt: skip
    found = Room.of(snapshot, 90, Unreported(2, 5))
    assert (found.free_blocks, found.num_places, found.growth_blocks) == (40, 1, 6)
    assert found.spare_blocks == 34
    assert found.lacking_blocks(50) == 16
    found.take(10)
    assert (found.free_blocks, found.num_places, found.spare_blocks) == (30, 0, 0)


def test_an_admission_leaves_at_most_a_sixteenth_of_the_memory_for_growth() -> None:
    busy = InstanceSnapshot("i-0", 1, 16, 63, 61, num_running=1)
    assert Room.of(busy, 320).spare_blocks == 58
    assert Room.of(replace(busy, num_total_blocks=851, num_free_blocks=61), 320).spare_blocks == 41


@pytest.mark.parametrize(("free", "fill"), [(0, 0), (20, 5), (63, 0)])
@pytest.mark.parametrize("tokens", [0, 320, 9999])
def test_a_request_lacks_no_more_than_an_idle_instance_would_have_free(free, fill, tokens) -> None:
    """Where it is all freed the instance is idle, and the request fits."""
    busy = InstanceSnapshot("i-0", 1, 16, 63, free, 2, fill, num_running=3)
    found, to_idle = Room.of(busy, tokens), 63 - free + fill
    for demand in range(1, 64):
        lacking = found.lacking_blocks(demand)
        assert lacking <= to_idle
        if lacking == to_idle:
            idle = Room.of(replace(busy, num_free_blocks=63, fill_blocks=0, num_running=0), tokens)
            assert demand <= idle.spare_blocks
        else:
            freed = Room.of(replace(busy, num_free_blocks=free + lacking), tokens)
            assert demand == freed.spare_blocks
    assert found.lacking_blocks(64) > to_idle, "it fits on none"


def test_few_requests_wait_on_an_instance_at_once() -> None:
    """Requests that are sent there next wait behind them, and the memory may be gone by then. Where
    memory is short nowhere, as many wait as a step computes: requests of a few tokens would else be
    computed four at a time, however many come."""
    idle = InstanceSnapshot("i-0", 1, 16, 1000, 1000)
    assert Room.of(idle, 0).num_places == MAX_QUEUED
    assert Room.of(replace(idle, num_running=50), 0).num_places == MAX_QUEUED
    waiting_there = Room.of(replace(idle, num_queued=1), 0, Unreported(MAX_QUEUED - 1, 3))
    assert waiting_there.spare_blocks == 0
    a_step = STEP_TOKENS // 16
    for num_waiting, fits in ((60, True), (a_step - 1, True), (a_step, False)):
        unreported = Unreported(num_waiting, num_waiting)
        assert (Room.of(idle, 0, unreported, by_step=True).spare_blocks > 0) is fits
    large_steps = replace(idle, max_step_tokens=3 * STEP_TOKENS)
    for demand, fits in ((3 * a_step - 1, True), (3 * a_step, False)):
        unreported = Unreported(MAX_QUEUED, demand)
        assert (Room.of(large_steps, 0, unreported, by_step=True).num_places > 0) is fits
    batch = replace(idle, max_num_running=6)
    assert Room.of(batch, 0, Unreported(5, 5), by_step=True).num_places == 1
    assert Room.of(batch, 0, Unreported(6, 6), by_step=True).spare_blocks == 0


def test_a_burst_of_short_requests_goes_at_once_while_memory_is_short_nowhere() -> None:
    to = scheduler(a=0, b=-1)
    burst = [ask(to, f"r{number}", 1) for number in range(52)]
    assert [len(sent) for sent in burst] == [1] * 51 + [0], "less than half of its memory is free"
    assert report(to, "a", running("all", 51), seq=50) == [("r51", "a")]


def test_where_memory_is_short_on_one_few_wait_on_each() -> None:
    to = scheduler(a=0, b=51)
    burst = [ask(to, f"r{number}", 1) for number in range(9)]
    assert [len(sent) for sent in burst] == [1] * 8 + [0]
    assert len(report(to, "b", running("y", 5), seq=4)) == 1
    more = [ask(to, f"s{number}", 1) for number in range(9)]
    assert [len(sent) for sent in more] == [1] * 9, "memory is short nowhere any more"


def moves(found) -> list[tuple[str, str]]:
    return [(each.candidate.request_id, each.destination_id) for each in found]


def test_room_is_made_with_the_fewest_blocks() -> None:
    running = [relief.running("x", 40), relief.running("y", 12), relief.running("z", 9)]
    assert moves(plan_room(running, 10, {"a": 50, "b": 20}, 16, 0)) == [("y", "b")]
    assert moves(plan_room(running, 12, {"a": 50, "b": 20}, 16, 0)) == [("y", "b")]
    assert moves(plan_room(running, 21, {"a": 50, "b": 20}, 16, 0)) == [("y", "b"), ("z", "a")]
    assert moves(plan_room(running, 30, {"a": 50, "b": 20}, 16, 0)) == [("x", "a")]
    assert plan_room(running[:2], 50, {"a": 41, "b": 5}, 16, 0) == [], "half a plan is none"
    assert plan_room(running, 10, {}, 16, 0) == []


def test_only_what_can_move_and_has_no_higher_rank_makes_room() -> None:
    running = [
        relief.running("moving", 20, outgoing=True),
        relief.running("prefill", 20, refusal="in_prefill"),
        relief.queued("queued", 20),
        relief.running("high", 20, rank=1),
        relief.running("shared", 20, num_freed_blocks=0),
        relief.running("plain", 30),
    ]
    assert moves(plan_room(running, 10, {"a": 90}, 16, 0)) == [("plain", "a")]


def test_what_waits_behind_a_blocked_head_goes_in_order_where_it_fits() -> None:
    here = [
        relief.queued("head", 100),
        relief.queued("later", 10, arrival_time_s=2.0),
        relief.queued("sooner", 20, arrival_time_s=1.0),
        relief.queued("large", 40),
        relief.queued("leaving", 1, outgoing=True),
        relief.running("runs", 5),
    ]
    spare = {"a": 25, "b": 22}
    assert moves(plan_leaving(here, "head", spare, 16)) == [("sooner", "a"), ("later", "b")]
    for room in (20, 29):
        assert moves(plan_leaving(here, "head", {"a": room}, 16)) == [("sooner", "a")]
    assert plan_leaving(here, "head", {}, 16) == []


# -- blocked requests --------------------------------------------------------------------


def snapshot(name: str, free: int, head: int = 0, rank: int = 0) -> InstanceSnapshot:
    queued = QueueHead(f"head-{name}", rank, head, 0.0) if head else None
    return InstanceSnapshot(
        name, 1, 16, 100, free, num_running=3, num_queued=int(bool(head)), queue_head=queued,
        queued_demand_blocks=head,
    )  # fmt: skip


def helped(
    placement: Placement, *snapshots: InstanceSnapshot, turn: int = 0
) -> list[MoveHead | MakeRoom]:
    where = {each.instance_id: Room.of(each, 0) for each in snapshots}
    return help_blocked(snapshots, snapshots, where, placement, turn=turn)


def room_for_head(source_id: str, lacking: int, **spare: int) -> MakeRoom:
    return MakeRoom(source_id, f"head-{source_id}", 0, lacking, spare)


A5, A70, B30, B40, C50 = (
    snapshot("a", 5),
    snapshot("a", 5, head=70),
    snapshot("b", 30),
    snapshot("b", 40),
    snapshot("c", 50),
)
EVICTS = {"evict_margin_steps": 32}
"""Three requests take 3 x 32 / 16 = 6 blocks in 32 steps, 12 in 64."""
RELIEF = MakeRoom("a", "", 0, 7, {"b": 28})


@pytest.mark.parametrize(
    ("settings", "instances", "orders"),
    [
        ({}, [snapshot("a", 5, head=20), B30, C50], [MoveHead("a", "head-a", "c")]),
        ({}, [snapshot("a", 5, head=30), B30], [MoveHead("a", "head-a", "b")]),
        ({}, [A70, B30, C50], [room_for_head("a", 65, b=30, c=50)]),
        ({"making_room": False}, [A70, B30], []),
        # Otherwise prefills would take the blocks that were freed for it, and evict.
        ({}, [replace(A70, fill_blocks=4), B30, C50], [room_for_head("a", 69, b=30, c=50)]),
        ({}, [snapshot("a", 30, head=20), C50], []),
        (
            {},
            [snapshot("a", 5, head=20), snapshot("b", 5, head=20), snapshot("c", 30)],
            [MoveHead("a", "head-a", "c"), room_for_head("b", 15, c=10)],
        ),
        # The head of `b` fits on `c`, and takes its room before room is offered.
        (
            {},
            [snapshot("a", 5, head=60), snapshot("b", 5, head=40), C50],
            [MoveHead("b", "head-b", "c"), room_for_head("a", 55, c=10)],
        ),
        (EVICTS, [A5, B40], [RELIEF]),
        (EVICTS, [snapshot("a", 6), B40], []),
        ({"evict_margin_steps": 0}, [snapshot("a", 0), B40], []),
        (EVICTS, [replace(A5, num_running_by_rank={0: 2, 1: 1}), B40], [RELIEF]),
        (EVICTS, [A5, snapshot("b", 12)], []),
    ],
)
def test_who_is_helped(settings, instances, orders) -> None:
    assert helped(waiting(**settings), *instances) == orders


def test_what_is_kept_for_one_request_takes_what_leaves_for_it() -> None:
    placement = waiting(held(1, 60), reserve_after_s=5.0, reserved_share=0.75)
    assert told(placement, 5.0, a=20, b=40, c=10) == ("", "a-r01 b-r01")
    orders = helped(placement, snapshot("a", 20), B40, snapshot("c", 10))
    assert orders == [MakeRoom("b", "r01", 0, 20, {"c": 10, "a": 20})]


def test_one_room_is_offered_to_one_order_and_in_the_next_round_to_another() -> None:
    instances = snapshot("a", 5, head=40), snapshot("b", 5, head=40), snapshot("c", 30)
    found = [helped(waiting(), *instances, turn=turn) for turn in (0, 1, 2)]
    a, b = room_for_head("a", 35, c=30), room_for_head("b", 35, c=30)
    assert found == [[a], [b], [a]]


def test_orders_share_the_rooms_and_the_first_has_what_nobody_took() -> None:
    full = snapshot("a", 35, head=40), snapshot("b", 35, head=40)
    open_ = [snapshot(name, free) for name, free in zip("cdefg", (9, 8, 7, 6, 5), strict=True)]
    b = room_for_head("b", 5, e=7, f=6)
    assert helped(waiting(), *full, *open_[:4]) == [room_for_head("a", 5, c=9, d=8), b]
    assert helped(waiting(), *full, *open_) == [room_for_head("a", 5, c=9, d=8, g=5), b]


# -- the scheduler -----------------------------------------------------------------------


def scheduler(**used_blocks: int) -> GlobalScheduler:
    config = HoldingConfig(room_to_grow_tokens=0)
    return scheduler_with(SchedulerConfig(holding=config, hold_timeout_s=20.0), **used_blocks)


def report(to: GlobalScheduler, instance_id: str, *load, now_s: float = 0.0, seq: int = 0):
    out = to.handle(status(instance_id=instance_id, requests=load, seen=seq), now_s)
    to.check()
    return [
        (each.request_id, each.instance_id) for each in out if isinstance(each, events.Dispatch)
    ]


def ask(to: GlobalScheduler, name: str, num_blocks: int):
    out = to.handle(request(name, tokens=16 * num_blocks), 0.0)
    to.check()
    return out


def test_the_scheduler_holds_what_fits_nowhere_and_sends_it_where_it_fits_first() -> None:
    to = scheduler(a=90, b=95)
    assert ask(to, "r", 20) == []
    assert to.num_waiting == 1
    assert report(to, "b", running("y", 81)) == []
    assert report(to, "a", running("x", 70)) == [("r", "a")]
    assert to.num_waiting == 0


def test_a_held_request_has_no_timeout_while_an_instance_is_schedulable() -> None:
    to = scheduler(a=90, b=-1)
    ask(to, "r", 20)
    report(to, "a", running("x", 90), now_s=100.0)
    assert to.handle(events.Ticked(), 100.0) == []
    assert to.num_waiting == 1
    to.handle(events.InstanceStalled("a", 1), 100.0)
    assert to.handle(events.Ticked(), 119.9) == []
    (rejected,) = to.handle(events.Ticked(), 120.1)
    assert rejected.code == events.RejectCode.UNAVAILABLE


def test_what_is_larger_than_any_instance_is_sent_at_once_for_the_engine_to_refuse() -> None:
    to = scheduler(a=90, b=-1)
    ask(to, "r", 20)
    (sent,) = ask(to, "large", 101)
    assert (sent.request_id, sent.instance_id) == ("large", "a")
    assert ask(to, "all", 100) == []
    assert to.num_waiting == 2


def test_an_idle_instance_takes_a_request_that_needs_its_watermark_too() -> None:
    to = scheduler(a=-1, b=-1)
    busy = replace(snapshot("a", 99), watermark_blocks=4)
    to.handle(events.StatusReported(busy, 0), 0.0)
    assert ask(to, "r", 98) == []
    idle = replace(busy, num_free_blocks=100, num_running=0)
    (sent,) = to.handle(events.StatusReported(idle, 0), 1.0)
    assert sent.request_id == "r"


def test_held_requests_end_with_their_client_and_their_frontend() -> None:
    to = scheduler(a=90, b=-1)
    asked = [request(name, tokens=320) for name in ("r1", "r2")]
    for each in asked:
        to.handle(each, 0.0)
    to.handle(events.DispatchCancelled(asked[0].request_id, asked[0].frontend_id), 0.0)
    assert to.num_waiting == 1
    to.handle(events.FrontendDied(asked[1].frontend_id), 0.0)
    assert to.num_waiting == 0
    to.check()
    assert report(to, "a") == []


def test_late_binding_can_be_switched_on_and_off() -> None:
    to = scheduler(a=90, b=-1)
    ask(to, "r", 20)
    (sent,) = to.reconfigure(SchedulerConfig(), 0.0)
    assert sent.request_id == "r"
    (sent,) = ask(to, "r2", 20)
    assert to.reconfigure(SchedulerConfig(holding=HoldingConfig()), 0.0) == []
    assert ask(to, "r3", 20) == []


# -- what people see of the requests that wait ---------------------------------------------------


PLUS = SchedulerConfig(holding=HoldingConfig(room_to_grow_tokens=0))
ALL_KEPT = {"reserve_after_s": 0.0, "reserved_share": 1.0}


def busy_room(name: str, free: int, *, places: int = 10, num_requests: int = 1) -> Room:
    return Room(name, free, places, num_requests, 100, 0, 100 - free)


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
        for _ in placement.place(where, alike, all_as_soon, 0.0):
            pass
    key = ("f", f"r{number:02}")
    found = WaitingView(placement.queue, placement, where).find(key)
    assert found is not None
    assert found == WaitingView(list(placement.queue), placement, where).find(key)
    return found


FIRST = held(1, 60)
A20, BUSY_B, FULL_C = busy_room("a", 20), busy_room("b", 40), busy_room("c", 1)


@pytest.mark.parametrize(
    ("entries", "rooms", "settings", "shown"),
    [
        ([FIRST], [A20, BUSY_B], {}, ("b", 20, OvertakenBy.ANY, 0)),
        ([FIRST, held(2, 10), held(3, 10)], [A20, BUSY_B], {}, ("b", 20, OvertakenBy.ANY, 2)),
        ([FIRST], [A20, BUSY_B], {"overtaking": False}, ("b", 20, OvertakenBy.NOBODY, 0)),
        # All instances are kept for it, and the one is shown that lacks the least.
        ([FIRST], [A20, BUSY_B, busy_room("c", 30)], ALL_KEPT, ("b", 20, OvertakenBy.NOBODY, 0)),
        # Shown where the fewest are missing, though that instance is kept for another.
        (
            [held(0, 60), FIRST],
            [A20, BUSY_B, busy_room("c", 1)],
            {},
            (None, 20, OvertakenBy.ITS_RANK, 0),
        ),
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
    assert len(list(placement.place({"a": busy_room("a", 20)}, alike, all_as_soon, 0.0))) == 1
    assert placement.num_overtaken == {("f", "r01"): 1}
    placement.discard(("f", "r01"))
    assert placement.num_overtaken == {}
    placement.check()


A10, A40, B5 = busy_room("a", 10), busy_room("a", 40), busy_room("b", 5)
A20_FULL, B9_FULL = busy_room("a", 20, places=0), busy_room("b", 9, places=0)
TWO_HIGH = [held(1, 60, rank=1), held(2, 60, rank=1)]


@pytest.mark.parametrize(
    ("entries", "rooms", "overtaking", "reason"),
    [
        ([held(1, 101)], [busy_room("a", 100)], True, WaitingReason.TOO_LARGE),
        ([held(1, 80), held(2, 70)], [A40, busy_room("b", 65)], True, WaitingReason.FRAGMENTED),
        ([FIRST, held(2, 99)], [A10, B5], True, WaitingReason.MEMORY),
        ([FIRST, held(2, 50)], [A10, busy_room("b", 55)], True, WaitingReason.RESERVED),
        ([FIRST, held(2, 10)], [A20_FULL, BUSY_B], True, WaitingReason.RESERVED),
        ([FIRST, held(2, 10)], [A20, BUSY_B], False, WaitingReason.BEHIND),
        ([*TWO_HIGH, held(3, 10)], [A20, BUSY_B, busy_room("c", 15)], True, WaitingReason.BEHIND),
        ([held(1, 10), held(2, 5)], [A20_FULL, B9_FULL], True, WaitingReason.BATCH_FULL),
    ],
)
def test_why_the_last_one_waits(entries, rooms, overtaking, reason) -> None:
    rooms = [replace(each) for each in rooms]  # placing changes them
    found = seen(entries, *rooms, number=len(entries), overtaking=overtaking)
    assert found.reason == reason


def test_the_scheduler_shows_what_it_holds_in_order() -> None:
    to = scheduler_with(PLUS, a=95)
    for name, rank in (("r1", 0), ("r2", 1), ("r3", 0)):
        to.handle(request(name, tokens=160, rank=rank, arrival=float(name[1])), 0.0)
    view = to.waiting_view()
    shown = [(each.request_id, each.demand_blocks) for each in view.entries]
    assert shown == [("r2", 10), ("r1", 10), ("r3", 10)]
    first = view.first()
    assert (first.waiting.request_id, first.reason, first.lacking_blocks) == ("r2", "kept", 5)
    assert view.reserved == {"a": ("f", "r2")}
    assert view.find(("f", "another")) is None


@pytest.mark.parametrize("config", [SchedulerConfig(), PLUS], ids=["at once", "late binding"])
def test_while_no_instance_takes_requests(config: SchedulerConfig) -> None:
    to = GlobalScheduler(config)
    to.handle(request("r1", arrival=2.0), 0.0)
    to.handle(request("r2", arrival=1.0), 0.0)
    view = to.waiting_view()
    shown = [(each.request_id, each.demand_blocks) for each in view.entries]
    assert shown == [("r2", 0), ("r1", 0)]
    first = view.first()
    assert (first.reason, first.lacking_blocks) == (WaitingReason.NO_INSTANCE, None)
    assert first.overtaken_by == OvertakenBy.NOBODY


# -- a request goes where its first token comes soon, and of those places to the freest ----------

SPEED = PrefillSpeed(0.001, 0.0)
NOW_S = 50.0


def computing(name: str, backlog_s: float, free: int = 75) -> Room:
    """Its time is counted from NOW_S on."""
    return Room(name, free, 100, 1, 100, 0, 100 - free, NOW_S + backlog_s, SPEED)


def best(
    rooms: Sequence[Room],
    freeness: dict[str, float],
    num_cached: dict[str, int],
    config: HoldingConfig,
    demand: int = 20,
    waited_s: float = 0.0,
) -> str | None:
    """Where a request of 10,000 tokens goes, which take 10 s where none of them is cached."""
    found = best_fitting(
        rooms,
        held(1, demand, since_s=NOW_S - waited_s),
        lambda i: freeness[i],
        Prompt(10_000, num_cached),
        config,
        NOW_S,
    )
    return None if found is None else found.instance_id


def test_a_request_waits_for_a_sooner_place_as_long_as_it_gains_by_that() -> None:
    """Its prompt is cached on a, which has no room for it; b would compute it for 2 s more."""
    config, freeness = HoldingConfig(slack_tokens=100), {"a": 1.0, "b": 9.0}
    rooms = [computing("a", 0.5, free=10), computing("b", 0.0)]
    cached = {"a": 9_900, "b": 7_400}
    assert best(rooms, freeness, cached, config) is None
    assert best(rooms, freeness, cached, config, waited_s=1.89) is None
    assert best(rooms, freeness, cached, config, waited_s=1.91) == "b", "0.1 s are slack"
    rooms[0] = computing("a", 0.5, free=20)
    assert best(rooms, freeness, cached, config) == "a", "it fits there by now"
    rooms[0] = replace(computing("a", 0.5, free=10), capacity_blocks=19)
    assert best(rooms, freeness, cached, config) == "b", "it never will"


ROOMS = st.lists(
    st.tuples(st.integers(0, 100), st.integers(0, 99), st.integers(0, 9), st.integers(0, 99)),
    min_size=1,
    max_size=6,
)


@given(drawn=ROOMS, demand=st.integers(1, 60), slack=st.integers(0, 50), waited=st.integers(0, 50))
def test_of_the_places_where_it_comes_soon_the_freest_is_taken(
    drawn, demand, slack, waited
) -> None:
    """In hundredths of a second."""
    ids = [str(number) for number in range(len(drawn))]
    free, backlog, steps, own = (
        dict(zip(ids, column, strict=True)) for column in zip(*drawn, strict=True)
    )
    rooms = [computing(i, backlog[i] / 100, free[i]) for i in ids]
    freeness = {i: float(steps[i]) for i in ids}
    cached = {i: 10_000 - 10 * own[i] for i in ids}
    config = HoldingConfig(slack_tokens=10 * slack)
    found = best(rooms, freeness, cached, config, demand, waited / 100)
    total = {i: backlog[i] + own[i] for i in ids}
    most = min(total.values()) + slack + waited
    soon = [i for i in ids if free[i] >= demand and total[i] <= most]
    if any(abs(total[i] - most) < 1 and free[i] >= demand for i in ids):
        return  # a matter of rounding
    assert found == max(soon, key=lambda i: (freeness[i], -int(i)), default=None)
    blind = HoldingConfig(by_time=False)
    fitting = [i for i in ids if free[i] >= demand]
    expected = max(fitting, key=lambda i: (freeness[i], -int(i)), default=None)
    assert best(rooms, freeness, cached, blind, demand) == expected


def test_while_all_have_prompts_to_compute_requests_wait_without_a_reservation() -> None:
    placement = waiting(held(1, 30, since_s=NOW_S), held(2, 10, since_s=NOW_S), max_backlog_s=0.3)
    busy = {name: computing(name, 0.31) for name in ("a", "b")}
    assert place(placement, busy, NOW_S) == []
    assert not placement.reserved
    assert not placement.is_settled(busy, NOW_S), "no room changes, but time goes on"
    first = WaitingView(placement.queue, placement, busy).first()
    assert first is not None
    assert first.reason is WaitingReason.BY_CHOICE
    assert place(placement, busy, NOW_S + 0.02) == [("r01", "a"), ("r02", "a")]


def with_load(on_a: Sequence[RequestSnapshot], on_b: Sequence[RequestSnapshot]) -> GlobalScheduler:
    holding = HoldingConfig(room_to_grow_tokens=0, slack_tokens=0)
    config = SchedulerConfig(policy="llumnix+", holding=holding)
    found = scheduler_with(config, a=-1, b=-1)
    for name, requests in (("a", on_a), ("b", on_b)):
        found.handle(large_status(name, requests), 0.0)
    return found


def large_status(
    name: str, requests: Sequence[RequestSnapshot], seen: int = 0, **more: float
) -> StatusReported:
    event = status(name, requests=requests, total_blocks=1000, seen=seen)
    return StatusReported(replace(event.snapshot, prefill_speed=SPEED, **more), seen)


def sent_to(found: GlobalScheduler, name: str, *hashes: int, now_s: float = 0.0) -> str:
    asked = request(name, tokens=160, prefix_hashes=hashes)
    expected = found.choice(asked, now_s)
    (dispatch,) = found.handle(asked, now_s)
    assert dispatch.instance_id == expected, "what it would do is what it does"
    found.check()
    return dispatch.instance_id


def test_a_prompt_goes_where_its_beginning_was_sent_until_more_waits_there() -> None:
    """Of its 10 blocks the second request shares 6 with the first, which went to a. When both are
    unreported, 96 ms less are computed for it on a, but a computes the first one for 160 ms before
    it."""
    found = with_load([], [])
    first, second = tuple(range(10)), (*range(6), 90, 91, 92, 93)
    assert sent_to(found, "r1", *first) == "a"
    computed = large_status("a", [running("r1", 10)], seen=1)
    found.handle(replace(computed, cache=CacheReport(1, first)), 0.2)
    assert sent_to(found, "r2", *second, now_s=0.2) == "a"
    assert sent_to(found, "r3", now_s=0.2) == "b"
    assert sent_to(found, "r4", *second, now_s=0.2) == "a", "all of it is due there, in 64 ms"


def test_of_idle_instances_a_new_prompt_goes_where_the_cache_has_least() -> None:
    """Sessions that come one at a time use the memory of all instances."""
    found = with_load([], [])
    first, second, third = (tuple(range(n, n + 10)) for n in (100, 200, 300))
    assert sent_to(found, "r1", *first) == "a"
    found.handle(replace(large_status("a", [], seen=1), cache=CacheReport(1, first)), 1.0)
    assert sent_to(found, "r2", *second, now_s=1.0) == "b"
    found.handle(replace(large_status("b", [], seen=1), cache=CacheReport(1, second)), 2.0)
    assert sent_to(found, "r3", *first, now_s=2.0) == "a", "its beginning is there"
    found.handle(large_status("a", [], seen=2), 3.0)
    assert sent_to(found, "r4", *third, now_s=3.0) == "a", "the lowest id, as both have as much"


def test_shorter_prompts_go_first_and_a_long_one_waits_for_a_bounded_time() -> None:
    """Each second of work counts as two seconds later: 1,000 tokens go as if they had come 2 s
    later, and so before what comes after that."""
    found = with_load([], [])
    for name in ("a", "b"):
        found.handle(large_status(name, [], backlog_s=9.0), 0.0)
    asked = {
        "long": request("long", tokens=1000, arrival=0.0),
        "short": request("short", tokens=100, arrival=1.5),
        "late": request("late", tokens=100, arrival=2.5),
        "again": replace(request("again", tokens=1000, arrival=0.5), replayed=True),
    }
    for each in asked.values():
        assert found.handle(each, 0.0) == [], "all have prompts to compute"
    order = [waiting.request_id for waiting in found.waiting_view().entries]
    assert order == ["again", "short", "long", "late"], "a replayed one has waited already"
    found.check()


def late_ones(when_late: WhenLate) -> tuple[GlobalScheduler, list[list[events.Instruction]]]:
    """Three requests wait, one of them of a level without a target; the second one comes 1 s later.
    What is told after 1.9, 2 and 3.5 s, and after that, with a target of 2 s."""
    levels = (Level("normal", 0, target_ttft_s=2.0, when_late=when_late), Level("high", 1))
    config = SchedulerConfig(policy="llumnix+", levels=levels, holding=HoldingConfig())
    found = scheduler_with(config, a=-1, b=-1)
    for name in ("a", "b"):
        found.handle(large_status(name, [], backlog_s=99.0), 0.0)
    found.handle(request("first"), 0.0)
    found.handle(request("high", rank=1), 0.0)
    found.handle(replace(request("again"), replayed=True), 0.0)
    found.handle(request("second", arrival=1.0), 1.0)
    told = [list(found.handle(events.Ticked(), now_s)) for now_s in (1.9, 2.0, 2.5)]
    found.check()
    return found, told


def order(found: GlobalScheduler) -> list[str]:
    return [waiting.request_id for waiting in found.waiting_view().entries]


def test_late_requests_keep_their_place_by_default() -> None:
    found, told = late_ones("serve")
    assert told == [[], [], []]
    assert order(found) == ["high", "again", "first", "second"]


def test_late_requests_go_behind_those_that_may_still_be_in_time() -> None:
    """A replayed request has a client that has tokens already."""
    found, told = late_ones("last")
    assert told == [[], [], []]
    assert order(found) == ["high", "again", "second", "first"]
    found.handle(events.Ticked(), 3.0)
    assert order(found) == ["high", "again", "first", "second"], "both are late"
    found.check()


def test_late_requests_are_refused() -> None:
    found, told = late_ones("refuse")
    ((reject,),) = [each for each in told if each]
    assert told[1] == [reject], "at its time"
    assert (reject.request_id, reject.code) == ("first", events.RejectCode.LATE)
    assert reject.retry_after_s >= 1
    assert order(found) == ["high", "again", "second"]
    (reject,) = found.handle(events.Ticked(), 3.0)
    assert reject.request_id == "second"
    assert found.handle(events.Ticked(), 50.0) == []


def levels_of(when_late: WhenLate, target_ttft_s: float | None = 2.0) -> SchedulerConfig:
    levels = (
        Level("normal", 0, target_ttft_s=target_ttft_s, when_late=when_late),
        Level("high", 1),
    )
    return SchedulerConfig(policy="llumnix+", levels=levels, holding=HoldingConfig())


def test_other_rules_judge_late_requests_anew() -> None:
    found, _ = late_ones("last")
    assert order(found)[-1] == "first"
    found.reconfigure(levels_of("serve"), 2.6)
    assert order(found) == ["high", "again", "first", "second"]
    found.check()
    found, _ = late_ones("last")
    found.reconfigure(levels_of("refuse"), 2.6)
    told = found.handle(events.Ticked(), 3.1)
    assert [each.request_id for each in told] == ["first", "second"], "the late one, too"
    found, _ = late_ones("last")
    found.reconfigure(levels_of("last", 9.0), 2.6)
    assert order(found) == ["high", "again", "first", "second"]


def test_a_late_request_stays_late_when_it_is_asked_for_with_another_rank_and_back() -> None:
    found, _ = late_ones("last")
    for rank in (1, 0):
        found.handle(request("first", rank=rank), 2.6)
    found.handle(events.Ticked(), 2.7)
    assert order(found) == ["high", "again", "second", "first"]
    found.check()


def test_the_oldest_request_is_the_one_that_arrived_first() -> None:
    """Not the first in order: that one is shorter, or is not late yet."""
    found, _ = late_ones("last")
    assert [first_s for _, _, first_s in found.waiting_view().ranks()] == [0.0, 0.0]
    oldest = []
    for name in ("high", "again", "first"):
        place = found.waiting_view().oldest()
        assert place is not None
        oldest.append((place.waiting.request_id, place.place))
        found.handle(events.DispatchCancelled(name, "f"), 2.6)
    assert oldest == [("high", 1), ("again", 1), ("first", 2)]


def test_many_late_requests_are_judged_over_several_ticks() -> None:
    found, _ = late_ones("refuse")
    for number in range(MAX_LATE + 50):
        found.handle(request(f"r{number}", arrival=3.0), 3.0)
    first = found.handle(events.Ticked(), 6.0)
    second = found.handle(events.Ticked(), 6.1)
    assert len(first) <= MAX_LATE
    assert len(first) + len(second) == MAX_LATE + 51, "and one of before"
    found.check()


def test_refused_clients_are_to_come_back_one_after_the_other() -> None:
    """Two requests went within the last second."""
    found, _ = late_ones("refuse")
    for name in ("a", "b"):
        found.handle(large_status(name, []), 4.0)
    assert found.num_waiting == 0
    for name in ("a", "b"):
        found.handle(large_status(name, [], backlog_s=99.0), 4.0)
    for number in range(6):
        found.handle(request(f"r{number}"), 4.0)
    told = found.handle(events.Ticked(), 6.0)
    assert [each.code for each in told] == [events.RejectCode.LATE] * 6
    after_s = [each.retry_after_s for each in told]
    assert after_s == sorted(after_s)
    assert after_s[0] < after_s[-1]


COPY_TOKEN_S = 0.0002
"""A fifth of the time to compute a token."""


def fetching(backlog_s: float, on_b: Sequence[RequestSnapshot] = ()) -> GlobalScheduler:
    """Instance a has computed a prompt of 10 blocks and has a backlog."""
    found = with_load([], [])
    loads: Mapping[str, Sequence[RequestSnapshot]] = {"a": [], "b": on_b}
    for name, requests in loads.items():
        found.handle(
            replace(
                large_status(
                    name, requests, backlog_s=backlog_s * (name == "a"), copy_token_s=COPY_TOKEN_S
                ),
                cache=CacheReport(1, tuple(range(10)) if name == "a" else ()),
            ),
            0.0,
        )
    return found


def dispatched(found: GlobalScheduler, name: str, *names: int) -> events.Dispatch:
    asked = request(name, tokens=160, prefix_hashes=names)
    (told,) = found.handle(asked, 0.0)
    found.check()
    assert isinstance(told, events.Dispatch)
    return told


def test_what_another_instance_has_is_fetched_where_that_is_sooner() -> None:
    """All but the last token of the prompt's 160 take 32 ms to copy, and 160 ms to compute."""
    names = tuple(range(10))
    told = dispatched(fetching(0.0), "r1", *names)
    assert (told.instance_id, told.fetch) == ("a", None), "it is there"
    told = dispatched(fetching(0.03), "r1", *names)
    assert (told.instance_id, told.fetch) == ("a", None), "to wait is sooner"
    told = dispatched(fetching(0.1), "r1", *names)
    assert told.instance_id == "b"
    assert told.fetch == events.Fetch("a", 1, 159, pytest.approx(0.159))
    told = dispatched(fetching(0.1), "r1", 90, 91)
    assert (told.instance_id, told.fetch) == ("b", None), "nobody has it"


def test_fetches_wait_for_each_other_on_both_links() -> None:
    """A second one would come after 64 ms. With a backlog of 50 ms to wait is sooner."""
    names = tuple(range(10))
    found = fetching(0.05)
    first = dispatched(found, "r1", *names)
    assert (first.instance_id, first.fetch is not None) == ("b", True)
    assert found.instances["b"].fetched_s == found.instances["a"].sent_s
    assert found.instances["b"].ready_s == pytest.approx(159 * COPY_TOKEN_S + 0.001)
    assert dispatched(found, "r2", *names[:9], 99).instance_id == "b", "it is due there"


@pytest.mark.parametrize(
    "why", ["off", "another engine", "the leaver's", "replayed", "adapter", "only due", "corrupt"]
)
def test_nothing_is_fetched_that_cannot_be(why: str) -> None:
    found = fetching(5.0)
    names = tuple(range(10))
    match why:
        case "off":
            holding = HoldingConfig(room_to_grow_tokens=0, slack_tokens=0, fetches=False)
            found.reconfigure(SchedulerConfig(policy="llumnix+", holding=holding), 0.0)
        case "another engine":
            found.handle(events.InstanceStarted("b", 2, "another"), 0.0)
            event = large_status("b", [], copy_token_s=COPY_TOKEN_S)
            again = replace(event.snapshot, incarnation=2)
            found.handle(StatusReported(again, 0), 0.0)
        case "the leaver's":
            found.handle(events.InstanceStarted("b", 2, "another"), 0.0)
            event = large_status("b", [], copy_token_s=COPY_TOKEN_S)
            found.handle(StatusReported(replace(event.snapshot, incarnation=2), 0), 0.0)
            found.handle(events.ClosedBy("a", DRAINS), 0.0)
        case "corrupt":
            event = large_status("b", [], copy_token_s=COPY_TOKEN_S)
            snapshot = replace(event.snapshot, corrupt_links=("a",))
            found.handle(StatusReported(snapshot, 0), 0.0)
        case "only due":
            found = with_load([], [])
            for name in "ab":
                late = large_status(name, [], copy_token_s=COPY_TOKEN_S)
                found.handle(replace(late, cache=CacheReport(1)), 0.0)
            assert dispatched(found, "r0", *names).instance_id == "a"
            for number in range(4):
                dispatched(found, f"r0{number}")
    asked = request("r1", tokens=160, prefix_hashes=names)
    asked = replace(asked, replayed=why == "replayed", adapter=int(why == "adapter"))
    (told,) = found.handle(asked, 0.0)
    assert isinstance(told, events.Dispatch)
    assert told.fetch is None


def test_a_backlog_shrinks_with_time_and_an_old_status_says_less() -> None:
    def ready_s(age_s: float) -> float:
        found = with_load([], [])
        sent_to(found, "r1")
        event = large_status("a", [], seen=0, backlog_s=1.0)
        found.handle(StatusReported(event.snapshot, 0, age_s), 5.0)
        return found.instances["a"].ready_s

    assert ready_s(0.0) == pytest.approx(6.16), "and 0.16 s for the one on its way"
    assert ready_s(0.4) == pytest.approx(5.76)
    found = with_load([], [])
    assert sent_to(found, "r1") == "a"
    there = RequestSnapshot("r1", 0, 160, 0, running=False)
    found.handle(large_status("a", [there], seen=1), 0.0)
    assert found.instances["a"].ready_s == 0.0, "its own estimate counts"


# -- why a queue head waits ----------------------------------------------------------------------


def with_head(free: int, demand: int = 0, running: int = 1, watermark: int = 0) -> InstanceSnapshot:
    return InstanceSnapshot(
        instance_id=f"i-{free}",
        incarnation=1,
        block_size=16,
        num_total_blocks=100,
        num_free_blocks=free,
        watermark_blocks=watermark,
        max_num_running=8,
        num_running=running,
        queue_head=QueueHead("r", 0, demand, 0.0) if demand else None,
    )


FULL = with_head(50, demand=50, running=8)


@pytest.mark.parametrize(
    ("here", "elsewhere", "why"),
    [
        (with_head(50), with_head(50), None),
        (with_head(50, demand=50), with_head(0), QueueReason.NEXT_STEP),
        (FULL, with_head(50), QueueReason.BATCH_FULL),
        (with_head(20, demand=50, running=8), with_head(0), QueueReason.BATCH_FULL),
        (with_head(20, demand=50), with_head(30), QueueReason.FRAGMENTED),
        (with_head(20, demand=50), with_head(29), QueueReason.MEMORY),
        (with_head(50, demand=50, watermark=1), with_head(0), QueueReason.MEMORY),
        (with_head(50, demand=50, watermark=1), with_head(1), QueueReason.FRAGMENTED),
        (with_head(0, demand=5, watermark=9), with_head(4), QueueReason.MEMORY),
        # A batch of unknown size is not called full.
        (replace(FULL, max_num_running=0), with_head(0), QueueReason.NEXT_STEP),
    ],
)
def test_why(here: InstanceSnapshot, elsewhere: InstanceSnapshot, why: QueueReason | None) -> None:
    assert queue_reason(here, [here, elsewhere]) is why
    if why is QueueReason.FRAGMENTED:
        assert queue_reason(here, []) is QueueReason.MEMORY, "they take nothing"
