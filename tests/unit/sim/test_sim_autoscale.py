"""Auto-scaling in the simulated cluster: instances start, drain and are removed, and what they
cost."""

from dataclasses import replace
from itertools import pairwise

import pytest

from controller.core.settings import AutoscaleConfig, ReschedulingConfig
from controller.sim.outcome import Outcome
from controller.sim.setup import ClusterSetup, Fault, SimPolicy
from tests.unit.sim.runs import A10, MOVE, STAY, column, policy, requests, run

AT_ONCE = AutoscaleConfig(
    max_instances=4,
    up_persistence_s=0,
    down_persistence_s=0,
    first_check_after_s=1.0,
    check_interval_s=1.0,
    cold_start_s=2.5,
)
"""Of A10 an idle instance has 13,472 steps, so that all but one go. 20 requests of 500 tokens keep
it below 160."""


def scaling(
    config: AutoscaleConfig = AT_ONCE, rescheduling: ReschedulingConfig = MOVE
) -> SimPolicy:
    return replace(policy(rescheduling), autoscale=config)


def instances_over_time(outcome: Outcome) -> list[tuple[float, int]]:
    """(when, how many) of each change that was sampled."""
    seen = list(zip(outcome.sampled.times_s, outcome.sampled.num_instances, strict=True))
    return [seen[0], *(after for before, after in pairwise(seen) if before[1] != after[1])]


def test_one_more_costs_from_its_launch_and_serves_after_its_start() -> None:
    """20 requests of 500 tokens take 640 of 851 blocks: 16 * 203 / 20 = 162 steps are left once
    they run, and after 2 blocks more each fewer than 160. The 21st goes to the one that starts."""
    rows = [(0.0, 500, 400)] * 20 + [(8.0, 500, 400)]
    cluster, outcome = run(ClusterSetup(A10, scaling(rescheduling=STAY), 1), requests(rows))
    changes = instances_over_time(outcome)
    (begun_s, _), (launched_s, num) = changes[:2]
    assert (begun_s, changes[0][1], num) == (0.0, 1, 2)
    served_s = launched_s + 2.5
    assert 1.0 <= launched_s < 5.5, "before the last request comes"
    late = cluster.outcome.rows.columns["arrival_s"].index(8.0)
    assert served_s < 8.0
    alone_s = A10.step_time_s([(500, 0)], 0, 0)
    assert column(outcome, "ttft_s")[late] == pytest.approx(alone_s)


@pytest.mark.parametrize(("bound_s", "num"), [(1.0, 2), (0.0, 1)])
def test_prompts_that_take_long_get_one_more_although_memory_is_free(
    bound_s: float, num: int
) -> None:
    """Ten prompts need 640 of 851 blocks, and 2.1 s; the first check is 0.5 s after they came."""
    assert 2.0 < 10 * A10.step_time_s([(1000, 0)], 0, 0) < 2.2
    config = replace(AT_ONCE, up_above_backlog_s=bound_s)
    setup = ClusterSetup(A10, scaling(config, STAY), 1)
    _, outcome = run(setup, requests([(0.5, 1000, 20)] * 10))
    assert max(seen for _, seen in instances_over_time(outcome)) == num


@pytest.mark.parametrize("moves", [True, False])
def test_scale_in_moves_requests_away_or_waits_for_their_ends(moves: bool) -> None:
    """Two instances with one request each: one could go at once, the other keeps both."""
    rows = [(0.5, 100, 300), (0.6, 100, 300), (60.0, 10, 2)]
    scaled = scaling(rescheduling=MOVE if moves else STAY)
    _, outcome = run(ClusterSetup(A10, scaled, 2), requests(rows))
    (gone_s,) = (time_s for time_s, num in instances_over_time(outcome) if num == 1)
    ended_s = [0.5 + column(outcome, "e2e_latency_s")[n] for n in range(2)]
    assert outcome.num_moved == moves
    assert sum(column(outcome, "num_evictions")) == 0
    if moves:
        assert gone_s <= 2.0
    else:
        assert min(ended_s) <= gone_s <= max(ended_s) + 1.0


def test_one_that_drains_is_kept_when_the_load_comes_back() -> None:
    """Without moves i-0 drains for as long as its answer takes. 24 long prompts call for one more
    meanwhile: it stays, and gets the next ones."""
    first, many, next_ones = (0.5, 100, 300), (3.0, 500, 300), (6.5, 20, 5)
    rows = [first, (0.6, 100, 300), *[many] * 24, *[next_ones] * 20]
    _, outcome = run(ClusterSetup(A10, scaling(rescheduling=STAY), 2), requests(rows))
    before_s = [num for time_s, num in instances_over_time(outcome) if time_s < 6.0]
    assert before_s == [2], "none went, and none was launched"
    served = zip(column(outcome, "arrival_s"), column(outcome, "ttft_s"), strict=True)
    assert max(ttft_s for arrival_s, ttft_s in served if arrival_s == 6.5) < 1.0


def test_a_killed_one_is_replaced_below_the_minimum() -> None:
    config = replace(AT_ONCE, min_instances=2)
    killed = (Fault(1.5, "kill", "i-0"),)
    setup = ClusterSetup(A10, scaling(config), 2, sample_s=0.25, faults=killed)
    cluster, outcome = run(setup, requests([(0.5, 50, 200), (0.5, 50, 200), (9.0, 50, 10)]))
    assert outcome.num_failed == 1
    assert instances_over_time(outcome) == [(0.0, 2), (1.5, 1), (2.0, 2)]
    assert [each.instance_id for each in cluster.instances.values() if each.alive] == ["i-1", "i-2"]
