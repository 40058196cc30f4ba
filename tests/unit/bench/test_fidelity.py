"""How `make bench-fidelity` judges the simulator by live runs."""

from typing import Any

import pytest

from benchmarks.fidelity import rows, slowdown
from benchmarks.same_trace import live_steps
from controller.api.wire.status import ClusterStatus
from tests.unit.cli_support import cluster
from tools.synthetic_cluster import instance


def _figures(step_s: float = 0.04, ttft_s: float = 0.1, p99_s: float = 1.0) -> dict[str, Any]:
    return {
        "step_s": step_s,
        "ttft_s": {"mean": ttft_s, "p99": p99_s},
        "tpot_s": {"mean": 0.05, "p99": 0.09},
    }


def test_a_difference_is_of_the_means_and_relative_to_the_live_runs() -> None:
    live = [_figures(step_s=0.03), _figures(step_s=0.05)]
    found = rows(live, [_figures(step_s=0.0417), _figures(step_s=0.0419)], 0.0)
    assert found[0].difference == pytest.approx(0.045)
    assert found[0].is_met
    assert not rows(live, [_figures(step_s=0.0425)], 0.0)[0].is_met
    beside = {row.aim.title: row for row in rows([_figures()], [_figures()], 0.02)}
    assert beside["TTFT P99"].simulated_s == pytest.approx((1.02,))
    assert beside["TPOT mean"].simulated_s == beside["TPOT mean"].live_s


def test_a_tail_may_be_anywhere_in_the_spread_of_five_runs() -> None:
    for num_runs, is_met in ((4, False), (5, True)):
        live = [_figures(p99_s=p99_s) for p99_s in (1.0, 3.0, 1.0, 1.0, 1.0)[:num_runs]]
        found = {row.aim.title: row for row in rows(live, [_figures(p99_s=2.9)], 0.0)}
        assert found["TTFT P99"].is_met == is_met


def test_the_mean_step_is_that_of_all_instances_during_the_load() -> None:
    def status(*members: tuple[float, int]) -> ClusterStatus:
        figures = enumerate(members)
        return cluster(*(instance(f"i-{n}", busy_s=s, num_steps=num) for n, (s, num) in figures))

    statuses = [status((5.0, 100), (1.0, 10)), status((7.0, 150), (2.0, 60))]
    assert live_steps(statuses, 2.0) == {"busy_s": 6.0, "step_s": pytest.approx(0.06)}


def test_a_busy_machine_slows_steps_by_what_engines_waited() -> None:
    assert slowdown({"emulation": None, "waited_share": 0.2}) == pytest.approx(1.25)
    assert slowdown({"emulation": None, "waited_share": None}) == 1.0
    assert slowdown({"emulation": {"time_ratio": 1.03}, "waited_share": None}) == 1.03
