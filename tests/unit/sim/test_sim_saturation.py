"""The estimate of the rate at which a cluster saturates, compared with what it serves in
overload, and the search for the knee."""

import math

import numpy as np
import pytest

from controller.sim.rates import MAX_POINTS, knee, saturation_rate
from controller.sim.run import saturation_of
from controller.sim.setup import ClusterSetup
from controller.sim.workload.named import workload
from controller.sim.workload.trace import Trace, TraceRequest
from tests.unit.sim.runs import A10, STAY, policy, run


@pytest.mark.parametrize("mode", ["chunked", "prefill-first"])
@pytest.mark.parametrize("lengths", ["128,64", "64,400", "3000,20"])
def test_it_is_near_what_an_overloaded_cluster_serves(lengths, mode) -> None:
    """Equal requests: little is evicted, so the estimate misses little."""
    trace = workload(lengths, rate=1000.0, num_requests=800, cv=0)
    estimate = saturation_rate(trace, A10, 2, mode)
    served = served_rate(ClusterSetup(A10, policy(STAY), 2, mode=mode), trace)
    assert estimate == pytest.approx(served, rel=0.2)


def assistants(num_requests: int, num_assistants: int) -> Trace:
    """Prompts of 2,000 tokens, 1,600 of which all requests of one assistant have in common."""
    rows = ((number / 1000, number % num_assistants) for number in range(num_requests))
    return Trace(
        "assistants",
        [
            TraceRequest(at_s, 2000, 40, prefix_hashes=tuple(range(100 * one, 100 * one + 100)))
            for at_s, one in rows
        ],
        16,
    )


def served_rate(setup: ClusterSetup, trace: Trace) -> float:
    """Of the middle half of the requests, in overload."""
    _, outcome = run(setup, trace)
    columns = outcome.rows.columns
    ends_s = np.sort(np.array(columns["arrival_s"]) + np.array(columns["e2e_latency_s"]))
    return (len(ends_s) // 2) / (ends_s[3 * len(ends_s) // 4] - ends_s[len(ends_s) // 4])


def test_what_is_in_prefix_caches_costs_nothing() -> None:
    trace = assistants(400, 2)
    setup = ClusterSetup(A10, policy(STAY), 1, prefix_caching=True)
    served = served_rate(setup, trace)
    estimate = saturation_rate(trace, A10, 1, prefix_caching=True)
    assert 2 * saturation_rate(trace, A10, 1) < served < estimate < 1.3 * served
    assert saturation_of(trace, setup) == estimate, "what --strict goes by"


def test_a_cache_holds_no_more_than_the_memory() -> None:
    trace = assistants(400, 50)
    without = saturation_rate(trace, A10, 1)
    assert saturation_rate(trace, A10, 1, prefix_caching=True) == pytest.approx(without)
    assert saturation_rate(trace, A10, 10, prefix_caching=True) > 20 * without


# The search for the knee, on curves whose knee is known


@pytest.mark.parametrize("begin", [2.0, 7.0, 8.0, 12.0])
def test_it_is_found_from_below_and_from_above(begin: float) -> None:
    """P99 grows by a factor of e per 0.1 requests/s and is 30 s at 8."""
    tried = []

    def p99_at(rate: float) -> float:
        tried.append(rate)
        return 30.0 * math.exp(10 * (rate - 8.0))

    found = knee(p99_at, begin)
    assert found.rate == pytest.approx(8.0, rel=1e-3)
    assert [rate for rate, _ in found.points] == sorted(tried)
    assert len(tried) < MAX_POINTS


def test_a_curve_without_a_knee_is_an_error() -> None:
    with pytest.raises(ValueError, match="does not cross 30 s"):
        knee(lambda _: 1.0, 7.0)
    with pytest.raises(ValueError, match="does not cross 30 s"):
        knee(lambda _: 99.0, 7.0)
    with pytest.raises(ValueError, match="positive"):
        knee(lambda rate: rate, 0.0)
