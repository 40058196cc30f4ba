"""Waiting requests: which one is refused when too many wait, what its client is told, and fair
turns between the API keys of one rank."""

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from controller.core import scheduler_events as events
from controller.core.admission.policies import SchedulerConfig
from controller.core.admission.waiting_requests import (
    DRAIN_WINDOW_S,
    MOST_RETRY_S,
    DrainRate,
    FairTurns,
    ShedOrder,
    WaitingRequests,
)
from controller.core.scheduler import GlobalScheduler
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
    held: dict[tuple[str, str], events.DispatchRequested] = {}
    for number, (rank, arrival, frontend_id, replayed, what) in enumerate(asked):
        if what == "leave" and held:
            key = sorted(held)[number % len(held)]
            del held[key]
            scheduler.handle(events.DispatchCancelled(key[1], key[0]), 0.0)
            continue
        one = events.DispatchRequested(
            f"r{number}", frontend_id, 320, rank, float(arrival), replayed=replayed
        )
        held[frontend_id, one.request_id] = one
        told = scheduler.handle(one, 0.0)
        assert len(told) <= 1
        for reject in told:
            assert reject.code is events.RejectCode.OVERLOADED
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
        assert told == events.Reject("b", "f", events.RejectCode.OVERLOADED, MOST_RETRY_S)
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
    assert told.code is events.RejectCode.OVERLOADED


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
    assert told == events.Reject("late", "f", events.RejectCode.OVERLOADED, 10), (
        "6 went in 3 s, 20 are held"
    )


# -- turns ------------------------------------------------------------------------------------


def test_keys_that_wait_take_turns_by_what_their_requests_cost() -> None:
    turns = FairTurns()
    flood = [turns.take(0, "a", 100.0) for _ in range(3)]
    assert flood == [0.0, 100.0, 200.0]
    assert [turns.take(0, "b", 50.0) for _ in range(3)] == [0.0, 50.0, 100.0]
    assert turns.take(1, "a", 100.0) == 0.0, "of another rank"
    turns.gone(0, "a", 200.0, 100.0, served=False)
    assert turns.take(0, "a", 100.0) == 200.0, "the next of its key has its turn"


def test_a_key_that_was_away_has_neither_credit_nor_debt() -> None:
    turns = FairTurns()
    first, second = turns.take(0, "a", 100.0), turns.take(0, "a", 100.0)
    turns.gone(0, "a", first, 100.0, served=True)
    assert turns.take(0, "b", 10.0) == second, "the least of those present"
    turns.gone(0, "a", second, 100.0, served=True)
    turns.gone(0, "b", second, 10.0, served=True)
    assert len(turns) == 0
    assert turns.take(0, "a", 5.0) == 0.0, "nobody waits: nothing is remembered"


COSTS = st.integers(1, 100)
ARRIVALS = st.lists(st.tuples(st.sampled_from("abc"), COSTS, st.booleans()), max_size=60)


@given(ARRIVALS)
def test_nobody_comes_before_the_first_and_keys_that_wait_are_served_alike(arrivals) -> None:
    """Between two keys that wait all the time the difference is at most a request of each
    (start-time fair queueing's bound)."""
    turns, waiting = FairTurns(), list[tuple[float, int, str, int]]()
    since: dict[tuple[str, str], Counter[str]] = {}
    most = 0
    for number, (key, cost, serves) in enumerate(arrivals):
        first = min(waiting, default=None)
        waiting.append((turns.take(0, key, float(cost)), number, key, cost))
        most = max(most, cost)
        assert first is None or min(waiting) == first
        if serves:
            turn, _, key, cost = served = min(waiting)
            waiting.remove(served)
            turns.gone(0, key, turn, float(cost), served=True)
            for counts in since.values():
                counts[key] += cost
        present = {each[2] for each in waiting}
        pairs = {(one, other) for one in present for other in present if one < other}
        since = {pair: since.get(pair, Counter()) for pair in pairs}
        for (one, other), counts in since.items():
            assert abs(counts[one] - counts[other]) <= 2 * most
    assert len(turns) == len(waiting)


# -- in the scheduler -------------------------------------------------------------------------


def _fair_scheduler(*, fair_keys: bool = True, **settings: float) -> GlobalScheduler:
    """One instance, with nothing free."""
    holding = HoldingConfig(room_to_grow_tokens=0, fair_keys=fair_keys, **settings)  # type: ignore[arg-type]
    config = SchedulerConfig(policy="llumnix+", holding=holding, stall_timeout_s=1e9)
    return scheduler_with(config, a=100)


def _ask(to: GlobalScheduler, number: int, key: str, rank: int = 0, tokens: int = 160) -> None:
    asked = events.DispatchRequested(f"r{number}", "f", tokens, rank, float(number), api_key=key)
    assert to.handle(asked, 0.0) == []
    to.check()


def _order(to: GlobalScheduler) -> list[str]:
    """In which they go, as places become free one by one."""
    found, seen = [], 0
    while to.num_waiting:
        room = [running("x", 90)]
        for told in to.handle(status("a", requests=room, seen=seen), float(seen)):
            found.append(told.request_id)
            seen = told.seq
        to.check()
    return found


def test_one_key_s_flood_does_not_keep_another_waiting() -> None:
    for fair_keys in (True, False):
        to = _fair_scheduler(fair_keys=fair_keys)
        for number in range(6):
            _ask(to, number, "flood")
        _ask(to, 6, "other")
        _ask(to, 7, "other")
        fair = ["r0", "r6", "r1", "r7", "r2", "r3", "r4", "r5"]
        assert _order(to) == (fair if fair_keys else [f"r{i}" for i in range(8)])


def test_outputs_count_by_what_requests_of_the_key_put_out_before() -> None:
    to = _fair_scheduler()
    _ask(to, 0, "talks")
    to.handle(events.KeysTold("f", (events.KeyUsed("talks", 1, 0, 2, 640, 0, 0),)), 0.0)
    for number in (1, 2):
        _ask(to, number, "talks")
    for number in range(3, 8):
        _ask(to, number, "brief")
    _ask(to, 8, "high", rank=1)
    assert _order(to) == ["r8", "r0", "r3", "r1", "r4", "r5", "r6", "r2", "r7"]


def test_many_long_streams_charge_the_next_request_with_one_of_them() -> None:
    """Not with the tokens of all, for the few that have ended."""
    to = _fair_scheduler()
    to.handle(events.KeysTold("f", (events.KeyUsed("talks", 501, 0, 1, 300, 500, 150_000),)), 0.0)
    assert to.keys.mean_output("talks") == 300.0


def test_a_late_request_gives_up_its_turn() -> None:
    """Else a key that comes later would begin at that turn, far ahead of the others."""
    waiting = WaitingRequests()

    def hold(name: str, api_key: str) -> None:
        asked = replace(request(name), api_key=api_key)
        waiting.hold(asked, 0.0, 1000.0)

    hold("late", "A")
    waiting.set_late(("f", "late"), is_late=True)
    for number in range(3):
        hold(f"a{number}", "A")
        waiting.check()
    for number in range(2):
        waiting.discard(("f", f"a{number}"), served=True)
    hold("c", "C")
    assert waiting[("f", "c")].turn == waiting[("f", "a2")].turn > 0.0
    waiting.set_late(("f", "late"), is_late=False)
    waiting.discard(("f", "late"))
    waiting.check()
