"""The runs of `make bench-autoscale` in virtual time: the same requests, rule and cluster sizes."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmarks.autoscale_load import Tide
from benchmarks.cluster_runs import PROFILE
from benchmarks.same_trace import LIMIT_FACTOR, delayed
from controller.model.profile import load_profile
from controller.sim.cluster import SimCluster
from controller.sim.outcome import summarize
from controller.sim.setup import ClusterSetup, SimPolicy, sim_policy, with_autoscale
from controller.sim.workload.trace import Trace

SCALED = "autoscale"
CHECK_INTERVAL_S = 10.0
"""From one look at the load to the next, by the definition's default; two in a row count."""
DELAY_S = 0.01
"""Of a request on its way, in the mean (`make bench-fidelity`), by the clock."""
COLD_START_S = 1.5
"""Of an emulated instance, by the clock: 1.0 to 1.6 s were seen."""


@dataclass(frozen=True, slots=True)
class Scene:
    """One load, and the clusters that it is put on. `least` and `most`: instances of the one that
    scales. `speed` is that of the live runs: what takes its time by the clock there takes so many
    times as long in the profile's time."""

    tide: Tide
    lengths: str
    seed: int
    least: int
    most: int
    speed: float

    @property
    def trace(self) -> Trace:
        setup = ClusterSetup(
            load_profile(PROFILE), sim_policy("llumnix"), self.most, limit_factor=LIMIT_FACTOR
        )
        return self.tide.trace(self.lengths, setup, self.seed)

    def setup(self, run: str, policy: str) -> ClusterSetup:
        """`run`: `autoscale`, or `fixed-N`."""
        cast, number = sim_policy(policy), self.least
        if run == SCALED:
            cast = self._scaled(cast)
        else:
            number = int(run.removeprefix("fixed-"))
        return ClusterSetup(load_profile(PROFILE), cast, number, limit_factor=LIMIT_FACTOR)

    def _scaled(self, policy: SimPolicy) -> SimPolicy:
        found = with_autoscale(policy, self.least, self.most)
        assert found.autoscale is not None
        config = replace(
            found.autoscale,
            check_interval_s=CHECK_INTERVAL_S,
            first_check_after_s=CHECK_INTERVAL_S,
            up_persistence_s=CHECK_INTERVAL_S,
            down_persistence_s=CHECK_INTERVAL_S,
            cold_start_s=COLD_START_S * self.speed,
        )
        return replace(found, autoscale=config)


def simulate(scene: Scene, run: str, policy: str, number: int) -> dict[str, Any]:
    """`number`: of the delays that requests have on their way, as two live runs differ too."""
    trace = delayed(scene.trace, DELAY_S * scene.speed, number)
    outcome = SimCluster(scene.setup(run, policy)).run(trace)
    found = summarize(outcome, [each.arrival_s for each in trace.requests])
    return {
        "ttft_s": None if found.all.ttft_s is None else asdict(found.all.ttft_s),
        "tpot_s": None if found.all.tpot_s is None else asdict(found.all.tpot_s),
        "num_slow": scene.tide.num_slow(
            *(outcome.rows.columns[name].tolist() for name in ("arrival_s", "ttft_s"))
        ),
        "mean_num_instances": found.mean_num_instances,
        "most": max(outcome.sampled.num_instances, default=0),
        "num_requests": found.all.num_requests,
        "num_failed": found.num_failed,
        "num_added": found.num_launched,
        "num_removed": found.num_removed,
        "num_evictions": found.all.num_evictions,
        "num_moves": found.all.num_moves,
    }


def simulate_all(
    scene: Scene, runs: list[tuple[str, str]], num_each: int
) -> dict[str, list[dict[str, Any]]]:
    """By the names of the runs, which are (run, policy)."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(mp_context=context) as pool:
        waiting = {
            f"{run}, {policy}": [
                pool.submit(simulate, scene, run, policy, number) for number in range(num_each)
            ]
            for run, policy in runs
        }
        return {name: [each.result() for each in found] for name, found in waiting.items()}
