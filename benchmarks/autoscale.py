"""A cluster that scales itself beside clusters of a fixed size, under a load that rises and falls,
a burst, and nothing at all: instances over time, cost, failures, P99 latencies. Emulated engines.

One run per call: without --run the next one that is missing. Runs of one load are collected in
benchmarks/results/autoscale, with a picture of all that are there. Times are the profile's: what a
clock shows, times the speed; but a start takes what it takes on this machine. Before anything is
read from the figures: `kept time` says whether the machine kept the profile's time.
"""

import argparse
import json
import sys
import threading
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks import machine, results
from benchmarks.autoscale_load import Tide, mean_over_time
from benchmarks.cluster_runs import PROFILE
from benchmarks.engine_plan import EnginePlan, make_plan
from benchmarks.policy_cluster import TIMEOUT_S, Cast, LiveCluster, as_environment, keeps_time
from benchmarks.process_groups import signals_interrupt
from benchmarks.same_trace import LIMIT_FACTOR, live_latencies, write_trace
from benchmarks.servers import RESULTS, ServerError, running
from controller.api.client import ControlClient
from controller.api.errors import LlumctlError
from controller.api.state import run_state
from controller.api.wire.models import ClusterStatus, Event
from controller.model.profile import load_profile
from controller.sim.policies import sim_policy
from controller.sim.setup import ClusterSetup
from llumctl.bench import session
from llumctl.bench.workload import Load

SCALED = "autoscale"
LOOK_EVERY_S = 0.5
# Settings of auto-scaling that are times, by the definitions' defaults.
TIMES_S = {"check_interval_s": 10.0, "up_persistence_s": 10.0, "down_persistence_s": 10.0}


@dataclass
class Observed:
    """Looks at the cluster: when, and how many instances there were with those that start and
    drain, as each costs a GPU."""

    times_s: list[float] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    serving: list[int] = field(default_factory=list)

    def look(self, at_s: float, status: ClusterStatus) -> None:
        self.times_s.append(at_s)
        self.numbers.append(len(status.instances))
        self.serving.append(sum(each.state == "active" for each in status.instances))

    def since(self, began_s: float) -> "Observed":
        """Times count from then; of the looks before, the last one stands for that moment."""
        first = max(0, sum(at_s < began_s for at_s in self.times_s) - 1)
        times_s = [max(0.0, at_s - began_s) for at_s in self.times_s[first:]]
        return Observed(times_s, self.numbers[first:], self.serving[first:])


class Observer(threading.Thread):
    """Looks until it is told to finish. What the controller does not answer is a gap."""

    def __init__(self, client: ControlClient) -> None:
        super().__init__(daemon=True)
        self.seen = Observed()
        self._client = client
        self._enough = threading.Event()

    def run(self) -> None:
        while not self._enough.wait(LOOK_EVERY_S):
            try:
                status = self._client.status()
            except LlumctlError:
                continue
            self.seen.look(time.perf_counter(), status)

    def finish(self) -> Observed:
        self._enough.set()
        self.join()
        return self.seen


def main() -> int:
    options = _options()
    console = results.make_console()
    tide = Tide(options.duration, options.low, options.high, options.burst)
    name = f"{options.lengths}-{options.duration:g}s-{options.high:g}-x{options.most}"
    folder = RESULTS / "autoscale" / name
    runs = [SCALED, *(f"fixed-{number}" for number in options.fixed)]
    wanted = options.run or next((each for each in runs if not _path(folder, each).exists()), None)
    code = 0
    if wanted is None:
        console.print("all runs of this load are there; --run repeats one")
    elif not options.show:
        console.print(f"[bold]{wanted}[/bold]: {tide.mean_rate:.2f} requests/s in the mean")
        try:
            with signals_interrupt():
                code = _play(console, folder, wanted, tide, options)
        except KeyboardInterrupt:
            console.print("interrupted; nothing runs any more")
            return 130
        except (ServerError, LlumctlError) as error:
            console.print(f"[red]cut short: {error}[/red]")
            return 1
    found = [
        json.loads(_path(folder, each).read_text()) for each in runs if _path(folder, each).exists()
    ]
    if found:
        console.print(_table(found))
        console.print(f"picture: {_draw(folder / 'instances.png', found, tide)}")
    return code


def _play(
    console: Console, folder: Path, wanted: str, tide: Tide, options: argparse.Namespace
) -> int:
    policy, speed = sim_policy(options.policy), options.speed
    setup = ClusterSetup(load_profile(PROFILE), policy, options.most, limit_factor=LIMIT_FACTOR)
    trace = tide.trace(options.lengths, setup, options.seed)
    path = write_trace(trace, folder / f"trace-{options.seed}.jsonl")
    number = options.least if wanted == SCALED else int(wanted.removeprefix("fixed-"))
    cast = Cast(policy, number, PROFILE, speed)
    environment = dict(cast.environment())
    if wanted == SCALED:
        settings = {"mode": "on", "min_instances": options.least, "max_instances": options.most}
        settings |= {key: value / speed for key, value in TIMES_S.items()}
        environment |= as_environment({f"autoscale.{key}": v for key, v in settings.items()})
    cluster = LiveCluster(_plan(number), environment, emulated=True)
    with running(cluster):
        figures = _load_on(cluster, path, options.seed, speed)
    last_s = trace.requests[-1].arrival_s
    times_s = [speed * at_s for at_s in figures["times_s"]]
    cost = mean_over_time(times_s, figures["numbers"], tide.duration_s)
    figures |= {"times_s": times_s, "mean_num_instances": cost, "last_arrival_s": last_s}
    content = {"run": wanted, "speed": speed, "tide": asdict(tide), "machine": machine.describe()}
    _path(folder, wanted).write_text(json.dumps(content | figures, indent=1) + "\n")
    for line in figures["warnings"]:
        console.print(f"[yellow]{line}[/yellow]")
    return int(bool(figures["num_failed"] or figures["num_wrong_tokens"]))


def _plan(number: int) -> EnginePlan:
    engine_args = {"served_model_name": "embedded"}
    return replace(make_plan(1), num_engines=number, engine_args=engine_args)


def _load_on(cluster: LiveCluster, trace: Path, seed: int, speed: float) -> dict[str, Any]:
    load = Load(trace=trace, speed=speed, duration_s=None, seed=seed)
    name = cluster.plan.cluster
    state = run_state.load(name)
    assert state is not None
    with ControlClient(state.control_url, state.control_token) as control:
        observer = Observer(control)
        observer.start()
        try:
            wanted = session.Wanted(load=load, cluster=name, timeout_s=TIMEOUT_S / speed)
            measured = session.run(wanted)
        finally:
            seen = observer.finish()
        events = _events(control)
    if measured.results.interrupted:
        raise KeyboardInterrupt
    found = measured.figures
    return live_latencies(measured, speed) | {
        **asdict(seen.since(measured.results.started_s)),
        "num_requests": found.num_requests,
        "num_failed": found.num_failed + found.num_unfinished,
        "num_wrong_tokens": found.num_wrong_tokens
        + found.num_lost_tokens
        + found.num_doubled_tokens,
        "kept_time": None if found.emulation is None else keeps_time(measured),
        "emulation": None if found.emulation is None else asdict(found.emulation),
        "num_added": sum(e.numbers.get("num_added") or 0 for e in events if "add" in e.reason[:4]),
        "num_removed": sum(e.reason.startswith("remove") for e in events),
        "num_kept": sum(e.reason.startswith("keep") for e in events),
        "warnings": list(measured.warnings),
    }


def _events(control: ControlClient) -> list[Event]:
    found: list[Event] = []
    after = ""
    while (page := control.events(after, 10_000)).events:
        found += [event for event in page.events if event.kind == "autoscaled"]
        after = page.next_position
    return found


def _table(runs: list[dict[str, Any]]) -> Table:
    table = Table(title="s and ms of the profile's time", box=box.SIMPLE)
    for column in (
        *("run", "cost, instances", "most", "requests", "failed", "TTFT mean / P99 / max, s"),
        *("TPOT P99, ms", "added / removed / kept", "kept time"),
    ):
        table.add_column(column, justify="left" if column == "run" else "right")
    for run in runs:
        ttft, tpot = run["ttft_s"] or {}, run["tpot_s"] or {}
        table.add_row(
            run["run"],
            f"{run['mean_num_instances']:.2f}",
            str(max(run["numbers"])),
            str(run["num_requests"]),
            str(run["num_failed"] + run["num_wrong_tokens"]),
            " / ".join(f"{ttft[key]:.2f}" for key in ("mean", "p99", "max")) if ttft else "",
            f"{1000 * tpot['p99']:.0f}" if tpot else "",
            f"{run['num_added']} / {run['num_removed']} / {run['num_kept']}",
            {True: "yes", False: "no", None: ""}[run["kept_time"]],
        )
    return table


def _draw(path: Path, runs: list[dict[str, Any]], tide: Tide) -> Path:
    picture = Figure(figsize=(11, 5), layout="constrained")
    axes = picture.subplots()
    for run in runs:
        label = f"{run['run']}: {run['mean_num_instances']:.1f} in the mean"
        axes.step(run["times_s"], run["numbers"], where="post", label=label)
    axes.set_xlabel("s of the profile's time")
    axes.set_ylabel("instances, with those that start and drain")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    rates = axes.twinx()
    at_s = [tide.duration_s * number / 500 for number in range(501)]
    rates.fill_between(at_s, [tide.rate(each) for each in at_s], alpha=0.15, color="grey")
    rates.set_ylabel("requests/s (grey)")
    rates.set_ylim(bottom=0)
    axes.legend(loc="upper right", fontsize="small")
    picture.savefig(path, dpi=120, format="png")
    return path


def _path(folder: Path, run: str) -> Path:
    return folder / f"{run}.json"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.autoscale",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--run", help=f"{SCALED} or fixed-N; else the next that is missing")
    parser.add_argument("--fixed", type=int, nargs="*", default=[4, 8], help="clusters beside it")
    parser.add_argument("--duration", type=float, default=3600.0, help="s, in profile time")
    parser.add_argument("--low", type=float, default=0.3, help="requests/s, in profile time")
    parser.add_argument("--high", type=float, default=2.4)
    parser.add_argument("--burst", type=float, default=4.0)
    parser.add_argument("--lengths", default="M-M")
    parser.add_argument("--policy", default="llumnix")
    parser.add_argument("--least", type=int, default=1, help="instances, with no request at all")
    parser.add_argument("--most", type=int, default=8)
    parser.add_argument("--speed", type=float, default=3.0, help="times faster than the profile")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", action="store_true", help="only show what is there")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
