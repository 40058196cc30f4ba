"""How `make bench-fidelity` judges the simulator by live runs."""

from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from benchmarks.fidelity import CoreWaits, emulated, rows, slowdown, step_on_a_core_s
from benchmarks.same_trace import as_sent, delayed, live_steps, simulated
from controller.api.wire.status import (
    AutoscaleStatus,
    ClusterState,
    ClusterStatus,
    InstanceState,
    InstanceStatus,
)
from controller.sim.workload.trace import Trace, TraceRequest


def _figures(step_s: float = 0.04, ttft_s: float = 0.1, p99_s: float = 1.0) -> dict[str, Any]:
    return {
        "step_s": step_s,
        "ttft_s": {"mean": ttft_s, "p99": p99_s},
        "tpot_s": {"mean": 0.05, "p99": 0.09},
    }


def test_a_difference_is_relative_to_the_live_runs() -> None:
    found = rows([_figures(step_s=0.03), _figures(step_s=0.05)], [_figures(step_s=0.0418)], 0.0)
    assert found[0].difference == pytest.approx(0.045)
    assert found[0].is_met
    assert not rows([_figures(step_s=0.04)], [_figures(step_s=0.0425)], 0.0)[0].is_met


def test_what_the_client_waits_for_beside_the_engine_is_added_to_ttft_alone() -> None:
    found = {row.aim.title: row for row in rows([_figures()], [_figures()], 0.02)}
    assert found["TTFT mean"].simulated_s == pytest.approx((0.12,))
    assert found["TTFT P99"].simulated_s == pytest.approx((1.02,))
    assert found["TPOT mean"].simulated_s == found["TPOT mean"].live_s


@pytest.mark.parametrize(("num_runs", "is_met"), [(4, False), (5, True)])
def test_a_tail_may_be_anywhere_in_the_spread_of_five_runs(num_runs: int, is_met: bool) -> None:
    live = [_figures(p99_s=p99_s) for p99_s in (1.0, 3.0, 1.0, 1.0, 1.0)[:num_runs]]
    found = {row.aim.title: row for row in rows(live, [_figures(p99_s=2.9)], 0.0)}
    assert found["TTFT P99"].is_met == is_met


def test_of_several_simulated_runs_the_mean_counts() -> None:
    found = rows([_figures()], [_figures(ttft_s=0.05), _figures(ttft_s=0.15)], 0.0)
    assert found[1].difference == pytest.approx(0.0)


def test_a_mean_may_not() -> None:
    live = [_figures(ttft_s=ttft_s) for ttft_s in (0.1, 0.3, 0.1, 0.1, 0.1)]
    found = {row.aim.title: row for row in rows(live, [_figures(ttft_s=0.29)], 0.0)}
    assert not found["TTFT mean"].is_met


def test_a_figure_that_a_run_lacks_has_no_row() -> None:
    found = rows([_figures() | {"step_s": None}], [_figures()], 0.0)
    assert "step" not in {row.aim.title for row in found}


def _status(*members: tuple[int, float, int]) -> ClusterStatus:
    """Of (incarnation, busy seconds, steps)."""
    instances = tuple(
        InstanceStatus(
            id=f"i-{number}",
            state=InstanceState.ACTIVE,
            incarnation=incarnation,
            busy_s=busy_s,
            num_steps=num_steps,
        )
        for number, (incarnation, busy_s, num_steps) in enumerate(members)
    )
    return ClusterStatus(
        cluster="c",
        state=ClusterState.READY,
        model="m",
        policy="llumnix",
        endpoint_url="",
        uptime_s=1.0,
        cluster_uptime_s=1.0,
        num_held_reqs=0,
        autoscale=AutoscaleStatus(mode="off", min_instances=1, max_instances=16, num_instances=1),
        instances=instances,
        frontends=(),
    )


def test_the_mean_step_is_that_of_all_instances_during_the_load() -> None:
    statuses = [_status((1, 5.0, 100), (1, 1.0, 10)), _status((1, 7.0, 150), (1, 2.0, 60))]
    assert live_steps(statuses, 2.0) == {"busy_s": 6.0, "step_s": pytest.approx(0.06)}


def test_an_instance_that_restarted_leaves_no_mean_step() -> None:
    statuses = [_status((1, 5.0, 100)), _status((2, 1.0, 50))]
    assert live_steps(statuses, 1.0)["step_s"] is None


def _write_threads(proc: Path, **threads: str) -> None:
    for name, line in threads.items():
        folder = proc / "7" / "task" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "schedstat").write_text(f"{line}\n", "utf-8")


def test_waits_for_a_core_are_those_of_the_thread_that_ran_most(tmp_path: Path) -> None:
    _write_threads(tmp_path, loop="5000000000 9000000000 12", engine="1000000000 0 3")
    waits = CoreWaits([7], tmp_path)
    _write_threads(tmp_path, loop="6000000000 9900000000 15", engine="4000000000 500000000 9")
    assert waits.waited_s() == 0.5


def test_nothing_is_known_of_a_process_that_has_gone(tmp_path: Path) -> None:
    assert CoreWaits([7], tmp_path).waited_s() is None


def test_a_step_without_the_waits() -> None:
    assert step_on_a_core_s({"step_s": 0.01, "waited_share": 0.2}) == pytest.approx(0.008)
    assert step_on_a_core_s({"step_s": 0.01, "waited_share": None}) is None


def test_a_busy_machine_slows_steps_by_what_engines_waited() -> None:
    assert slowdown({"emulation": None, "waited_share": 0.2}) == pytest.approx(1.25)
    assert slowdown({"emulation": None, "waited_share": None}) == 1.0
    assert slowdown({"emulation": {"time_ratio": 1.03}, "waited_share": None}) == 1.03


def test_the_simulated_engines_are_as_slow() -> None:
    part = emulated(1.0)
    trace = Trace("test", [TraceRequest(0.0, 100, 5)])
    quiet, busy = (simulated(part.busy_setup(factor), trace) for factor in (1.0, 1.5))
    assert busy["step_s"] == pytest.approx(1.5 * quiet["step_s"])
    assert quiet == simulated(part.setup(), trace)


def test_what_a_late_client_sent_is_simulated() -> None:
    trace = Trace("test", [TraceRequest(0.0, 100, 5), TraceRequest(1.0, 200, 5)])
    assert as_sent(trace, [1.5, 0.0]).requests == [
        TraceRequest(1.0, 200, 5),
        TraceRequest(1.5, 100, 5),
    ]


def test_delayed_requests_are_the_same_ones_later() -> None:
    trace = Trace("test", [TraceRequest(0.01 * n, 100 + n, 5) for n in range(500)])
    late = delayed(trace, 0.02, 1)
    assert late == delayed(trace, 0.02, 1)
    assert late != delayed(trace, 0.02, 2)
    by_length = sorted(late.requests, key=lambda request: request.num_prompt_tokens)
    delays_s = [
        after.arrival_s - before.arrival_s
        for after, before in zip(by_length, trace.requests, strict=True)
    ]
    assert min(delays_s) >= 0
    assert fmean(delays_s) == pytest.approx(0.02, rel=0.2)


def test_probes_are_over_before_the_next_begins() -> None:
    """Else one would wait for another, which is not what they are for."""
    part = emulated(2.0)
    requests = part.probe().requests
    longest_s = max(
        part.profile.step_time_s([(each.num_prompt_tokens, 0)], 0, 0)
        + part.profile.step_time_s([], 1, each.num_prompt_tokens)
        for each in requests
    )
    gaps_s = [b.arrival_s - a.arrival_s for a, b in pairwise(requests)]
    assert min(gaps_s) > 2 * longest_s
