"""Fair turns between the API keys of one rank while requests wait."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from controller.core import scheduler_events as events
from controller.core.admission.policies import SchedulerConfig
from controller.core.admission.waiting_requests import FairTurns
from controller.core.scheduler import GlobalScheduler
from controller.core.settings import HoldingConfig
from tests.unit.core.core_builders import running, scheduler_with, status

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


def _scheduler(*, fair_keys: bool = True, **settings: float) -> GlobalScheduler:
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
        to = _scheduler(fair_keys=fair_keys)
        for number in range(6):
            _ask(to, number, "flood")
        _ask(to, 6, "other")
        _ask(to, 7, "other")
        fair = ["r0", "r6", "r1", "r7", "r2", "r3", "r4", "r5"]
        assert _order(to) == (fair if fair_keys else [f"r{i}" for i in range(8)])


def test_outputs_count_by_what_requests_of_the_key_put_out_before() -> None:
    to = _scheduler()
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
    to = _scheduler()
    to.handle(events.KeysTold("f", (events.KeyUsed("talks", 501, 0, 1, 300, 500, 150_000),)), 0.0)
    assert to.keys.mean_output("talks") == 300.0
