"""Moves by gain: token gaps, what a move gains and costs, and who is paired."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.core.emptying import rounds as relief_rounds
from controller.core.emptying.gain import (
    DISPLACED_SHARE,
    GAP_RATIO,
    LEAST_EXPECTED_TOKENS,
    MARGIN,
    GainRules,
    token_gap_s,
)
from controller.core.emptying.relief import Candidate, Decision, ReliefView, next_move
from controller.core.load.snapshot import InstanceSnapshot, PrefillSpeed
from controller.core.migration.refusals import ReliefRefusal
from tests.unit.core.test_core_rounds import CONFIG, RULES, Played
from tests.unit.rescheduling.relief_builders import instance, queued, running, view_of

STEP_S, LIMIT_S = 0.01, 0.05
AHEAD_S = CONFIG.gain_ahead_s
SPEED = PrefillSpeed(0.0001, 0.0)
FREE = {"total_blocks": 1000, "decode_step_s": STEP_S, "step_limit_s": LIMIT_S}
PLUS = replace(RULES, late_binding=True)


def idle(instance_id: str, *requests: Candidate, **more: Any) -> InstanceSnapshot:
    """Much memory is free, and nothing is to be computed."""
    times = FREE | {"prefill_speed": SPEED} | more
    return instance(*requests, instance_id=instance_id, **times)


# -- the gap -------------------------------------------------------------------------------


def test_the_gap_is_that_of_a_mix_of_short_and_long_steps() -> None:
    assert token_gap_s(idle("a"), AHEAD_S) == STEP_S
    half = idle("a", backlog_s=AHEAD_S / 2)
    assert token_gap_s(half, AHEAD_S) == pytest.approx(2 / (1 / STEP_S + 1 / LIMIT_S))
    assert token_gap_s(idle("a", backlog_s=10 * AHEAD_S), AHEAD_S) == LIMIT_S
    unlimited = idle("a", backlog_s=9.0, step_limit_s=0.0, max_step_tokens=8192)
    assert token_gap_s(unlimited, AHEAD_S) == pytest.approx(0.8192)
    assert token_gap_s(idle("a", backlog_s=9.0, decode_step_s=0.2), AHEAD_S) == 0.2, (
        "at least a step"
    )


def test_the_gap_of_an_instance_without_streams() -> None:
    empty = idle("a", decode_step_s=0.0)
    assert token_gap_s(empty, AHEAD_S) == 0.0, "not known"
    assert token_gap_s(empty, AHEAD_S, 0.02) == 0.02


# -- what a source sends -------------------------------------------------------------------


def view(*requests: Candidate, there: InstanceSnapshot | None = None, **more: Any) -> ReliefView:
    """A source with prompts to compute for 10 s, and a destination without any."""
    source = idle("a", *requests, backlog_s=10.0)
    seen = replace(view_of(requests), source=source, destination=there or idle("b"))
    return replace(seen, config=CONFIG, **more)


def decided(*requests: Candidate, **more: Any) -> Decision:
    return next_move(view(*requests, **more), GainRules)


def test_the_request_that_gains_most_leaves() -> None:
    """300 tokens that come 0.04 s sooner each, less those of a copy of 10 ms."""
    short, long = running("short", 10, num_outputs=5), running("long", 10, num_outputs=300)
    decision = decided(short, long)
    assert decision.chosen is long
    assert decision.reason == "gain"
    assert decision.numbers["expected_tokens"] == 300
    assert decision.numbers["gain_s"] == pytest.approx((300 - 0.2) * (LIMIT_S - STEP_S))
    displaced_s = DISPLACED_SHARE * 160 * SPEED.token_s
    assert decision.numbers["cost_s"] == pytest.approx(MARGIN * AHEAD_S + displaced_s)
    begun = replace(long, outgoing=True)
    assert decided(short, begun) == Decision(), "one at a time"


def test_how_many_tokens_are_expected() -> None:
    new = decided(running("r", 10, num_outputs=1))
    assert new.numbers["expected_tokens"] == LEAST_EXPECTED_TOKENS
    ending = running("r", 10, num_outputs=300, num_tokens_left=12)
    assert refusals(ending) == {"r": ReliefRefusal.GAINS_LITTLE}, "0.48 s are too little"


def refusals(*requests: Candidate, **more: Any) -> dict[str, str]:
    decision = decided(*requests, **more)
    assert decision.chosen is None
    return {each.request_id: each.code for each in decision.refused}


def test_who_stays() -> None:
    one = running("r", 10, num_outputs=300)
    assert decided(one, there=idle("b", backlog_s=10.0)) == Decision(), "no better there"
    slow = {"bytes_per_s": 1e6}
    assert refusals(one, **slow) == {"r": ReliefRefusal.GAINS_LITTLE}, "a copy of 10 s"
    assert refusals(replace(one, refusal="multimodal")) == {"r": "multimodal"}
    assert refusals(replace(one, moves=(("b", 1.0),))) == {"r": ReliefRefusal.MOVED_LATELY}
    assert refusals(replace(one, moves=(("c", 1.0),) * 6)) == {"r": ReliefRefusal.MOVES_OFTEN}
    full = idle("b", running("x", 995))
    assert refusals(one, there=full) == {"r": "no_blocks"}
    near = idle("b", running("x", 987))
    assert refusals(one, there=near) == {"r": ReliefRefusal.WOULD_OVERLOAD}
    waits = queued("q", 10)
    assert decided(one, waits).chosen is one
    assert refusals(waits) == {}, "nobody waits for tokens in a queue"
    high = replace(one, rank=1)
    assert refusals(high) == {"r": ReliefRefusal.HEADROOM}, "its headroom would go along"


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(0, 2000), st.integers(0, 2000)), max_size=8),
    st.floats(0.0, 4.0),
    st.floats(0.0, 4.0),
)
def test_no_move_loses(
    batch: list[tuple[int, int, int]], backlog_s: float, backlog_there_s: float
) -> None:
    """Whatever leaves gains more than it costs, and comes sooner to its tokens there."""
    requests = [
        running(f"r{n}", blocks, num_outputs=outputs, num_tokens_left=left)
        for n, (blocks, outputs, left) in enumerate(batch)
    ]
    seen = view(*requests, there=idle("b", backlog_s=backlog_there_s))
    seen = replace(seen, source=replace(seen.source, backlog_s=backlog_s))
    decision = next_move(seen, GainRules)
    if decision.chosen is not None:
        assert decision.numbers["gain_s"] > decision.numbers["cost_s"]
        assert token_gap_s(seen.source, AHEAD_S) > GAP_RATIO * token_gap_s(
            seen.destination, AHEAD_S
        )


# -- who is paired -------------------------------------------------------------------------


def orders(
    rounds: relief_rounds.ReliefRounds, now_s: float = 0.0
) -> dict[str, tuple[str, bool] | str]:
    """For each source, its destination and whether the order is by gain."""
    found: dict[str, tuple[str, bool] | str] = {}
    for told in rounds.handle(relief_rounds.RoundDue(), now_s):
        found[told.source_id] = "withdrawn"
        if isinstance(told, relief_rounds.OrderRelief):
            order = told.order
            found[told.source_id] = order.destination.instance_id, order.by_gain
    rounds.check()
    return found


def test_the_longest_gap_is_paired_with_the_shortest() -> None:
    cluster = Played()
    for instance_id, backlog_s in (("a", 0.1), ("b", 9.0), ("c", 0.0), ("d", 1.5)):
        request = running(f"{instance_id}-r", 10)
        cluster.instances[instance_id] = idle(instance_id, request, backlog_s=backlog_s)
    rounds = relief_rounds.ReliefRounds(cluster, cluster.cooling, PLUS, "x")
    assert orders(rounds) == {"b": ("c", True), "d": ("a", True)}
    rounds.handle(relief_rounds.PairFruitless(("b", 1), ("c", 1)), 0.0)
    assert orders(rounds, 0.1) == {"b": "withdrawn", "d": ("c", True)}, "nothing gains for now"
    assert orders(rounds, 1.2)["b"] == ("c", True)
    cluster.instances["c"] = idle("c", backlog_s=0.3)
    assert orders(rounds, 1.25) == {"b": ("a", True), "d": "withdrawn"}, "c has prompts to compute"
    cluster.instances["c"] = idle("c")
    cluster.unlike_to = {"b": "c"}
    assert orders(rounds, 1.3) == {"b": ("a", True), "d": ("c", True)}
    rounds.handle(relief_rounds.InstanceGone("b"), 1.3)
    rounds.check()


def test_a_destination_is_no_source_and_a_slow_batch_takes_no_place() -> None:
    """Three gaps that differ, of which the first two are of instances with prompts; and a batch
    that is slow by itself has nothing to gain, since its gap is not due to prompts."""
    cluster = Played()
    for instance_id, step_s, backlog_s in (
        ("a", 0.1, 9.0),
        ("b", 0.05, 9.0),
        ("c", 0.01, 0.0),
        ("d", 0.09, 0.0),
    ):
        request = running(f"{instance_id}-r", 10)
        steps = {"decode_step_s": step_s, "step_limit_s": step_s}
        cluster.instances[instance_id] = idle(instance_id, request, backlog_s=backlog_s, **steps)
    cluster.unlike_to = {"a": "c"}
    rounds = relief_rounds.ReliefRounds(cluster, cluster.cooling, PLUS, "x")
    assert orders(rounds) == {"b": ("c", True)}
    cluster.unlike_to = {}
    assert orders(rounds) == {"a": ("c", True), "b": "withdrawn"}


def test_memory_comes_first_and_other_policies_know_no_gain() -> None:
    cluster = Played()
    cluster.instances["a"] = idle("a", running("r", 10), backlog_s=9.0)
    cluster.instances["b"] = idle("b")
    for rules in (RULES, replace(PLUS, config=replace(CONFIG, gain_ahead_s=0.0))):
        assert orders(relief_rounds.ReliefRounds(cluster, cluster.cooling, rules, "x")) == {}
    plus = relief_rounds.ReliefRounds(cluster, cluster.cooling, PLUS, "x")
    assert orders(plus) == {"a": ("b", True)}
    cluster.instances["c"] = idle("c", running("big", 1000))
    assert orders(plus) == {"a": "withdrawn", "c": ("b", False)}
    cluster.instances["d"] = idle("d", draining=True)
    assert orders(plus) == {"c": ("b", False)}, "nothing goes to one that drains"
