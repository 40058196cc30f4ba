"""The bounds: no request and no block is lost, and small cases are as computed by hand."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from controller.core.load.snapshot import blocks_for
from controller.core.settings import AutoscaleConfig
from controller.sim.bounds import ORACLES, Future, PooledCluster
from controller.sim.outcome import Outcome
from controller.sim.setup import ClusterSetup, Fault
from tests.unit.sim.runs import A10, SMALL, STAY, column, policy, requests
from tests.unit.sim.runs import run as run_cluster
from tests.unit.sim.test_sim_cluster import ROWS

MODES = st.sampled_from(["chunked", "prefill-first"])
BOTH = pytest.mark.parametrize("name", list(ORACLES))


def _run(
    name: str, rows: Sequence[tuple[float, int, int]], num_instances: int = 1, profile=SMALL
) -> tuple[PooledCluster, Outcome]:
    cluster = ORACLES[name](ClusterSetup(profile, policy(), num_instances))
    return cluster, cluster.run(requests(rows))


def _rows(outcome: Outcome) -> list[dict[str, float]]:
    """In order of arrival; of requests that came together the one with the longest prompt first."""
    names = list(outcome.rows.columns)
    rows = [
        dict(zip(names, row, strict=True))
        for row in zip(*outcome.rows.columns.values(), strict=True)
    ]
    return sorted(rows, key=lambda row: (row["arrival_s"], -row["num_prompt_tokens"]))


def _ends_s(outcome: Outcome) -> list[float]:
    return [row["arrival_s"] + row["e2e_latency_s"] for row in _rows(outcome)]


# One decodes and grows while the other's prompt is computed in the same step.
@pytest.mark.long
@example(trace=requests([(0.0, 13, 5), (0.0, 14, 2)]), name="O2", mode="chunked", num=1)
@given(trace=ROWS, name=st.sampled_from(list(ORACLES)), mode=MODES, num=st.integers(1, 3))
def test_every_request_ends_once_and_blocks_balance_all_the_time(trace, name, mode, num) -> None:
    cluster = ORACLES[name](ClusterSetup(SMALL, policy(), num, mode=mode))

    def look() -> None:
        cluster.check()
        # Within almost every step: a decode step takes 35 ms and more.
        cluster.events.after(0.029, look)

    cluster.events.at(0.0, look)
    outcome = cluster.run(trace)
    cluster.check()
    assert cluster.num_free_blocks == cluster.num_total_blocks
    lengths = ("num_prompt_tokens", "num_output_tokens")
    assert sorted(zip(*(column(outcome, each) for each in lengths), strict=True)) == sorted(
        (each.num_prompt_tokens, each.num_output_tokens) for each in trace.requests
    )
    assert all(ttft_s > 0 for ttft_s in column(outcome, "ttft_s"))
    if name == "O2":
        assert sum(column(outcome, "num_evictions")) == 0


@BOTH
@pytest.mark.parametrize("mode", ["chunked", "prefill-first"])
def test_one_engine_with_room_is_as_fast_as_a_real_one(name: str, mode: str) -> None:
    """Step times are the engine model's own. Arrivals are within steps."""
    trace = requests([(0.031 * n, 30 + 97 * n % 300, 1 + 31 * n % 60) for n in range(40)])
    setup = ClusterSetup(A10, policy(STAY), 1, mode=mode)
    bound = _rows(ORACLES[name](setup).run(trace))
    real = _rows(run_cluster(setup, trace)[1])
    assert len(bound) == len(real) == 40
    for one, other in zip(bound, real, strict=True):
        assert one == pytest.approx(other)


@BOTH
def test_memory_that_is_free_in_two_places_is_one_room(name: str) -> None:
    """Two instances of 60 blocks run 30 each: 50 are free together, and the third starts at once.
    Alone neither has room for it."""
    rows = [(0.0, 480, 50), (0.0, 480, 50), (1.0, 640, 5)]
    _, pooled = _run(name, rows, 2)
    prefill_s = SMALL.step_time_s([(640, 0)], 1, 500)
    assert column(pooled, "ttft_s")[0] < 1.0
    ttft_s = max(column(pooled, "ttft_s"))
    assert ttft_s < prefill_s + 2 * SMALL.step_time_s((), 1, 530)
    real = ClusterSetup(SMALL, policy(STAY, "infaas++"), 2)
    _, apart = run_cluster(real, requests(rows))
    assert max(column(apart, "ttft_s")) > 2 * ttft_s


def test_the_last_gives_way_and_comes_back_before_those_behind_it() -> None:
    """Two requests of 25 blocks grow in 60 until the 61st block is wanted: 80 tokens later."""
    rows = [(0.0, 400, 200), (0.001, 400, 200), (0.5, 400, 5)]
    _, outcome = _run("O1", rows)
    first, second, third = _rows(outcome)
    assert [row["num_evictions"] for row in (first, second, third)] == [0, 1, 0]
    assert first["preemption_loss_s"] == third["preemption_loss_s"] == 0.0
    # It starts again when the first is over, some 120 steps later, and computes 480 tokens anew.
    waited_s = sum(SMALL.step_time_s((), 1, 481 + step) for step in range(119))
    again_s = SMALL.step_time_s([(481, 0)], 0, 0)
    assert second["preemption_loss_s"] == pytest.approx(waited_s + again_s, rel=0.02)
    assert 0.5 + third["ttft_s"] > second["preemption_loss_s"]


@pytest.mark.parametrize(("num_outputs", "starts_at_once"), [(60, True), (40, False)])
def test_known_lengths_admit_only_what_fits_to_its_end(num_outputs, starts_at_once) -> None:
    """The first one ends with 32 of 60 blocks after 99 decode steps. The last one may have 28 by
    then, for 448 tokens: so it may begin 48 steps before that. Room is looked for when a request
    ends: the one between them after 39 steps, which is too early, or after 59."""
    rows = [(0.0, 400, 100), (0.0, 16, num_outputs), (0.001, 400, 100)]
    _, outcome = _run("O2", rows)
    assert sum(column(outcome, "num_evictions")) == 0
    first_s, between_s, _ = _ends_s(outcome)
    start_s = between_s if starts_at_once else first_s
    step_s = SMALL.step_time_s([(400, 0)], int(starts_at_once), 460)
    assert 0.001 + _rows(outcome)[2]["ttft_s"] == pytest.approx(start_s + step_s, rel=0.01)
    _, greedy = _run("O1", rows)
    assert _rows(greedy)[2]["ttft_s"] < 1.0
    assert _rows(greedy)[2]["num_evictions"] > 0


@BOTH
def test_the_same_trace_gives_the_same_outcome(name: str) -> None:
    rows = [(n / 7, 1 + n * 37 % 300, 1 + n * 53 % 200) for n in range(100)]
    first, second = (_run(name, rows, 3)[1] for _ in range(2))
    assert first.rows.columns == second.rows.columns
    assert first.sampled == second.sampled


def test_what_a_bound_cannot_run_is_refused_before_the_run() -> None:
    setup = ClusterSetup(A10, policy(), 2)
    for each in (
        replace(setup, prefix_caching=True),
        replace(setup, faults=(Fault(1.0, "kill", "i-0"),)),
        replace(setup, policy=replace(policy(), autoscale=AutoscaleConfig())),
    ):
        with pytest.raises(ValueError, match="neither a prefix cache, nor faults"):
            ORACLES["O1"](each)
    with pytest.raises(ValueError, match="request r-1 has 1000 prompt tokens"):
        _run("O1", [(0.0, 5, 5), (0.0, 1000, 5)], 4)


@given(
    st.lists(st.tuples(st.integers(1, 200), st.integers(0, 100)), max_size=12),
    st.sampled_from([1, 4, 16]),
)
def test_the_peak_of_a_batch_is_the_most_of_any_step(requests, block_size) -> None:
    future = Future()
    for num_computed, last_step in requests:
        future.add(num_computed, last_step)
    expected = max(
        (
            sum(blocks_for(num + step, block_size) for num, last in requests if last >= step)
            for step in range(101)
        ),
        default=0,
    )
    assert future.peak_blocks(block_size) == expected


@BOTH
def test_a_request_that_fills_an_instance_runs_alone(name: str) -> None:
    """Its prompt takes four steps, which must not count as if it grew in them, too."""
    profile = replace(A10, num_total_blocks=851, max_model_len=13617)
    _, outcome = _run(name, [(0.0, 8000, 5617), (0.1, 16, 2)], profile=profile)
    large_s, small_s = _ends_s(outcome)
    assert small_s < large_s if name == "O1" else small_s > large_s
