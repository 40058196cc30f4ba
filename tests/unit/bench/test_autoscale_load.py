"""The load of `make bench-autoscale`, and what a number of instances over time costs."""

import pytest

from benchmarks.autoscale import BURST, NOTHING, SLOW_S, Tide, mean_over_time
from benchmarks.cluster import PROFILE
from controller.model.profile import load_profile
from controller.sim.setup import ClusterSetup, sim_policy

TIDE = Tide(1000.0, low_rate=0.5, high_rate=2.5, burst_rate=6.0)
SETUP = ClusterSetup(load_profile(PROFILE), sim_policy("llumnix"), 4)


def test_it_rises_and_falls_twice_with_a_burst_and_nothing_at_all() -> None:
    assert [TIDE.rate(at_s) for at_s in (0.0, 250.0, 500.0)] == pytest.approx([0.5, 2.5, 0.5])
    assert TIDE.rate(1000 * BURST[0]) == TIDE.rate(1000 * BURST[1] - 1) == 6.0
    assert TIDE.rate(1000 * NOTHING[0]) == TIDE.rate(1000 * NOTHING[1] - 1) == 0.0
    assert TIDE.rate(1000 * NOTHING[1] + 1) > 0


def test_the_requests_come_at_these_rates() -> None:
    trace = TIDE.trace("S-S", SETUP, seed=1)
    arrivals_s = [each.arrival_s for each in trace.requests]
    assert len(arrivals_s) == pytest.approx(TIDE.mean_rate * 1000, rel=0.1)
    assert max(arrivals_s) < 1000
    assert not [at_s for at_s in arrivals_s if 1000 * NOTHING[0] <= at_s < 1000 * NOTHING[1]]
    in_burst = sum(1000 * BURST[0] <= at_s < 1000 * BURST[1] for at_s in arrivals_s)
    assert in_burst == pytest.approx(6.0 * 1000 * (BURST[1] - BURST[0]), rel=0.2)
    again = TIDE.trace("S-S", SETUP, seed=1)
    assert again.requests == trace.requests
    assert TIDE.trace("S-S", SETUP, seed=2).requests != trace.requests


def test_slow_requests_are_told_by_when_they_came() -> None:
    begin_s, end_s = 1000 * BURST[0], 1000 * NOTHING[0]
    arrivals_s = [0.0, begin_s - 1, begin_s, end_s - 1, end_s, 999.0]
    ttfts_s = [SLOW_S, SLOW_S + 1, SLOW_S + 1, SLOW_S + 1, 0.1, SLOW_S + 1]
    assert TIDE.num_slow(arrivals_s, ttfts_s) == (1, 2, 1)


def test_the_cost_is_the_mean_over_time_not_over_looks() -> None:
    assert mean_over_time([0.0, 1.0, 1.5], [2, 4, 3], 10.0) == pytest.approx(
        (2 * 1 + 4 * 0.5 + 3 * 8.5) / 10
    )
    assert mean_over_time([1.0, 5.0, 30.0], [2, 4, 9], 9.0) == 3.0, "what is later does not count"
    with pytest.raises(ValueError, match="nothing"):
        mean_over_time([], [], 5.0)
