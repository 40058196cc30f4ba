"""The sums behind the report, against figures worked out by hand and by the statistics module."""

from collections.abc import Sequence

import numpy as np
import pytest

from controller.api.wire.status import EmulationStatus, InstanceStatus
from llumctl.lab import bench_report
from llumctl.lab.bench_client import Answer, TokenFaults, Verdict
from llumctl.lab.bench_load import Request
from llumctl.lab.bench_report import num_evictions
from llumctl.lab.bench_run import Observed, Result, Results
from tests.unit.cli_support import cluster
from tools.synthetic_cluster import instance


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


def test_latencies_of_one_request() -> None:
    one = result(0, [3.0, 3.5, 5.0], due_s=1.0)
    assert (bench_report.ttft_s(one), bench_report.e2e_latency_s(one)) == (2.0, 4.5)
    assert list(bench_report.itl_s([one])) == [0.5, 1.5]
    assert bench_report.tpot_s(one) == 1.0
    together = result(0, [1.0, 3.0], num_output_tokens=5)
    assert bench_report.tpot_s(together) == 0.5, "tokens count, not events"


def test_spread_by_hand() -> None:
    found = bench_report.spread(np.array([4.0, 1.0, 3.0, 2.0, 5.0]))
    assert found is not None
    assert (found.count, found.mean, found.p50, found.max) == (5, 3.0, 3.0, 5.0)
    assert (found.p90, found.p99) == pytest.approx((4.6, 4.96))
    assert bench_report.spread(np.array([])) is None


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
    everything = found.latencies["all"].ttft_s
    assert everything is not None
    assert (everything.count, everything.mean) == (2, 2.5), "the warm-up and the failed one are out"


def test_evictions_are_those_in_between() -> None:
    before = [instance("i-0", num_evictions=5), instance("i-1", num_evictions=7)]
    after = [
        instance("i-0", num_evictions=9),
        instance("i-1", num_evictions=2, incarnation=2),
        instance("i-3", num_evictions=1),
    ]
    assert num_evictions(before, after) == 4 + 2 + 1
    assert num_evictions([], [instance("i-0", num_evictions=None)]) is None


def test_what_the_cluster_says() -> None:
    busy = instance(num_evictions=1, step_time_s=0.02, num_running_reqs=3)
    busier = instance(num_evictions=4, step_time_s=0.04, num_running_reqs=3)
    idle = instance(num_evictions=4, step_time_s=0.9, num_running_reqs=0)

    def seen(*items: InstanceStatus) -> bench_report.Figures:
        observed = Observed([cluster(item) for item in items])
        return bench_report.figures_of(Results(ended_s=1.0), observed, 1, 0.0)

    found = seen(idle, busy, busier, idle)
    assert found.step_time_s == pytest.approx((0.03, 0.04))
    assert (found.num_evictions, found.emulation) == (0, None)
    alone = seen(busy)
    assert (alone.step_time_s, alone.num_evictions) == (None, None)


def told(
    instance_id: str, profile_s: float, wall_s: float, num_steps: int, late: int, **what: int
) -> InstanceStatus:
    found = EmulationStatus(profile_time_s=profile_s, wall_time_s=wall_s, num_late_steps=late)
    return instance(instance_id, emulation=found, num_steps=num_steps, **what)


def kept(*looks: Sequence[InstanceStatus]) -> bench_report.Emulation | None:
    observed = Observed([cluster(*look) for look in looks])
    return bench_report.figures_of(Results(ended_s=1.0), observed, 1, 0.0).emulation


def test_instances_that_come_and_go_add_what_they_did() -> None:
    loading = instance("i-1", num_steps=None)
    found = kept(
        [told("i-0", 100.0, 100.0, 1000, 10)],
        [told("i-0", 110.0, 110.0, 1100, 10), loading],
        [told("i-0", 120.0, 121.0, 1200, 20), told("i-1", 10.0, 10.5, 100, 30)],
        [told("i-1", 20.0, 22.0, 200, 40)],
        [told("i-1", 30.0, 33.0, 300, 60), told("i-2", 0.0, 0.0, 0, 0)],
    )
    assert found is not None
    assert found.time_ratio == pytest.approx((21 + 33) / (20 + 30))
    assert found.worst_time_ratio == pytest.approx(33 / 30)
    assert found.late_steps_ratio == pytest.approx((10 + 60) / (200 + 300))
    anew = kept(
        [told("i-0", 100.0, 100.0, 1000, 0, pid=7)],
        [told("i-0", 10.0, 12.0, 100, 50, pid=8, incarnation=2)],
    )
    assert anew is not None
    assert anew.time_ratio == pytest.approx(1.2)


def test_a_client_that_spoils_the_figures_is_told() -> None:
    def warned(cpu_s: float, index: int, num_unanswered: int) -> list[str]:
        ended = [result(index, [1.0])]
        results = Results(ended_s=1.0, client_cpu_s=cpu_s, num_sent=1, ended=ended)
        observed = Observed(num_unanswered=num_unanswered)
        return bench_report.warnings(bench_report.figures_of(results, observed, 1, 0.0), observed)

    lag, core, _ = warned(0.95, 50, 2)
    assert "50 ms" in lag
    assert "0.95 of one core" in core
    assert warned(0.1, 0, 0) == []
