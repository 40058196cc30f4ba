"""The simulated cluster: each request ends once, at the times that can be computed by hand."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


@pytest.mark.long
@settings(max_examples=60)
@given(trace=ROWS, mode=st.sampled_from(["chunked", "prefill-first"]), moves=st.booleans())
def test_every_request_ends_once_and_every_block_is_given_back(trace, mode, moves) -> None:
    setup = ClusterSetup(SMALL, policy(MOVE if moves else STAY), 3, mode=mode)
    cluster = SimCluster(setup)

    def look() -> None:
        for instance in cluster.instances.values():
            instance.between_steps(instance.engine.check)
        cluster.events.after(0.05, look)

    cluster.events.at(0.0, look)
    outcome = cluster.run(trace)
    assert len(outcome.rows) == len(trace.requests)
    assert outcome.num_failed == 0
    cluster.events.run(lambda: cluster.events.now_s > outcome.duration_s + 5.0)
    check(cluster)
    assert sum(column(outcome, "num_moves")) == outcome.num_moved
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


def test_a_move_spares_the_eviction() -> None:
    rows = [(0.0, 400, 200), (0.0, 100, 5), (0.01, 400, 200)]
    staying, moving = (policy(each, "round-robin") for each in (STAY, MOVE))
    _, without = run(ClusterSetup(SMALL, staying, 2), requests(rows))
    _, outcome = run(ClusterSetup(SMALL, moving, 2), requests(rows))
    assert sum(column(without, "num_evictions")) == 1
    assert sum(column(outcome, "num_evictions")) == 0
    assert outcome.num_moved == 1
    (downtime_s,) = outcome.downtimes_s
    assert 0.0 < downtime_s < 0.1


@pytest.mark.parametrize(
    ("killed_s", "rows", "num_failed"),
    [
        (1.0, [(0.0, 50, 100), (0.0, 50, 100), (2.0, 50, 100)], 1),
        # The second comes within a step of the instance, which ends before that step does.
        (0.02, [(0.0, 300, 10), (0.01, 50, 10)], 2),
    ],
    ids=["running", "on its way"],
)
def test_a_killed_instance_takes_its_requests_with_it(killed_s, rows, num_failed) -> None:
    faults = (Fault(killed_s, "kill", "i-0"),)
    cluster, outcome = run(
        ClusterSetup(A10, policy(), 3 - num_failed, faults=faults), requests(rows)
    )
    assert outcome.num_failed == num_failed
    assert len(outcome.rows) == len(rows) - num_failed
    assert not cluster.instances["i-0"].runs
    check(cluster)


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
