"""The sums behind the report, against figures worked out by hand and by the statistics module."""

import math
import statistics
from random import Random

import numpy as np
import pytest

from controller.api.wire.status import (
    AutoscaleStatus,
    ClusterState,
    ClusterStatus,
    EmulationStatus,
    InstanceState,
    InstanceStatus,
)
from llumctl.lab import bench_report
from llumctl.lab.bench_client import Answer, TokenFaults, Verdict
from llumctl.lab.bench_load import Request
from llumctl.lab.bench_report import num_evictions
from llumctl.lab.bench_run import Observed, Result, Results


def result(
    index: int,
    token_times_s: list[float],
    *,
    due_s: float = 0.0,
    level: str = "normal",
    kind: str = "",
    num_output_tokens: int | None = None,
    faults: TokenFaults | None = None,
) -> Result:
    answer = Answer(status=200, ended_s=token_times_s[-1] + 0.5 if token_times_s else 0.0)
    answer.token_times_s.extend(token_times_s)
    priority = -1 if level == "high" else 0
    num = len(token_times_s) if num_output_tokens is None else num_output_tokens
    request = Request(index, due_s, 10, num, level, priority)
    return Result(
        request, due_s, 0.001 * index, answer, Verdict(kind, "", faults or TokenFaults()), num
    )


def instance(
    id_: str, evictions: int | None, incarnation: int = 1, **more: object
) -> InstanceStatus:
    return InstanceStatus.model_validate(
        {
            "id": id_,
            "state": InstanceState.ACTIVE,
            "incarnation": incarnation,
            "num_evictions": evictions,
            **more,
        }
    )


def status(*instances: InstanceStatus) -> ClusterStatus:
    return ClusterStatus(
        cluster="c",
        state=ClusterState.READY,
        model="m",
        policy="llumnix",
        endpoint_url="http://h",
        uptime_s=1,
        cluster_uptime_s=1,
        num_held_reqs=0,
        autoscale=AutoscaleStatus(mode="off", min_instances=1, max_instances=16, num_instances=1),
        instances=instances,
        frontends=(),
    )


def test_latencies_of_one_request() -> None:
    one = result(0, [3.0, 3.5, 5.0], due_s=1.0)
    assert bench_report.ttft_s(one) == 2.0
    assert bench_report.tpot_s(one) == 1.0
    assert list(bench_report.itl_s([one])) == [0.5, 1.5]
    assert bench_report.e2e_latency_s(one) == 4.5


def test_a_single_token_has_no_tpot() -> None:
    assert bench_report.tpot_s(result(0, [3.0])) is None
    found = bench_report.latencies([result(0, [3.0])])
    assert found.tpot_s is None
    assert found.itl_s is None
    assert found.ttft_s is not None


def test_tpot_counts_tokens_not_events() -> None:
    assert bench_report.tpot_s(result(0, [1.0, 3.0], num_output_tokens=5)) == 0.5


def test_spread_by_hand() -> None:
    found = bench_report.spread(np.array([4.0, 1.0, 3.0, 2.0, 5.0]))
    assert found is not None
    assert (found.count, found.mean, found.p50, found.max) == (5, 3.0, 3.0, 5.0)
    assert found.p90 == pytest.approx(4.6)
    assert found.p99 == pytest.approx(4.96)
    assert bench_report.spread(np.array([])) is None


def test_spread_as_the_statistics_module_has_it() -> None:
    rng = Random(2)
    values = [rng.lognormvariate(0, 1) for _ in range(5001)]
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    found = bench_report.spread(np.array(values))
    assert found is not None
    assert found.mean == pytest.approx(statistics.fmean(values))
    assert [found.p50, found.p90, found.p99] == pytest.approx([cuts[49], cuts[89], cuts[98]])


def test_the_whole() -> None:
    results = Results(started_s=0.0, ended_s=20.0, num_sent=5, client_cpu_s=0.4)
    results.ended = [
        result(0, [1.0, 2.0], due_s=0.5),
        result(1, [4.0, 4.5, 5.0], due_s=3.0, level="high"),
        result(2, [8.0, 9.0], due_s=4.0),
        result(3, [6.0], due_s=5.0, kind="wrong-count", faults=TokenFaults(2, 1, 0)),
    ]
    found = bench_report.figures_of(results, Observed(), 6, warmup_s=2.0)
    assert (found.num_requests, found.num_sent, found.num_unfinished) == (6, 5, 1)
    assert (found.num_right, found.num_failed, found.failures) == (3, 1, {"wrong-count": 1})
    assert (found.num_prompt_tokens, found.num_output_tokens) == (30, 8)
    assert (found.num_lost_tokens, found.num_doubled_tokens, found.num_wrong_tokens) == (2, 1, 0)
    assert found.requests_per_s == pytest.approx(3 / 20)
    assert found.output_tokens_per_s == pytest.approx(8 / 20)
    assert found.client_cpu_ms_per_token == pytest.approx(50)
    assert found.send_lag_max_s == pytest.approx(0.003)
    assert list(found.latencies) == ["all", "high", "normal"]
    everything, high = found.latencies["all"].ttft_s, found.latencies["high"].ttft_s
    assert everything is not None
    assert high is not None
    assert (everything.count, everything.mean) == (2, 2.5), "the warm-up and the failed one are out"
    assert (high.count, high.mean) == (1, 1.0)


def test_one_level_is_not_told_twice() -> None:
    results = Results(ended=[result(0, [1.0])], num_sent=1, ended_s=2.0)
    assert list(bench_report.figures_of(results, Observed(), 1, 0.0).latencies) == ["all"]


def test_nothing_ended() -> None:
    found = bench_report.figures_of(Results(num_sent=3, ended_s=1.0), Observed(), 10, 0.0)
    assert found.latencies["all"].ttft_s is None
    assert (found.num_unfinished, found.output_tokens_per_s) == (3, 0)
    assert math.isfinite(found.client_cpu_ms_per_token)


def test_evictions_are_those_in_between() -> None:
    before = [instance("i-0", 5), instance("i-1", 7), instance("i-2", None)]
    after = [instance("i-0", 9), instance("i-1", 2, incarnation=2), instance("i-3", 1)]
    assert num_evictions(before, after) == 4 + 2 + 1
    assert num_evictions([], [instance("i-0", None)]) is None


def test_what_the_cluster_says() -> None:
    busy = instance("i-0", 1, step_time_s=0.02, num_running_reqs=3)
    busier = instance("i-0", 4, step_time_s=0.04, num_running_reqs=3)
    idle = instance("i-0", 4, step_time_s=0.9, num_running_reqs=0)
    observed = Observed([status(idle), status(busy), status(busier), status(idle)])
    found = bench_report.figures_of(Results(ended_s=1.0), observed, 1, 0.0)
    assert found.step_time_s == pytest.approx((0.03, 0.04))
    assert found.num_evictions == 0
    alone = bench_report.figures_of(Results(ended_s=1.0), Observed([status(busy)]), 1, 0.0)
    assert (alone.step_time_s, alone.num_evictions) == (None, None)


def emulated(instance_id: str, wall_s: float, late: int, **what: object) -> InstanceStatus:
    told = EmulationStatus(profile_time_s=wall_s / 1.5, wall_time_s=wall_s, num_late_steps=late)
    return instance(instance_id, 0, emulation=told, num_steps=10 * late, **what)


def test_how_well_emulated_engines_kept_their_time() -> None:
    before = [emulated("i-0", 3.0, 1), emulated("i-1", 3.0, 1)]
    restarted = emulated("i-1", 1.5, 9, incarnation=2)
    found = bench_report.figures_of(
        Results(ended_s=1.0),
        Observed([status(*before), status(emulated("i-0", 6.0, 3), restarted)]),
        1,
        0.0,
    )
    assert found.emulation is not None
    assert found.emulation.time_ratio == pytest.approx(1.5)
    assert found.emulation.worst_time_ratio == pytest.approx(1.5)
    assert found.emulation.late_steps_ratio == pytest.approx(0.1)
    real = bench_report.figures_of(Results(ended_s=1.0), Observed([status(), status()]), 1, 0.0)
    assert real.emulation is None


def told(
    instance_id: str, profile_s: float, wall_s: float, num_steps: int, late: int, **what: int
) -> InstanceStatus:
    found = EmulationStatus(profile_time_s=profile_s, wall_time_s=wall_s, num_late_steps=late)
    return instance(instance_id, 0, emulation=found, num_steps=num_steps, **what)


def kept(*statuses: ClusterStatus) -> bench_report.Emulation | None:
    return bench_report.figures_of(Results(ended_s=1.0), Observed(list(statuses)), 1, 0.0).emulation


def test_instances_that_come_and_go_add_what_they_did() -> None:
    loading = instance("i-1", None)
    found = kept(
        status(told("i-0", 100.0, 100.0, 1000, 10)),
        status(told("i-0", 110.0, 110.0, 1100, 10), loading),
        status(told("i-0", 120.0, 121.0, 1200, 20), told("i-1", 10.0, 10.5, 100, 30)),
        status(told("i-1", 20.0, 22.0, 200, 40)),
        status(told("i-1", 30.0, 33.0, 300, 60), told("i-2", 0.0, 0.0, 0, 0)),
    )
    assert found is not None
    assert found.time_ratio == pytest.approx((21 + 33) / (20 + 30))
    assert found.worst_time_ratio == pytest.approx(33 / 30)
    assert found.late_steps_ratio == pytest.approx((10 + 60) / (200 + 300))


def test_a_process_that_began_anew_adds_all_and_one_that_was_fenced_counts_on() -> None:
    anew = kept(
        status(told("i-0", 100.0, 100.0, 1000, 0, pid=7)),
        status(told("i-0", 10.0, 12.0, 100, 50, pid=8, incarnation=2)),
    )
    assert anew is not None
    assert anew.time_ratio == pytest.approx(1.2)
    assert anew.late_steps_ratio == pytest.approx(0.5)
    fenced = kept(
        status(told("i-0", 100.0, 100.0, 1000, 0, pid=7)),
        status(told("i-0", 110.0, 110.0, 1100, 50, pid=7, incarnation=2)),
    )
    assert fenced is not None
    assert fenced.time_ratio == pytest.approx(1.0)
    assert fenced.late_steps_ratio == pytest.approx(0.5)


def test_an_instance_of_a_few_steps_is_not_the_worst() -> None:
    brief = told("i-1", 0.1, 0.2, 2, 1)
    found = kept(status(), status(told("i-0", 50.0, 50.5, 500, 0), brief))
    assert found is not None
    assert found.worst_time_ratio == pytest.approx(1.01)
    alone = kept(status(), status(brief))
    assert alone is not None
    assert alone.worst_time_ratio == pytest.approx(2.0)


def test_engines_that_made_no_step_kept_no_time() -> None:
    assert kept(status(), status(told("i-0", 0.0, 0.0, 0, 0))) is None


def test_a_client_that_spoils_the_figures_is_told() -> None:
    results = Results(ended_s=1.0, client_cpu_s=0.95, num_sent=1, ended=[result(50, [1.0])])
    observed = Observed(num_unanswered=2)
    lines = bench_report.warnings(bench_report.figures_of(results, observed, 1, 0.0), observed)
    assert len(lines) == 3
    assert "50 ms" in lines[0]
    assert "0.95 of one core" in lines[1]
    quiet = Results(ended_s=1.0, client_cpu_s=0.1, num_sent=1, ended=[result(0, [1.0])])
    assert (
        bench_report.warnings(bench_report.figures_of(quiet, Observed(), 1, 0.0), Observed()) == []
    )
