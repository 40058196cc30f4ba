"""Policies side by side: the same requests on 16 emulated instances under each, live and simulated.

Each call makes the run of one policy and seed: without arguments the next one that is missing. Runs
are collected in benchmarks/results/cluster, and the tables show all of them. Times are the
profile's: the time on a clock, times the speed. The figures count only if the machine kept the
profile's time: `kept time` says whether it did.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from rich import box
from rich.console import Console, JustifyMethod
from rich.table import Table

from benchmarks import results
from benchmarks.policy_cluster import Cast, play
from benchmarks.same_trace import LIMIT_FACTOR, delayed, simulated, smaller, write_trace
from benchmarks.servers import RESULTS, ServerError
from controller.api.errors import LlumctlError
from controller.api.interrupts import stops_interrupt
from controller.model.profile import load_profile
from controller.sim.run import Load, fitting
from controller.sim.setup import ClusterSetup, SimPolicy, sim_policy, with_settings
from controller.sim.workload.named import is_file
from controller.sim.workload.trace import Trace
from llumctl.lab.paper import settings as paper_settings

# The runs of one load stand in one folder, a file for each policy and seed: so a call can make one
# run and show those that are there

PROFILE = "a10-llama-7b"


@dataclass(frozen=True, slots=True)
class Wanted:
    policy: str
    seed: int


RUNS = (
    *(Wanted(policy, 1) for policy in ("infaas++", "llumnix", "llumnix+")),
    *(Wanted(policy, 1) for policy in ("vllm-dp", "round-robin")),
    *(Wanted(policy, 2) for policy in ("infaas++", "llumnix", "llumnix+")),
)
"""The runs, in the order in which they are made."""
POLICIES = tuple(dict.fromkeys(wanted.policy for wanted in RUNS))


@dataclass(frozen=True, slots=True)
class ClusterLoad:
    """`rate` in requests per second, in the profile's time. `lengths`: a name of lengths, or the
    path of a trace file, which is played as it is."""

    lengths: str
    rate: float
    num_requests: int
    num_instances: int
    num_blocks: int | None = None
    """The number of KV blocks of an instance; None for the profile's."""
    profile: str = PROFILE

    @property
    def name(self) -> str:
        blocks = f"-{self.num_blocks}-blocks" if self.num_blocks else ""
        if is_file(self.lengths):
            return f"{Path(self.lengths).stem}-x{self.num_instances}{blocks}"
        return f"{self.lengths}-{self.rate:g}-{self.num_requests}x{self.num_instances}{blocks}"

    def trace(self, seed: int) -> Trace:
        """The trace as `llumctl simulate` draws it, without requests that are too long for an
        instance."""
        load = Load(self.lengths, self.rate, self.num_requests, drop_too_long=True)
        if is_file(self.lengths):
            load = Load(self.lengths, drop_too_long=True)
        return fitting(load.trace(seed), self.setup(sim_policy("infaas++")), load)[0]

    def policy(self, name: str) -> SimPolicy:
        """The policy with the settings of runs that repeat the paper's, except for the guard, which
        a live cluster always has. With a trace file: with its own settings."""
        if is_file(self.lengths):
            return sim_policy(name)
        settings = paper_settings(name, self.lengths)
        return with_settings(
            sim_policy(name),
            {key: value for key, value in settings.items() if key != "migration.guard"},
        )

    def setup(self, policy: SimPolicy) -> ClusterSetup:
        return ClusterSetup(
            smaller(load_profile(self.profile), self.num_blocks),
            policy,
            self.num_instances,
            limit_factor=LIMIT_FACTOR,
        )


class Collected:
    """The runs of one load so far."""

    def __init__(self, load: ClusterLoad, folder: Path | None = None) -> None:
        self.folder = (folder or RESULTS / "cluster") / load.name

    def missing(self) -> Wanted | None:
        return next((wanted for wanted in RUNS if not self._path(wanted).exists()), None)

    def write(self, wanted: Wanted, figures: dict[str, Any]) -> Path:
        """Replaces an earlier run of the same policy and seed."""
        path = self._path(wanted)
        path.parent.mkdir(parents=True, exist_ok=True)
        date = datetime.now().astimezone().isoformat(timespec="seconds")
        content = {
            "policy": wanted.policy,
            "seed": wanted.seed,
            "date": date,
            "machine": results.describe(),
            **figures,
        }
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        return path

    def runs(self) -> Sequence[dict[str, Any]]:
        """The runs, ordered by policy, then by seed."""
        found = [json.loads(path.read_text("utf-8")) for path in self.folder.glob("*-seed*.json")]
        order = {policy: place for place, policy in enumerate(POLICIES)}
        return sorted(found, key=lambda run: (order.get(run["policy"], len(order)), run["seed"]))

    def _path(self, wanted: Wanted) -> Path:
        return self.folder / f"{wanted.policy}-seed{wanted.seed}.json"


# Tables: each live run with the simulated ones below it

RATIO_OF = "infaas++"
"""The policy with which the others are compared."""


def latency_table(runs: Sequence[Mapping[str, Any]], title: str) -> Table:
    table = Table(title=title, box=box.SIMPLE, padding=(0, 1, 0, 0))
    for column in (
        *("policy, seed", "", "TTFT mean / P99 / max", "mean / P99 TPOT"),
        *("P99 / max pause", "loss", "evicted", "moves", "steady", "ends"),
    ):
        justify: JustifyMethod = "left" if column in ("policy, seed", "") else "right"
        table.add_column(column, justify=justify, no_wrap=True)
    for run in runs:
        table.add_row(f"{run['policy']}, {run['seed']}", "live", *_cells(run["live"]))
        for name, of in (("sim", fmean), ("lowest", min), ("highest", max)):
            table.add_row("", name, *_cells(_of_all(run["simulated"], of)))
    return table


def _of_all(runs: Sequence[Mapping[str, Any]], of: Callable[[list[Any]], Any]) -> dict[str, Any]:
    """Combines each figure of several runs."""
    found: dict[str, Any] = {}
    for key, first in runs[0].items():
        values = [run[key] for run in runs]
        if key == "steady":
            found[key] = first if len(set(values)) == 1 else None
        elif any(value is None for value in values):
            found[key] = None
        else:
            found[key] = _of_all(values, of) if isinstance(first, dict) else of(values)
    return found


def _cells(found: Mapping[str, Any]) -> list[str]:
    loss_s = found["preemption_loss_s"]
    return [
        _spread(found["ttft_s"], ("mean", "p99", "max"), ".2f"),
        _spread(found["tpot_s"], ("mean", "p99"), ".1f", 1000),
        _spread(found["longest_pause_s"], ("p99", "max"), ".1f"),
        "" if loss_s is None else f"{loss_s:.3f}",
        *(f"{found[key]:.0f}" for key in ("num_evictions", "num_moves")),
        {True: "yes", False: "no", None: ""}[found["steady"]],
        f"{found['duration_s']:.0f}",
    ]


def _spread(
    found: Mapping[str, float] | None, keys: Sequence[str], form: str, factor: float = 1
) -> str:
    return " / ".join(f"{factor * found[key]:{form}}" for key in keys) if found else ""


def health_table(runs: Sequence[Mapping[str, Any]]) -> Table:
    """`steps`: how long steps took compared with the profile. `cores`: those that the cluster used;
    `others`: those that other programs used. `client late`: 1 request in 100 was sent later than
    this after it was due."""
    table = Table(
        title="whether the live runs can be believed", box=box.SIMPLE, padding=(0, 1, 0, 0)
    )
    for column in (
        *("policy", "seed", "speed", "failed", "wrong tokens", "failed moves", "steps, worst"),
        *("late steps", "kept time", "cores", "others", "client late"),
    ):
        table.add_column(column, justify="left" if column == "policy" else "right")
    for run in runs:
        live = run["live"]
        emulation = live["emulation"]
        table.add_row(
            *(run["policy"], str(run["seed"]), f"{live['speed']:g}"),
            *(str(live[key]) for key in ("num_failed", "num_wrong_tokens", "num_failed_moves")),
            f"{emulation['time_ratio']:.3f}, {emulation['worst_time_ratio']:.3f}"
            if emulation
            else "",
            f"{emulation['late_steps_ratio']:.1%}" if emulation else "",
            "yes" if live["kept_time"] else "NO",
            f"{sum(live['cores'].values()):.2f}",
            f"{live['other_cores']:.2f}",
            f"{1000 * live['bench']['send_lag_p99_s']:.0f} ms",
        )
    return table


def ratio_lines(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """P99 TTFT of each policy against that of infaas++, means over the seeds that both have."""
    by_policy: dict[str, dict[int, Mapping[str, Any]]] = {}
    for run in runs:
        by_policy.setdefault(run["policy"], {})[run["seed"]] = run
    base = by_policy.get(RATIO_OF, {})
    lines = []
    for policy, its in by_policy.items():
        seeds = sorted(its.keys() & base.keys())
        if policy == RATIO_OF or not seeds:
            continue
        live, simulated = (
            fmean(p99_s(its[seed]) for seed in seeds) / fmean(p99_s(base[seed]) for seed in seeds)
            for p99_s in (_live_p99_s, _simulated_p99_s)
        )
        which = ", ".join(map(str, seeds))
        lines.append(
            f"P99 TTFT of {policy} over that of {RATIO_OF}: {live:.2f} live,"
            f" {simulated:.2f} simulated (seeds {which})"
        )
    return lines


def _live_p99_s(run: Mapping[str, Any]) -> float:
    return float(run["live"]["ttft_s"]["p99"])


def _simulated_p99_s(run: Mapping[str, Any]) -> float:
    return fmean(each["ttft_s"]["p99"] for each in run["simulated"])


# One run, live and simulated

RATE = 6.86
"""The knee of infaas++ for M-M on 16 of these engines: at this rate its P99 TTFT, as a mean over
three seeds of the simulator, is 30 s (docs/paper.md)."""
SPEED = 2.0
NUM_SIMULATED = 8
"""How many simulated runs there are of the same requests: if arrivals are a few milliseconds later,
other queues have a long prompt at their head, and P99 TTFT can differ by a factor of five."""
DELAY_S = 0.01
"""The mean delay of a request on its way to an instance and back: `make bench-fidelity` measured 8
to 11 ms."""


def main() -> int:
    options = _options()
    console = results.make_console()
    load = ClusterLoad(
        options.lengths,
        options.rate,
        options.requests,
        options.instances,
        options.blocks,
        options.profile,
    )
    collected = Collected(load)
    wanted = collected.missing()
    if options.policy is not None:
        wanted = Wanted(options.policy, options.seed)
    code = 0
    if wanted is None:
        console.print("all runs of this load are there; --policy and --seed repeat one")
    elif not options.show:
        code = _run(console, load, collected, wanted, options.speed)
    _show(console, load, collected)
    return code


def _run(
    console: Console, load: ClusterLoad, collected: Collected, wanted: Wanted, speed: float
) -> int:
    console.print(f"[bold]{wanted.policy}, seed {wanted.seed}[/bold]")
    policy, trace = load.policy(wanted.policy), load.trace(wanted.seed)
    path = write_trace(trace, collected.folder / f"trace-{wanted.seed}.jsonl")
    in_virtual_time = [
        simulated(load.setup(policy), delayed(trace, DELAY_S * speed, n))
        for n in range(NUM_SIMULATED)
    ]
    cast = Cast(policy, load.num_instances, load.profile, speed, load.num_blocks)
    try:
        with stops_interrupt():
            live = play(cast, path, wanted.seed)
    except KeyboardInterrupt:
        console.print("interrupted; nothing runs any more")
        return 130
    except (ServerError, LlumctlError) as error:
        console.print(f"[red]cut short: {error}[/red]")
        return 1
    del live["lags_s"]  # 10,000 figures that are not needed here
    for warning in live["warnings"]:
        console.print(f"[yellow]{warning}[/yellow]")
    figures = {"load": asdict(load), "live": live, "simulated": in_virtual_time}
    console.print(f"written to {collected.write(wanted, figures)}")
    return int(bool(live["num_failed"] or live["num_wrong_tokens"]))


def _show(console: Console, load: ClusterLoad, collected: Collected) -> None:
    runs = collected.runs()
    if not runs:
        return
    title = (
        f"{load.name}: s, TPOT in ms, of the profile; of {NUM_SIMULATED} simulated runs the mean"
    )
    console.print(latency_table(runs, title))
    console.print(health_table(runs))
    for line in ratio_lines(runs):
        console.print(line)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cluster",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--policy", choices=POLICIES)
    parser.add_argument("--seed", type=int, default=1, help="of the policy that is given")
    parser.add_argument("--instances", type=int, default=16)
    parser.add_argument("--blocks", type=int, help="KV blocks of an instance; the profile's 851")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--rate", type=float, default=RATE, help="requests/s, in profile time")
    parser.add_argument("--lengths", default="M-M", help="or the path of a trace file")
    parser.add_argument("--profile", default=PROFILE)
    parser.add_argument("--speed", type=float, default=SPEED, help="times faster than the profile")
    parser.add_argument("--show", action="store_true", help="only show what is there")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
