"""A trace that is played live and simulated: the same requests, settings and figures of both."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.policy_cluster import Cast
from benchmarks.same_trace import live_settings, write_trace
from benchmarks.servers import as_variables
from controller.adapters.http.live_settings import live_config
from controller.api.settings.settings import ClusterTable
from controller.core.admission.policies import POLICIES
from controller.sim.setup import SIM_POLICIES, sim_policy, with_settings
from controller.sim.workload.named import workload
from llumctl.config import settings as llumctl_settings
from llumctl.lab import bench_load


def test_the_client_reads_the_requests_that_are_simulated(tmp_path: Path) -> None:
    trace = workload("M-M", rate=7.0, num_requests=50, seed=3)
    read = bench_load.read_trace_file(write_trace(trace, tmp_path / "t" / "trace.jsonl"))
    first_s = trace.requests[0].arrival_s  # readers begin at 0
    assert read.requests == [
        replace(request, arrival_s=request.arrival_s - first_s) for request in trace.requests
    ]


@pytest.mark.parametrize(
    "name", [name for name, policy in SIM_POLICIES.items() if policy.dispatch in POLICIES]
)
def test_a_live_cluster_takes_the_settings_of_a_policy(name: str) -> None:
    speed = 3.0
    cast = Cast(sim_policy(name), 16, "a10-llama-7b", speed)
    settings = llumctl_settings.load(environ=as_variables(cast.settings()))
    settings = settings.model_copy(update={"cluster": ClusterTable(engine="emulated")})
    live, policy = live_config(settings), sim_policy(name)
    assert live.scheduler.policy == policy.dispatch
    moves = policy.rescheduling
    assert live.rescheduling == replace(
        moves,
        interval_s=moves.interval_s / speed,
        not_back_s=moves.not_back_s / speed,
        gain_ahead_s=moves.gain_ahead_s / speed,
        max_moves_per_minute=round(moves.max_moves_per_minute * speed),
    )
    assert bool(live.scheduler.holding) is bool(policy.holding)


def test_what_is_changed_is_the_live_clusters_too_if_it_can_be() -> None:
    changed = with_settings(sim_policy("llumnix"), {"migration.source_below_steps": "20"})
    assert live_settings(changed, 3.0)["migration.source_below_steps"] == 20
    with pytest.raises(ValueError, match=r"a live cluster has no setting migration\.guard"):
        live_settings(with_settings(changed, {"migration.guard": "off"}), 3.0)
