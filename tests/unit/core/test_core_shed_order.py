"""Which waiting request is refused when too many wait, and what its client is told."""

from hypothesis import given
from hypothesis import strategies as st

from controller.core.admission.policies import SchedulerConfig
from controller.core.admission.waiting_requests import (
    DRAIN_WINDOW_S,
    MOST_RETRY_S,
    DrainRate,
    ShedOrder,
)
from controller.core.scheduler import GlobalScheduler
from controller.core.scheduler_events import (
    DispatchCancelled,
    DispatchRequested,
    Reject,
    RejectCode,
)
from controller.core.settings import HoldingConfig
from tests.unit.core.core_builders import request, running, scheduler_with, status

ORDERS = st.tuples(
    st.integers(-2, 2), st.integers(0, 3), st.sampled_from("abc"), st.sampled_from("fg")
)


@given(st.lists(st.tuples(st.booleans(), ORDERS), max_size=200))
def test_the_last_in_order_is_found(changes: list[tuple[bool, tuple[int, int, str, str]]]) -> None:
    found, oracle = ShedOrder(), set()
    for adds, order in changes:
        if adds and order not in oracle:
            oracle.add(order)
            found.push(order)
        elif not adds:
            oracle.discard(order)
            found.discard(order)
        assert found.last() == max(oracle, default=None)
        assert len(found) == len(oracle)
        found.check()


# -- in the scheduler -----------------------------------------------------------------------


def _scheduler(late_binding: bool, max_held: int) -> GlobalScheduler:
    """Nothing fits, or no instance is there."""
    if not late_binding:
        return GlobalScheduler(SchedulerConfig(max_held_reqs=max_held))
    holding = HoldingConfig(max_held_reqs=max_held, room_to_grow_tokens=0)
    config = SchedulerConfig(policy="llumnix+", holding=holding, stall_timeout_s=1e9)
    return scheduler_with(config, a=100)


ASKED = st.tuples(
    st.sampled_from([-1, 0, 1]),
    st.integers(0, 5),
    st.sampled_from("fg"),
    st.sampled_from([False, False, False, True]),
    st.sampled_from(["ask", "ask", "ask", "leave"]),
)


@given(st.booleans(), st.integers(0, 4), st.lists(ASKED, max_size=25))
def test_nobody_is_refused_while_a_later_one_stays(late_binding, max_held, asked) -> None:
    scheduler = _scheduler(late_binding, max_held)
    held: dict[tuple[str, str], DispatchRequested] = {}
    for number, (rank, arrival, frontend_id, replayed, what) in enumerate(asked):
        if what == "leave" and held:
            key = sorted(held)[number % len(held)]
            del held[key]
            scheduler.handle(DispatchCancelled(key[1], key[0]), 0.0)
            continue
        one = DispatchRequested(
            f"r{number}", frontend_id, 320, rank, float(arrival), replayed=replayed
        )
        held[frontend_id, one.request_id] = one
        told = scheduler.handle(one, 0.0)
        assert len(told) <= 1
        for reject in told:
            assert reject.code is RejectCode.OVERLOADED
            refused = held.pop((reject.frontend_id, reject.request_id))
            assert not refused.replayed
            others = [each for each in held.values() if not each.replayed]
            assert all(each.order < refused.order for each in others)
            assert len(held) >= max_held
        num_replayed = sum(each.replayed for each in held.values())
        assert len(held) <= max(max_held, num_replayed + max_held)
        assert scheduler.num_waiting == len(held)
        scheduler.check()


def test_a_higher_rank_takes_the_place_of_the_newest_of_the_lowest() -> None:
    for late_binding in (False, True):
        scheduler = _scheduler(late_binding, 3)
        for name, rank, arrival in (("a", 0, 1), ("b", 0, 3), ("c", 0, 2)):
            assert scheduler.handle(request(name, rank=rank, arrival=arrival), 0.0) == []
        (told,) = scheduler.handle(request("d", rank=1, arrival=9), 0.0)
        assert told == Reject("b", "f", RejectCode.OVERLOADED, MOST_RETRY_S)
        (told,) = scheduler.handle(request("e", rank=0, arrival=0), 0.0)
        assert told.request_id == "c"
        (told,) = scheduler.handle(request("f", rank=0, arrival=8), 0.0)
        assert told.request_id == "f", "the newcomer itself"
        assert scheduler.handle(request("a", rank=2, arrival=1), 0.0) == [], "it was held already"
        (told,) = scheduler.handle(request("g", rank=2, arrival=0), 0.0)
        assert told.request_id == "e", "else it were a"


def test_what_fits_at_once_is_not_refused_though_the_queue_is_full() -> None:
    scheduler = _scheduler(True, 0)
    scheduler.handle(status("a", requests=[running("x", 90)]), 0.0)
    (told,) = scheduler.handle(request("small", tokens=32), 0.0)
    assert told.instance_id == "a"
    (told,) = scheduler.handle(request("large", tokens=1600), 0.0)
    assert told.code is RejectCode.OVERLOADED


# -- when to come again ---------------------------------------------------------------------


def test_the_estimate_is_the_time_in_which_all_that_are_held_would_go() -> None:
    rate = DrainRate()
    assert rate.retry_after_s(10, 0.0) == MOST_RETRY_S, "nothing went yet"
    for second in range(10):
        rate.gone(100.0 + second, 2)
    assert rate.retry_after_s(7, 110.0) == 4
    assert rate.retry_after_s(0, 110.0) == 1
    assert rate.retry_after_s(10_000, 110.0) == MOST_RETRY_S
    assert rate.retry_after_s(1, 110.0 + DRAIN_WINDOW_S) == MOST_RETRY_S, "nothing went lately"


def test_a_refused_request_is_told_how_fast_the_queue_drains() -> None:
    scheduler = _scheduler(True, 20)
    for number in range(20):
        scheduler.handle(request(f"r{number}", tokens=160, arrival=number), 0.0)
    for second in range(1, 4):
        scheduler.handle(status("a", requests=[running("x", 80)], seen=2 * second), float(second))
    assert scheduler.num_waiting == 14
    for number in range(6):
        assert scheduler.handle(request(f"s{number}", tokens=160, arrival=50), 4.0) == []
    (told,) = scheduler.handle(request("late", tokens=160, arrival=99), 4.0)
    assert told == Reject("late", "f", RejectCode.OVERLOADED, 10), "6 went in 3 s, 20 are held"
