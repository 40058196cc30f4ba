"""Targets for TTFT and TPOT: the estimate for another number of instances, and the decision."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.core.fleet.autoscaler import ScaleDecision, ScaleReason, ScaleState, decide, why
from controller.core.fleet.outlook import (
    ClusterLoad,
    Crowd,
    Estimate,
    RecentLatencies,
    estimate,
)
from controller.core.settings import AutoscaleConfig
from tests.unit.core.core_builders import snapshot_of

CONFIG = AutoscaleConfig(
    up_persistence_s=0, down_persistence_s=0, target_ttft_s=2.0, target_tpot_s=0.1
)
TEN = Crowd(num_running=10, num_waiting=0, num_serving=2)


def load(num_instances: int = 2, num_running: int = 10, **recent: Any) -> ClusterLoad:
    """Instances with 1,000 blocks; the first runs all requests, of one block each."""
    idle = [snapshot_of(instance_id=f"i-{n}", total_blocks=1000) for n in range(num_instances)]
    full = replace(idle[0], num_free_blocks=1000 - num_running, num_running=num_running)
    return ClusterLoad([full, *idle[1:]], 16, 1000, recent=RecentLatencies(**recent))


def check(found: ClusterLoad, config: AutoscaleConfig = CONFIG) -> ScaleDecision:
    decision, _ = decide(config, ScaleState(0.0), found, 0.0)
    assert decision is not None
    return decision


SLOW = RecentLatencies(ttft_p99_s=1.0, tpot_p99_s=0.5)
LONG_WAIT, PACED = RecentLatencies(longest_wait_s=7.0), RecentLatencies(num_first_tokens=120)
CHANGED = RecentLatencies(9.0, 0.9, longest_wait_s=1.5, settled=False)
QUEUE = replace(TEN, num_waiting=30)


@pytest.mark.parametrize(
    ("recent", "crowd", "number", "expected"),
    [
        (SLOW, TEN, 2, Estimate(1.0, 0.5)),
        (SLOW, TEN, 1, Estimate(2.0, 1.0)),
        (SLOW, TEN, 4, Estimate(0.5, 0.25)),
        # Each request has an instance for itself, and gains nothing by more.
        (SLOW, TEN, 10, Estimate(0.2, 0.1)),
        (SLOW, TEN, 64, Estimate(0.2, 0.1)),
        (SLOW, Crowd(2, 0, 2), 3, Estimate(1.0, 0.5)),
        # What waits counts as it is and by the pace, here of two a second.
        (LONG_WAIT, QUEUE, 2, Estimate(7.0)),
        (LONG_WAIT, QUEUE, 4, Estimate(3.5)),
        (PACED, QUEUE, 2, Estimate(15.0)),
        (PACED, QUEUE, 3, Estimate(10.0)),
        (LONG_WAIT, TEN, 2, Estimate()),
        # After another number of instances only what waits.
        (CHANGED, TEN, 2, Estimate()),
        (CHANGED, replace(TEN, num_waiting=1), 2, Estimate(1.5)),
        # Nothing is known of none.
        (SLOW, Crowd(0, 5, 0), 2, Estimate()),
        (SLOW, TEN, 0, Estimate()),
    ],
)
def test_an_estimate(recent, crowd, number, expected) -> None:
    assert estimate(recent, crowd, number) == expected


seconds = st.floats(0, 1000, allow_nan=False)
recents = st.builds(
    RecentLatencies,
    ttft_p99_s=st.none() | seconds,
    tpot_p99_s=st.none() | seconds,
    num_first_tokens=st.integers(0, 5000),
    longest_wait_s=seconds,
    settled=st.booleans(),
)


def row(name: str, found: ClusterLoad, reason: ScaleReason, added: int, words: str, **how: Any):
    return pytest.param(found, replace(CONFIG, **how), reason, added, words, id=name)


TTFT, TPOT = ScaleReason.TTFT_TARGET, ScaleReason.TPOT_TARGET
NEEDED, HIGH = ScaleReason.TARGET_NEEDS_IT, ScaleReason.HIGH_FREENESS
AT_MAXIMUM, LOW = ScaleReason.AT_MAXIMUM, ScaleReason.LOW_FREENESS
FIVE_S = load(ttft_p99_s=5.0)  # 2.5 with 4, 2 with 5
CROWD = load(num_running=500, ttft_p99_s=100.0)
NO_TARGETS: Any = {"target_ttft_s": None, "target_tpot_s": None}


@pytest.mark.parametrize(
    ("found", "config", "reason", "change", "words"),
    [
        row(
            "as many as bring it there", FIVE_S, TTFT, 3, "estimated at 5 s, and the target is 2 s"
        ),
        row("TPOT", load(tpot_p99_s=0.15), TPOT, 1, "0.15 s, and the target is 0.1 s"),
        row("what starts counts", replace(FIVE_S, num_starting=2), TTFT, 1, ""),
        row("enough start", replace(FIVE_S, num_starting=3), NEEDED, 0, ""),
        row("at most the step", CROWD, LOW, 4, ""),
        row("at most the maximum", CROWD, LOW, 1, "", max_instances=3),
        row("none at the maximum", CROWD, AT_MAXIMUM, 0, "", max_instances=2),
        row(
            "more would not help",
            load(num_running=2, tpot_p99_s=0.2),
            *(ScaleReason.OUT_OF_REACH, 0, "and more instances would not help"),
        ),
        row("a fourth would be idle", load(num_running=3, tpot_p99_s=0.2), TPOT, 1, ""),
        row("no target", load(ttft_p99_s=9.0, tpot_p99_s=9.0), HIGH, -1, "", **NO_TARGETS),
        row("nothing is known", replace(load(), recent=None), HIGH, -1, ""),
        row("nobody saw anything", load(), HIGH, -1, ""),
        row("for a time", FIVE_S, ScaleReason.LOW_LATELY, 0, "for 20 s yet", up_persistence_s=20.0),
        row(
            "the range holds besides: 16 * 700 / 300 = 37",
            load(num_instances=1, num_running=300, ttft_p99_s=0.1),
            *(LOW, 3, ""),
        ),
        row("one less with a margin: 1.6", load(ttft_p99_s=0.8), HIGH, -1, ""),
        row("too little of it", load(ttft_p99_s=0.85), NEEDED, 0, "80% of the target of 2 s"),
        row("of TPOT too", load(tpot_p99_s=0.05), NEEDED, 0, "80% of the target of 0.1 s"),
        row(
            "not in the minute after another number",
            load(ttft_p99_s=0.1, settled=False),
            *(NEEDED, 0, "tells of another number of instances"),
        ),
        row(
            "without traffic at once",
            load(num_running=0, ttft_p99_s=99.0, settled=False),
            *(ScaleReason.NO_TRAFFIC, -1, ""),
        ),
    ],
)
def test_a_check(found, config, reason, change, words) -> None:
    decision = check(found, config)
    assert (decision.reason, decision.change) == (reason, change)
    assert why(decision, config).endswith(words)


@given(
    recent=recents,
    num_instances=st.integers(1, 12),
    num_running=st.integers(0, 600),
    ttft_s=st.none() | st.floats(0.01, 100),
    tpot_s=st.none() | st.floats(0.01, 100),
)
def test_a_load_that_stays_never_leads_to_up_and_down_in_turn(
    recent, num_instances, num_running, ttft_s, tpot_s
) -> None:
    """Latencies that are as estimated, when the number of instances has changed."""
    config = replace(CONFIG, target_ttft_s=ttft_s, target_tpot_s=tpot_s)
    state, sizes = ScaleState(0.0), [num_instances]
    for _ in range(60):
        now = load(sizes[-1], num_running)
        now = replace(now, recent=recent)
        decision, state = decide(config, state, now, state.next_check_s)
        sizes.append(sizes[-1] + decision.num_added - (decision.removed_id is not None))
        expected = estimate(recent, now.crowd, sizes[-1])
        if recent.settled and recent.num_first_tokens == 0:
            recent = replace(recent, ttft_p99_s=expected.ttft_s, tpot_p99_s=expected.tpot_s)
    assert sizes == sorted(sizes) or sizes == sorted(sizes, reverse=True), sizes
    assert len(set(sizes[-10:])) == 1, "it rests"
    assert config.min_instances <= sizes[-1] <= config.max_instances
