"""A cluster that scales itself beside clusters of a fixed size, under a load that rises and falls,
a burst, and nothing at all: instances over time, cost, failures, P99 latencies. Emulated engines.

One run per call: without --run the next one that is missing; --simulate makes the same runs in
virtual time. Runs of one load are collected in benchmarks/results/autoscale, with a picture of all
that are there. Times are the profile's: what a clock shows, times the speed; but a start takes what
it takes on this machine. Before anything is read from the figures: `kept time` says whether the
machine kept the profile's time.
"""

import argparse
import json
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console

from benchmarks import machine, results
from benchmarks.autoscale_load import Tide, mean_over_time
from benchmarks.autoscale_sim import CHECK_INTERVAL_S, SCALED, Scene, simulate_all
from benchmarks.autoscale_tables import draw, figures_table, health_table, saving_lines
from benchmarks.cluster_runs import PROFILE
from benchmarks.cpu_meter import CpuMeter
from benchmarks.engine_plan import emulated_plan
from benchmarks.policy_cluster import TIMEOUT_S, Cast, keeps_time
from benchmarks.process_groups import signals_interrupt
from benchmarks.same_trace import live_latencies, write_trace
from benchmarks.servers import RESULTS, LlumctlServer, ServerError, control_of, running
from controller.api.client import ControlClient
from controller.api.errors import LlumctlError
from controller.api.wire.requests import Event
from controller.api.wire.status import ClusterStatus
from controller.sim.setup import sim_policy
from llumctl.lab import bench
from llumctl.lab.bench_load import Load

LOOK_EVERY_S = 0.5
STREAM_INTERVAL = 16
"""Tokens of an event. To write one takes the frontend more time than all else that it does for a
token, and neither TTFT nor TPOT hangs on those in between."""
NUM_SIMULATED = 4
"""Simulated runs of each: P99 TTFT differs by multiples from one to the next."""
SIMULATED_BESIDE = (SCALED, "infaas++")
"""With that policy a cluster scales too, but moves nothing: the one that the paper saves over."""


@dataclass
class Observed:
    """Looks at the cluster: when, and how many instances there were with those that start and
    drain, as each costs a GPU."""

    times_s: list[float] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    serving: list[int] = field(default_factory=list)
    cores: list[float] = field(default_factory=list)
    """That the instances kept busy."""

    def look(self, at_s: float, status: ClusterStatus) -> None:
        self.times_s.append(at_s)
        self.numbers.append(len(status.instances))
        self.serving.append(sum(each.state == "active" for each in status.instances))
        self.cores.append(sum(each.cpu_cores or 0.0 for each in status.instances))

    def since(self, began_s: float) -> "Observed":
        """Times count from then; of the looks before, the last one stands for that moment."""
        first = max(0, sum(at_s < began_s for at_s in self.times_s) - 1)
        times_s = [max(0.0, at_s - began_s) for at_s in self.times_s[first:]]
        return Observed(times_s, self.numbers[first:], self.serving[first:], self.cores[first:])


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
    scene = Scene(tide, options.lengths, options.seed, options.least, options.most, options.speed)
    rates = "-".join(f"{each:g}" for each in (options.low, options.high, options.burst))
    load = f"{options.lengths}-{options.duration:g}s-{rates}-seed{options.seed}"
    folder = RESULTS / "autoscale" / f"{load}-x{options.most}"
    runs = [SCALED, *(f"fixed-{number}" for number in options.fixed)]
    missing = (each for each in runs if not _path(folder, each, options.policy).exists())
    wanted = options.run or next(missing, None)
    code = 0
    if options.simulate:
        _simulate(folder, scene, runs, options.policy)
    elif wanted is None:
        console.print("all runs of this load are there; --run repeats one")
    elif not options.show:
        console.print(f"[bold]{wanted}[/bold]: {tide.mean_rate:.2f} requests/s in the mean")
        try:
            with signals_interrupt():
                code = _play(console, folder, wanted, scene, options.policy)
        except KeyboardInterrupt:
            console.print("interrupted; nothing runs any more")
            return 130
        except (ServerError, LlumctlError) as error:
            console.print(f"[red]cut short: {error}[/red]")
            return 1
    _show(console, folder, tide)
    return code


def _show(console: Console, folder: Path, tide: Tide) -> None:
    """All runs of the load that were made, whichever call made them."""
    live = [json.loads(path.read_text()) for path in sorted(folder.glob("live-*.json"))]
    path = folder / "simulated.json"
    simulated = json.loads(path.read_text()) if path.exists() else {}
    if not live and not simulated:
        return
    console.print(figures_table(live, simulated))
    for line in saving_lines(live, simulated):
        console.print(line)
    if live:
        console.print(health_table(live))
        for suffix in ("png", "svg"):
            console.print(f"picture: {draw(folder / f'instances.{suffix}', live, tide)}")


def _simulate(folder: Path, scene: Scene, runs: list[str], policy: str) -> None:
    wanted = [*((run, policy) for run in runs), SIMULATED_BESIDE]
    found = simulate_all(scene, list(dict.fromkeys(wanted)), NUM_SIMULATED)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "simulated.json").write_text(json.dumps(found, indent=1) + "\n")


def _play(console: Console, folder: Path, wanted: str, scene: Scene, policy: str) -> int:
    speed, trace = scene.speed, scene.trace
    path = write_trace(trace, folder / f"trace-{scene.seed}.jsonl")
    number = scene.least if wanted == SCALED else int(wanted.removeprefix("fixed-"))
    settings = dict(Cast(sim_policy(policy), number, PROFILE, speed).settings())
    if wanted == SCALED:
        scaling = {"mode": "on", "min_instances": scene.least, "max_instances": scene.most}
        scaling["check_interval_s"] = CHECK_INTERVAL_S / speed
        settings |= {f"autoscale.{key}": value for key, value in scaling.items()}
    cluster = LlumctlServer(emulated_plan(number), settings=settings, emulated=True)
    with running(cluster):
        figures = _load_on(cluster, path, scene)
    times_s = [speed * at_s for at_s in figures["times_s"]]
    cost = mean_over_time(times_s, figures["numbers"], scene.tide.duration_s)
    content = {
        **{"run": wanted, "policy": policy, "speed": speed, "tide": asdict(scene.tide)},
        **{"machine": machine.describe(), "seed": scene.seed},
        **(figures | {"times_s": times_s, "mean_num_instances": cost}),
        "last_arrival_s": trace.requests[-1].arrival_s,
    }
    _path(folder, wanted, policy).write_text(json.dumps(content, indent=1) + "\n")
    for line in figures["warnings"]:
        console.print(f"[yellow]{line}[/yellow]")
    return int(bool(figures["num_failed"] or figures["num_wrong_tokens"]))


def _load_on(cluster: LlumctlServer, trace: Path, scene: Scene) -> dict[str, Any]:
    speed, tide = scene.speed, scene.tide
    load = Load(trace=trace, speed=speed, duration_s=None, seed=scene.seed)
    name = cluster.plan.cluster
    with control_of(name) as control:
        observer, meter = Observer(control), CpuMeter({})
        observer.start()
        try:
            wanted = bench.Wanted(
                load=load,
                cluster=name,
                timeout_s=TIMEOUT_S / speed,
                stream_interval=STREAM_INTERVAL,
            )
            measured = bench.run(wanted)
        finally:
            seen = observer.finish()
            other_cores = meter.used().other_cores
        events = _events(control)
    if measured.results.interrupted:
        raise KeyboardInterrupt
    found, began_s = measured.figures, measured.results.started_s
    right = [result for result in measured.results.ended if result.is_right]
    seen = seen.since(began_s)
    return live_latencies(measured, speed) | {
        **asdict(seen),
        "num_slow": tide.num_slow(
            [speed * (result.due_s - began_s) for result in right],
            [speed * (result.answer.token_times_s[0] - result.due_s) for result in right],
        ),
        "cores": {
            "all": other_cores,
            "instances": fmean(seen.cores),
            "client": found.client_cpu_cores,
        },
        "client_lag_p99_s": found.send_lag_p99_s,
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


def _path(folder: Path, run: str, policy: str) -> Path:
    return folder / f"live-{run}-{policy}.json"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.autoscale",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--run", help=f"{SCALED} or fixed-N; else the next that is missing")
    parser.add_argument(
        "--fixed", type=int, nargs="*", default=[4, 6, 8], help="clusters beside it"
    )
    parser.add_argument("--duration", type=float, default=3600.0, help="s, in profile time")
    parser.add_argument("--low", type=float, default=0.3, help="requests/s, in profile time")
    parser.add_argument("--high", type=float, default=2.4)
    parser.add_argument("--burst", type=float, default=4.0)
    parser.add_argument("--lengths", default="M-M")
    parser.add_argument("--policy", default="llumnix")
    parser.add_argument("--least", type=int, default=1, help="instances, with no request at all")
    parser.add_argument("--most", type=int, default=8)
    parser.add_argument("--speed", type=float, default=6.0, help="times faster than the profile")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--simulate", action="store_true", help="the same runs in virtual time")
    parser.add_argument("--show", action="store_true", help="only show what is there")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
