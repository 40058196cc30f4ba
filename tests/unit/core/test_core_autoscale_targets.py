"""Targets for TTFT and TPOT: the estimate for another number of instances, and the decision."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from controller.core.fleet.autoscaler import ScaleDecision, ScaleReason, ScaleState, decide, why
from controller.core.fleet.outlook import (
    ClusterLoad,
    Crowd,
    Estimate,
    RecentLatencies,
    Target,
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


class TestEstimate:
    def test_a_share_of_an_instance_more_or_less(self) -> None:
        recent = RecentLatencies(ttft_p99_s=1.0, tpot_p99_s=0.1)
        assert estimate(recent, TEN, 2) == Estimate(1.0, 0.1)
        assert estimate(recent, TEN, 1) == Estimate(2.0, 0.2)
        assert estimate(recent, TEN, 4) == Estimate(0.5, 0.05)

    def test_who_has_an_instance_for_itself_gains_nothing(self) -> None:
        recent = RecentLatencies(ttft_p99_s=1.0, tpot_p99_s=0.5)
        assert estimate(recent, TEN, 10) == estimate(recent, TEN, 64) == Estimate(0.2, 0.1)
        two = Crowd(2, 0, 2)
        assert estimate(recent, two, 3) == estimate(recent, two, 2) == Estimate(1.0, 0.5)

    def test_what_waits_counts_as_it_is_and_by_the_pace(self) -> None:
        crowd = replace(TEN, num_waiting=30)
        assert estimate(RecentLatencies(longest_wait_s=7.0), crowd, 2).ttft_s == 7.0
        assert estimate(RecentLatencies(longest_wait_s=7.0), crowd, 4).ttft_s == 3.5
        paced = RecentLatencies(num_first_tokens=120)  # two a second
        assert estimate(paced, crowd, 2).ttft_s == 15.0
        assert estimate(paced, crowd, 3).ttft_s == 10.0
        assert estimate(RecentLatencies(longest_wait_s=7.0), TEN, 2).ttft_s is None

    def test_after_another_number_of_instances_only_what_waits(self) -> None:
        recent = RecentLatencies(9.0, 0.9, longest_wait_s=1.5, settled=False)
        assert estimate(recent, TEN, 2) == Estimate()
        assert estimate(recent, replace(TEN, num_waiting=1), 2) == Estimate(1.5)

    def test_nothing_is_known_of_none(self) -> None:
        recent = RecentLatencies(1.0, 0.1)
        assert estimate(recent, Crowd(0, 5, 0), 2) == Estimate()
        assert estimate(recent, TEN, 0) == Estimate()


seconds = st.floats(0, 1000, allow_nan=False)
recents = st.builds(
    RecentLatencies,
    ttft_p99_s=st.none() | seconds,
    tpot_p99_s=st.none() | seconds,
    num_first_tokens=st.integers(0, 5000),
    longest_wait_s=seconds,
    settled=st.booleans(),
)
crowds = st.builds(Crowd, st.integers(0, 500), st.integers(0, 500), st.integers(1, 64))


def at_most(one: Estimate, other: Estimate) -> bool:
    for target in Target:
        first, second = one.of(target), other.of(target)
        if first is not None and (second is None or first > second * (1 + 1e-9)):
            return False
    return True


class TestMonotone:
    @given(recents, crowds, st.integers(1, 64), st.integers(0, 64))
    def test_in_the_number_of_instances(
        self, recent: RecentLatencies, crowd: Crowd, number: int, more: int
    ) -> None:
        assert at_most(estimate(recent, crowd, number + more), estimate(recent, crowd, number))

    @given(recents, crowds, st.integers(1, 64), st.integers(0, 500), seconds, seconds, seconds)
    def test_in_what_waits_and_what_was_measured(
        self,
        recent: RecentLatencies,
        crowd: Crowd,
        number: int,
        more: int,
        longer_s: float,
        slower_s: float,
        later_s: float,
    ) -> None:
        worse = replace(
            recent,
            ttft_p99_s=None if recent.ttft_p99_s is None else recent.ttft_p99_s + slower_s,
            tpot_p99_s=None if recent.tpot_p99_s is None else recent.tpot_p99_s + later_s,
            longest_wait_s=recent.longest_wait_s + longer_s,
        )
        fuller = replace(crowd, num_waiting=crowd.num_waiting + more)
        assert at_most(estimate(recent, crowd, number), estimate(worse, fuller, number))

    @given(recents, crowds, st.integers(1, 64), st.integers(0, 500))
    def test_in_what_runs_with_as_many_instances_or_fewer(
        self, recent: RecentLatencies, crowd: Crowd, fewer: int, more: int
    ) -> None:
        assume(fewer <= crowd.num_serving)
        busier = replace(crowd, num_running=crowd.num_running + more)
        assert at_most(estimate(recent, crowd, fewer), estimate(recent, busier, fewer))


class TestUp:
    def test_as_many_as_bring_it_to_the_target(self) -> None:
        found = check(load(ttft_p99_s=5.0))  # 2.5 with 4, 2 with 5
        assert (found.reason, found.num_added) == (ScaleReason.TTFT_TARGET, 3)
        assert found.estimate.ttft_s == 5.0
        assert why(found, CONFIG) == (
            "the P99 TTFT of the next minute is estimated at 5 s, and the target is 2 s"
        )
        found = check(load(tpot_p99_s=0.15))
        assert (found.reason, found.num_added) == (ScaleReason.TPOT_TARGET, 1)

    def test_what_starts_counts(self) -> None:
        starting = replace(load(ttft_p99_s=5.0), num_starting=2)
        assert check(starting).num_added == 1
        assert check(replace(starting, num_starting=3)).num_added == 0

    def test_at_most_the_step_and_the_maximum(self) -> None:
        busy = load(num_running=500, ttft_p99_s=100.0)
        assert check(busy).num_added == 4
        assert check(busy, replace(CONFIG, max_instances=3)).num_added == 1
        assert check(busy, replace(CONFIG, max_instances=2)).reason is ScaleReason.AT_MAXIMUM

    def test_none_where_more_would_not_help(self) -> None:
        alone = check(load(num_running=2, tpot_p99_s=0.2))
        assert (alone.reason, alone.num_added) == (ScaleReason.OUT_OF_REACH, 0)
        assert why(alone, CONFIG).endswith("and more instances would not help")
        found = check(load(num_running=3, tpot_p99_s=0.2))
        assert found.num_added == 1, "three have one each, and a fourth would be idle"

    def test_without_a_target_nothing_is_missed(self) -> None:
        free = replace(CONFIG, target_ttft_s=None, target_tpot_s=None)
        assert check(load(ttft_p99_s=500.0, tpot_p99_s=9.0), free).removed_id is not None
        assert check(replace(load(), recent=None)).removed_id is not None

    def test_for_the_persistence_time(self) -> None:
        config = replace(CONFIG, up_persistence_s=20.0)
        lately = check(load(ttft_p99_s=5.0), config)
        assert lately.reason is ScaleReason.LOW_LATELY
        assert why(lately, config).endswith("the target is 2 s, but not for 20 s yet")

    def test_the_range_holds_besides(self) -> None:
        low = load(num_instances=1, num_running=300, ttft_p99_s=0.1)  # 16 * 700 / 300 = 37
        assert check(low).reason is ScaleReason.LOW_FREENESS


class TestDown:
    def test_only_with_a_margin(self) -> None:
        assert check(load(ttft_p99_s=0.8)).removed_id is not None  # 1.6 with one
        found = check(load(ttft_p99_s=0.85))
        assert (found.reason, found.removed_id) == (ScaleReason.TARGET_NEEDS_IT, None)
        assert found.missed is Target.TTFT
        assert why(found, CONFIG).endswith(
            "but its P99 TTFT is estimated at 1.7 s, more than 80% of the target of 2 s"
        )
        assert check(load(tpot_p99_s=0.05)).reason is ScaleReason.TARGET_NEEDS_IT

    def test_not_in_the_minute_after_another_number_of_instances(self) -> None:
        found = check(load(ttft_p99_s=0.1, settled=False))
        assert found.reason is ScaleReason.TARGET_NEEDS_IT
        assert "tells of another number of instances" in why(found, CONFIG)

    def test_without_traffic_at_once(self) -> None:
        found = check(load(num_running=0, ttft_p99_s=99.0, settled=False))
        assert found.reason is ScaleReason.NO_TRAFFIC

    def test_what_nobody_saw_misses_nothing(self) -> None:
        assert check(load()).reason is ScaleReason.HIGH_FREENESS


@given(
    recent=recents,
    num_instances=st.integers(1, 12),
    num_running=st.integers(0, 600),
    ttft_s=st.none() | st.floats(0.01, 100),
    tpot_s=st.none() | st.floats(0.01, 100),
)
def test_a_load_that_stays_never_leads_to_up_and_down_in_turn(
    recent: RecentLatencies,
    num_instances: int,
    num_running: int,
    ttft_s: float | None,
    tpot_s: float | None,
) -> None:
    """Latencies that are as estimated, when the number of instances has changed."""
    config = replace(CONFIG, target_ttft_s=ttft_s, target_tpot_s=tpot_s)
    state, sizes = ScaleState(0.0), [num_instances]
    for _ in range(60):
        now = load(sizes[-1], num_running)
        now = replace(now, recent=recent)
        decision, state = decide(config, state, now, state.next_check_s)
        assert decision is not None
        sizes.append(sizes[-1] + decision.num_added - (decision.removed_id is not None))
        expected = estimate(recent, now.crowd, sizes[-1])
        if recent.settled and recent.num_first_tokens == 0:
            recent = replace(recent, ttft_p99_s=expected.ttft_s, tpot_p99_s=expected.tpot_s)
    assert sizes == sorted(sizes) or sizes == sorted(sizes, reverse=True), sizes


@pytest.mark.parametrize("how", [{"target_ttft_s": 0.0}, {"target_tpot_s": -1.0}])
def test_what_makes_no_sense(how: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="target"):
        replace(CONFIG, **how)
