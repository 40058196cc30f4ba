"""The estimate of the rate at which a cluster saturates, against what it serves in overload."""

from dataclasses import replace

import numpy as np
import pytest

from controller.sim.saturation import saturation_rate
from controller.sim.setup import ClusterSetup
from controller.sim.workload.named import workload
from tests.unit.sim.runs import A10, STAY, policy, requests, run


@pytest.mark.parametrize("mode", ["chunked", "prefill-first"])
@pytest.mark.parametrize("lengths", ["128,64", "512,16", "64,400", "3000,20"])
def test_it_is_near_what_an_overloaded_cluster_serves(lengths, mode) -> None:
    """Equal requests: little is evicted, so the estimate misses little."""
    trace = workload(lengths, rate=1000.0, num_requests=800, cv=0)
    estimate = saturation_rate(trace, A10, 2, mode)
    _, outcome = run(ClusterSetup(A10, policy(STAY), 2, mode=mode), trace)
    columns = outcome.rows.columns
    ends_s = np.sort(np.array(columns["arrival_s"]) + np.array(columns["e2e_latency_s"]))
    served = (len(ends_s) // 2) / (ends_s[3 * len(ends_s) // 4] - ends_s[len(ends_s) // 4])
    assert estimate == pytest.approx(served, rel=0.2)


def test_it_grows_with_the_instances() -> None:
    trace = workload("M-M", rate=1.0, num_requests=500)
    assert saturation_rate(trace, A10, 8) == pytest.approx(8 * saturation_rate(trace, A10, 1))


def test_less_memory_serves_less() -> None:
    trace = workload("M-M", rate=1.0, num_requests=500)
    small = replace(A10, num_total_blocks=200)
    assert saturation_rate(trace, small, 1) < 0.7 * saturation_rate(trace, A10, 1)


def test_requests_without_a_decode_step_cost_their_prefill() -> None:
    trace = requests([(0.0, 1000, 1)])
    prefill_s = A10.step_time_s([(1000, 0)], 0, 0)
    assert saturation_rate(trace, A10, 1, "prefill-first") == pytest.approx(1 / prefill_s)
