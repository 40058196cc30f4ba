"""`make bench-autoscale`: its load, what instances over time cost, and what is shown."""

import pytest

from benchmarks.autoscale import (
    BURST,
    NOTHING,
    SCALED,
    SLOW_S,
    Scene,
    Tide,
    mean_over_time,
    saving_lines,
    simulate,
)

TIDE = Tide(1000.0, low_rate=0.5, high_rate=2.5, burst_rate=6.0)
SCENE = Scene(Tide(600.0, 0.2, 2.4, 6.0), "M-M", seed=1, least=1, most=4, speed=6.0)


def test_slow_requests_are_told_by_when_they_came() -> None:
    begin_s, end_s = 1000 * BURST[0], 1000 * NOTHING[0]
    arrivals_s = [0.0, begin_s - 1, begin_s, end_s - 1, end_s, 999.0]
    ttfts_s = [SLOW_S, SLOW_S + 1, SLOW_S + 1, SLOW_S + 1, 0.1, SLOW_S + 1]
    assert TIDE.num_slow(arrivals_s, ttfts_s) == (1, 2, 1)


def test_the_cost_is_the_mean_over_time_not_over_looks() -> None:
    mean = (2 * 1 + 4 * 0.5 + 3 * 8.5) / 10
    assert mean_over_time([0.0, 1.0, 1.5], [2, 4, 3], 10.0) == pytest.approx(mean)
    assert mean_over_time([1.0, 5.0, 30.0], [2, 4, 9], 9.0) == 3.0, "what is later does not count"


@pytest.mark.long
def test_live_runs_are_compared_with_simulated_ones() -> None:
    simulated = {
        f"{run}, {policy}": [simulate(SCENE, run, policy, 0)]
        for run, policy in ((SCALED, "llumnix"), (SCALED, "infaas++"), ("fixed-4", "llumnix"))
    }
    scaled, fixed = simulated["autoscale, llumnix"][0], simulated["fixed-4, llumnix"][0]
    assert 1 < scaled["mean_num_instances"] < fixed["mean_num_instances"] == 4
    live = [
        {"run": run, "policy": "llumnix", "mean_num_instances": cost, "ttft_s": {"p99": p99_s}}
        for run, cost, p99_s in ((SCALED, 2.0, 3.0), ("fixed-4", 4.0, 6.0))
    ]
    first, *others = saving_lines(live, simulated)
    assert first.startswith("live: autoscale, llumnix beside fixed-4, llumnix: cost -50%, P99")
    assert len(others) == 3
