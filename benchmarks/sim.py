"""How fast the simulator is: decode steps per second of CPU time, by policy, and the memory taken.

Runs follow one another, each in its own process, so that the memory is that of one run. The CPU
seconds of drawing the trace are shown apart from those of the run. `--million` is the large case:
1,000,000 requests on 64 instances, for the policies that are named.
"""

import argparse
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks import results
from controller.model.profile import load_profile
from controller.sim.cluster import SimCluster
from controller.sim.setup import ClusterSetup, sim_policy, with_settings
from controller.sim.workload.named import workload

POLICIES = ("dispatch-only", "llumnix", "llumnix+", "infaas++")
# The same as in runs that repeat the paper (docs/simulation.md).
MOVES = {
    "migration.guard": False,
    "migration.source_below_steps": 160.0,
    "migration.destination_above_steps": 160.0,
}
STEPS_PER_S = 200_000
MEMORY_MIB = 2_000


@dataclass(frozen=True, slots=True)
class Case:
    """`max_cpu_s`: no run of this case should take longer."""

    num_requests: int
    num_instances: int
    max_cpu_s: float


SMALL = Case(10_000, 16, 5.0)
MILLION = Case(1_000_000, 64, 600.0)


@dataclass(frozen=True, slots=True)
class Run:
    policy: str
    seed: int
    trace_cpu_s: float
    cpu_s: float
    num_steps: int
    num_moved: int
    num_failed_moves: int
    virtual_s: float
    memory_mib: float
    """The peak memory of the process, with the trace."""

    @property
    def steps_per_s(self) -> float:
        return self.num_steps / self.cpu_s


def main() -> int:
    options = _options()
    console = results.make_console()
    case = MILLION if options.million else SMALL
    runs: list[Run] = []
    try:
        for seed in options.seeds:
            for policy in options.policies:
                runs.append(_alone(measure, policy, options.rate, case, seed))
                _tell(console, runs[-1])
    except KeyboardInterrupt:
        console.print("interrupted; nothing runs any more")
        return 130
    console.print(_table(runs, case))
    for line in _verdicts(runs, case):
        console.print(line)
    rows = [{**asdict(run), "steps_per_s": run.steps_per_s} for run in runs]
    figures = {"options": vars(options), "case": asdict(case), "runs": rows}
    console.print(f"written to {results.write('sim', figures)}")
    return 0


def measure(policy: str, rate_per_instance: float, case: Case, seed: int) -> Run:
    """Runs lengths of M-M with Poisson arrivals."""
    began_s = time.process_time()
    rate = rate_per_instance * case.num_instances
    trace = workload("M-M", rate=rate, num_requests=case.num_requests, seed=seed)
    drawn_s = time.process_time()
    profile = load_profile("a10-llama-7b")
    chosen = with_settings(sim_policy(policy), MOVES)
    outcome = SimCluster(ClusterSetup(profile, chosen, case.num_instances)).run(trace)
    return Run(
        policy,
        seed,
        drawn_s - began_s,
        time.process_time() - drawn_s,
        outcome.num_steps,
        outcome.num_moved,
        sum(outcome.num_failed_moves.values()),
        outcome.duration_s,
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )


def _alone(work: Callable[..., Run], *arguments: Any) -> Run:
    """Runs the work in a new process, which ends with it."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(work, *arguments).result()


def _tell(console: Console, run: Run) -> None:
    console.print(f"{run.policy}, seed {run.seed}: {run.cpu_s:.2f} s of CPU time")


def _verdicts(runs: list[Run], case: Case) -> list[str]:
    slowest = min(runs, key=lambda run: run.steps_per_s)
    longest = max(runs, key=lambda run: run.cpu_s)
    largest = max(runs, key=lambda run: run.memory_mib)
    return [
        f"the slowest, {slowest.policy}: {slowest.steps_per_s:,.0f} steps/s,"
        f" {_met(slowest.steps_per_s >= STEPS_PER_S)} ({STEPS_PER_S:,})",
        f"the longest, {longest.policy}: {longest.cpu_s:.1f} s,"
        f" {_met(longest.cpu_s <= case.max_cpu_s)} ({case.max_cpu_s:.0f} s)",
        f"the largest, {largest.policy}: {largest.memory_mib:,.0f} MiB,"
        f" {_met(largest.memory_mib <= MEMORY_MIB)} ({MEMORY_MIB:,} MiB)",
    ]


def _met(is_met: bool) -> str:
    return "as wanted" if is_met else "[red]not as wanted[/red]"


def _table(runs: list[Run], case: Case) -> Table:
    title = f"{case.num_requests:,} requests of M-M on {case.num_instances} instances"
    table = Table(title=title, box=box.SIMPLE)
    for column in (
        *("policy", "seed", "CPU, s", "decode steps", "steps/s", "moves", "failed"),
        *("virtual time, s", "the trace, s", "memory, MiB"),
    ):
        table.add_column(column, justify="left" if column == "policy" else "right")
    for run in runs:
        table.add_row(
            run.policy,
            str(run.seed),
            f"{run.cpu_s:.2f}",
            f"{run.num_steps:,}",
            f"{run.steps_per_s:,.0f}",
            f"{run.num_moved:,}",
            f"{run.num_failed_moves:,}",
            f"{run.virtual_s:,.0f}",
            f"{run.trace_cpu_s:.2f}",
            f"{run.memory_mib:,.0f}",
        )
    return table


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sim",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--policies", nargs="+", default=list(POLICIES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument(
        "--rate", type=float, default=0.5, help="requests per second and instance (0.5 is the knee)"
    )
    parser.add_argument("--million", action="store_true", help="minutes per policy")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
