"""The simulated cluster: each request ends once, at the times that can be computed by hand."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.core.settings import AutoscaleConfig, HoldingConfig
from controller.sim.cluster import SimCluster
from controller.sim.request_run import Gaps
from controller.sim.setup import ClusterSetup, Fault
from tests.unit.sim.runs import A10, MOVE, SMALL, STAY, column, policy, requests, run

ROWS = st.lists(
    st.tuples(st.integers(0, 300), st.integers(1, 500), st.integers(1, 300)),
    min_size=1,
    max_size=60,
).map(lambda rows: requests((at / 100, p, o) for at, p, o in sorted(rows)))


def check(cluster: SimCluster) -> None:
    """Nothing is left of the requests, and every block is free."""
    for instance in cluster.instances.values():
        if instance.alive:
            instance.engine.check()
            status = instance.status()
            assert not instance.runs
            assert status.num_free_blocks == status.num_total_blocks
            assert status.num_running == status.num_queued == 0


CONFIGS = st.builds(
    AutoscaleConfig,
    up_below_steps=st.sampled_from([20.0, 60.0, 200.0]),
    down_above_steps=st.sampled_from([200.0, 300.0, 500.0]),
    min_instances=st.integers(1, 2),
    max_instances=st.integers(3, 5),
    max_added=st.integers(1, 4),
    check_interval_s=st.sampled_from([0.2, 0.5]),
    first_check_after_s=st.just(0.2),
    up_persistence_s=st.sampled_from([0.0, 0.5]),
    down_persistence_s=st.sampled_from([0.0, 0.5]),
    cold_start_s=st.sampled_from([0.0, 0.3, 1.0]),
)
LATE = st.builds(
    HoldingConfig,
    room_to_grow_tokens=st.sampled_from([32, 320]),
    overtaking=st.booleans(),
    making_room=st.booleans(),
)


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(
    trace=ROWS,
    mode=st.sampled_from(["chunked", "prefill-first"]),
    rescheduling=st.sampled_from([STAY, MOVE]),
    holding=st.none() | LATE,
    config=st.none() | CONFIGS,
    faults=st.sampled_from([(), (Fault(1.0, "kill", "i-0"), Fault(1.2, "drain", "i-1"))]),
)
def test_every_request_ends_once_and_every_block_is_given_back(
    trace, mode, rescheduling, holding, config, faults
) -> None:
    """The cluster is looked at all the time."""
    changed = replace(policy(rescheduling), autoscale=config, holding=holding)
    cluster = SimCluster(ClusterSetup(SMALL, changed, 3, mode=mode, faults=faults))

    def look() -> None:
        for instance in list(cluster.instances.values()):  # a check may let one go
            instance.between_steps(instance.engine.check)
        num_alive = sum(each.alive for each in cluster.instances.values())
        if config is not None:
            assert num_alive <= config.max_instances
            assert faults or num_alive >= config.min_instances
        cluster.events.after(0.05, look)

    cluster.events.at(0.0, look)
    outcome = cluster.run(trace)
    assert len(outcome.rows) + outcome.num_failed == len(trace.requests)
    assert faults or outcome.num_failed == 0
    cluster.events.run(lambda: cluster.events.now_s > outcome.duration_s + 5.0)
    check(cluster)
    assert faults or sum(column(outcome, "num_moves")) == outcome.num_moved
    names = ("arrival_s", "ttft_s", "e2e_latency_s", "longest_pause_s")
    rows = zip(*(column(outcome, name) for name in names), strict=True)
    for arrival_s, ttft_s, e2e_s, pause_s in rows:
        assert 0 < ttft_s <= e2e_s
        assert pause_s <= e2e_s - ttft_s + 1e-9
        assert arrival_s + e2e_s <= outcome.duration_s + 1e-9


def test_one_request_takes_its_prefill_and_its_decode_steps() -> None:
    _, outcome = run(ClusterSetup(A10, policy(), 1), requests([(1.0, 100, 3)]))
    ttft_s = A10.step_time_s([(100, 0)], 0, 0)
    first_s, second_s = A10.step_time_s((), 1, 101), A10.step_time_s((), 1, 102)
    assert column(outcome, "ttft_s") == [pytest.approx(ttft_s)]
    assert column(outcome, "e2e_latency_s") == [pytest.approx(ttft_s + first_s + second_s)]
    assert column(outcome, "tpot_s") == [pytest.approx((first_s + second_s) / 2)]
    assert column(outcome, "longest_pause_s") == [pytest.approx(second_s)]
    assert outcome.num_steps == 3


def test_a_request_that_comes_within_a_step_waits_for_its_end() -> None:
    _, outcome = run(ClusterSetup(A10, policy(), 1), requests([(0.0, 2000, 100), (0.1, 16, 1)]))
    long_s = A10.step_time_s([(2000, 0)], 0, 0)
    mixed_s = A10.step_time_s([(16, 0)], 1, 2001)
    assert long_s > 0.1
    assert column(outcome, "ttft_s")[0] == pytest.approx(long_s + mixed_s - 0.1)


def test_an_eviction_is_a_loss_and_a_pause_until_the_next_token() -> None:
    """Both requests grow until no block is left: the second one goes, and waits for the first."""
    setup = ClusterSetup(SMALL, policy(STAY), 1)
    _, outcome = run(setup, requests([(0.0, 400, 200), (0.0, 400, 200)]))
    assert column(outcome, "num_evictions") == [0, 1]
    loss_s, pause_s = column(outcome, "preemption_loss_s")[1], column(outcome, "longest_pause_s")[1]
    assert loss_s > 1.0
    assert pause_s == pytest.approx(loss_s)


def test_a_killed_instance_takes_its_requests_with_it() -> None:
    """The second one comes within a step of the instance, which ends before that step does."""
    setup = ClusterSetup(A10, policy(), 1, faults=(Fault(0.02, "kill", "i-0"),))
    cluster, outcome = run(setup, requests([(0.0, 300, 10), (0.01, 50, 10)]))
    assert (outcome.num_failed, len(outcome.rows)) == (2, 0)
    assert not cluster.instances["i-0"].runs
    check(cluster)


@pytest.mark.parametrize("killed_s", [0.998, 0.999, 1.0])
def test_a_request_whose_source_dies_and_whose_destination_is_removed_is_lost(
    killed_s: float,
) -> None:
    """The destination is empty, and auto-scaling removes it before it is asked for the request."""
    autoscale = AutoscaleConfig(
        min_instances=1,
        max_instances=3,
        up_below_steps=60.0,
        down_above_steps=200.0,
        check_interval_s=0.2,
        first_check_after_s=0.2,
        up_persistence_s=0.5,
        down_persistence_s=0.5,
        cold_start_s=0.3,
    )
    holding = HoldingConfig(making_room=False, overtaking=False)
    faults = (Fault(killed_s, "kill", "i-0"), Fault(1.2, "drain", "i-1"))
    changed = replace(policy(), holding=holding, autoscale=autoscale)
    setup = ClusterSetup(SMALL, changed, 3, mode="prefill-first", faults=faults)
    cluster = SimCluster(setup)
    cluster.events.at(100.0, lambda: pytest.fail("the request is nowhere, and nobody misses it"))
    outcome = cluster.run(requests([(0.75, 255, 59), (1.13, 75, 275)]))
    assert (outcome.num_failed, len(outcome.rows)) == (1, 1)


def test_slow_steps_take_longer() -> None:
    fault = Fault(0.0, "slow-steps", "i-0", 3.0)
    plain, slow = (
        run(ClusterSetup(A10, policy(), 1, faults=f), requests([(1.0, 100, 30)]))[1]
        for f in ((), (fault,))
    )
    assert column(slow, "tpot_s")[0] == pytest.approx(3 * column(plain, "tpot_s")[0])


def test_a_request_larger_than_an_instance_is_refused_before_the_run() -> None:
    small = replace(SMALL, max_model_len=10_000)
    with pytest.raises(ValueError, match="KV cache holds"):
        run(ClusterSetup(small, policy(), 1), requests([(0.0, 2000, 3)]))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=20), st.integers(-1, 20))
def test_the_longest_gap_since_a_moment(sizes, since) -> None:
    gaps = Gaps()
    for end, size in enumerate(sizes):
        gaps.add(end, size)
    assert gaps.longest_since(since) == max(sizes[since + 1 :], default=0)
