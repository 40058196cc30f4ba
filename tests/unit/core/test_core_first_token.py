"""A request goes where its first token comes soonest, and of those instances to the freest."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from controller.core.admission.placement import best_fitting
from controller.core.admission.policies import SchedulerConfig
from controller.core.load.freeness import Room
from controller.core.load.snapshot import InstanceSnapshot, Unreported
from controller.core.scheduler import GlobalScheduler
from controller.core.scheduler_events import StatusReported
from controller.core.settings import HoldingConfig
from tests.unit.core.core_builders import (
    RequestSnapshot,
    queued,
    request,
    running,
    scheduler_with,
    status,
)

CONFIG = HoldingConfig(prefill_slack_tokens=160)
BLIND = HoldingConfig(by_prefill=False, by_prefix=False)


def room(name: str, prefill: int, free: int = 75) -> Room:
    return Room(name, free, 100, 1, 100, 0, 16, prefill, 100 - free)


def best(
    rooms: Sequence[Room],
    freeness: dict[str, float],
    cached: dict[str, int] | None = None,
    config: HoldingConfig = CONFIG,
    demand: int = 20,
) -> str | None:
    has = (cached or {}).get
    found = best_fitting(rooms, demand, lambda i: freeness[i], lambda i: has(i, 0), config)
    return None if found is None else found.instance_id


def test_cached_tokens_make_up_for_as_many_that_wait() -> None:
    """On a 320 tokens wait and 481 are cached: 161 less than on b, which has none of both."""
    rooms = [room("a", 20), room("b", 0)]
    assert best(rooms, {"a": 1.0, "b": 2.0}, {"a": 481}) == "a"
    assert best(rooms, {"a": 1.0, "b": 2.0}, {"a": 480}) == "b"
    without = HoldingConfig(by_prefix=False, prefill_slack_tokens=160)
    assert best(rooms, {"a": 1.0, "b": 2.0}, {"a": 481}, without) == "b"
    alone = HoldingConfig(by_prefill=False, prefill_slack_tokens=160)
    assert best(rooms, {"a": 1.0, "b": 2.0}, {"a": 161}, alone) == "a"
    assert best(rooms, {"a": 1.0, "b": 2.0}, {"a": 160}, alone) == "b"


ROOMS = st.lists(
    st.tuples(st.integers(0, 100), st.integers(0, 100), st.integers(0, 9), st.integers(0, 900)),
    min_size=1,
    max_size=6,
)


@given(drawn=ROOMS, demand=st.integers(1, 60), slack=st.integers(0, 500))
def test_none_is_both_much_sooner_and_none_freer_among_those_as_soon(drawn, demand, slack) -> None:
    rooms = [room(str(i), prefill, free) for i, (free, prefill, _, _) in enumerate(drawn)]
    freeness = {str(i): float(steps) for i, (_, _, steps, _) in enumerate(drawn)}
    cached = {str(i): tokens for i, (*_, tokens) in enumerate(drawn)}
    fitting = [r.instance_id for r in rooms if r.free_blocks >= demand]
    ahead = {
        r.instance_id: 16 * r.prefill_blocks - cached[r.instance_id]
        for r in rooms
        if r.free_blocks >= demand + 50
    }
    found = best(rooms, freeness, cached, HoldingConfig(prefill_slack_tokens=slack), demand)
    if not fitting:
        assert found is None
        return
    freest = max(fitting, key=lambda i: (freeness[i], -int(i)))
    assert best(rooms, freeness, cached, BLIND, demand) == freest
    if freest not in ahead:
        assert found == freest
        return
    assert found in ahead
    assert all(ahead[found] <= other + slack for other in ahead.values())
    for other, tokens in ahead.items():
        if (freeness[other], -int(other)) > (freeness[found], -int(found)):
            assert any(tokens > another + slack for another in ahead.values())


def test_what_is_ahead_is_all_that_is_not_computed() -> None:
    """3 blocks of a prefill under way, 10 of the queue, 5 on their way; then one more of 7."""
    snapshot = InstanceSnapshot(
        "i-0", 1, 16, 100, 60, fill_blocks=3, num_running=4, num_queued=1, queued_demand_blocks=10
    )
    found = Room.of(snapshot, 0, Unreported(1, 5))
    assert found.prefill_tokens == 16 * 18
    found.take(7)
    assert found.prefill_tokens == 16 * 25


def scheduler(
    on_a: Sequence[RequestSnapshot], on_b: Sequence[RequestSnapshot], **parts: bool
) -> GlobalScheduler:
    holding = HoldingConfig(room_to_grow_tokens=0, prefill_slack_tokens=0, **parts)
    config = SchedulerConfig(policy="llumnix+", holding=holding)
    found = scheduler_with(config, a=-1, b=-1)
    for name, requests in (("a", on_a), ("b", on_b)):
        found.handle(report(name, requests), 0.0)
    return found


def report(name: str, requests: Sequence[RequestSnapshot], seen: int = 0) -> StatusReported:
    return status(name, requests=requests, total_blocks=1000, seen=seen)


def sent_to(found: GlobalScheduler, name: str, *hashes: int) -> str:
    asked = request(name, tokens=160, prefix_hashes=hashes)
    expected = found.choice(asked)
    (dispatch,) = found.handle(asked, 0.0)
    assert dispatch.instance_id == expected, "what it would do is what it does"
    found.check()
    return dispatch.instance_id


def test_a_request_goes_where_nothing_waits_though_another_instance_is_freer() -> None:
    """F is 16 * 990 / 1 on a, whose queue has 10 blocks, and 16 * 900 / 2 on b."""
    waits, runs = [queued("q", 10)], [running("x", 50), running("y", 50)]
    assert sent_to(scheduler(waits, runs), "r1") == "b"
    assert sent_to(scheduler(waits, runs, by_prefill=False), "r1") == "a"


def test_a_prompt_goes_where_its_beginning_was_sent_until_more_waits_there() -> None:
    """Of its 10 blocks the second request shares 6 with the first, which went to a. When both are
    unreported, 20 blocks wait on a: more than 6, so the third goes to b."""
    found = scheduler([], [])
    first, second = tuple(range(10)), (*range(6), 90, 91, 92, 93)
    assert sent_to(found, "r1", *first) == "a"
    found.handle(report("a", [running("r1", 10)], seen=1), 0.0)
    assert sent_to(found, "r2", *second) == "a"
    assert sent_to(found, "r3", *second) == "b"
    found = scheduler([], [], by_prefix=False)
    assert sent_to(found, "r1", *range(10)) == "a"
    found.handle(report("a", [running("r1", 10)], seen=1), 0.0)
    assert sent_to(found, "r2", *range(10)) == "b", "nothing is remembered of prompts"
