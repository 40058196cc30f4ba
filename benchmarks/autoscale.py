"""A cluster that scales itself beside clusters of a fixed size, with emulated engines: instances
over time, cost, failures, P99 latencies. The load rises and falls, has a burst, and stops for a
while.

Each call makes one run: without --run the next one that is missing. --simulate makes the same runs
in virtual time. Runs of one load are collected in benchmarks/results/autoscale, with a picture of
all of them. Times are the profile's: the time on a clock, times the speed. Only a start takes as
long as it takes on this machine. The figures count only if the machine kept the profile's time:
`kept time` says whether it did.
"""

import argparse
import json
import math
import multiprocessing
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks import results
from benchmarks.cluster import PROFILE
from benchmarks.engine_plan import emulated_plan
from benchmarks.policy_cluster import TIMEOUT_S, Cast, keeps_time
from benchmarks.process_groups import CpuMeter
from benchmarks.same_trace import LIMIT_FACTOR, delayed, live_latencies, write_trace
from benchmarks.servers import RESULTS, LlumctlServer, ServerError, control_of, running
from controller.api.client import ControlClient
from controller.api.errors import LlumctlError
from controller.api.interrupts import stops_interrupt
from controller.api.wire.requests import Event
from controller.api.wire.status import ClusterStatus
from controller.model.profile import load_profile
from controller.sim.cluster import SimCluster
from controller.sim.outcome import summarize
from controller.sim.run import Load, fitting
from controller.sim.setup import ClusterSetup, SimPolicy, sim_policy, with_autoscale
from controller.sim.workload.trace import Trace
from llumctl.lab import bench, bench_load

# The load: it rises and falls, with a burst, then nothing at all, in one hour of profile time

BURST = (0.60, 0.64)
"""When the burst begins and ends, as shares of the duration."""
NOTHING = (0.75, 0.88)
SLOW_S = 10.0


@dataclass(frozen=True, slots=True)
class Tide:
    """The rate of requests over time: two waves from `low_rate` to `high_rate`, `burst_rate` during
    the burst, and no request in the quiet part. Rates are in requests per second and times in
    seconds, both in the profile's time."""

    duration_s: float
    low_rate: float
    high_rate: float
    burst_rate: float

    def rate(self, at_s: float) -> float:
        share = at_s / self.duration_s
        if NOTHING[0] <= share < NOTHING[1]:
            return 0.0
        if BURST[0] <= share < BURST[1]:
            return self.burst_rate
        wave = (1 - math.cos(4 * math.pi * share)) / 2
        return self.low_rate + (self.high_rate - self.low_rate) * wave

    @property
    def mean_rate(self) -> float:
        """The mean of 1,000 samples."""
        step_s = self.duration_s / 1000
        return sum(self.rate((number + 0.5) * step_s) for number in range(1000)) / 1000

    def num_slow(self, arrivals_s: Sequence[float], ttfts_s: Sequence[float]) -> tuple[int, ...]:
        """How many requests had a TTFT above `SLOW_S`, by the time of their arrival: before the
        burst, from then until the quiet part, and after that."""
        counts = [0, 0, 0]
        for arrival_s, ttft_s in zip(arrivals_s, ttfts_s, strict=True):
            share = arrival_s / self.duration_s
            counts[(share >= BURST[0]) + (share >= NOTHING[0])] += ttft_s > SLOW_S
        return tuple(counts)

    def trace(self, lengths: str, setup: ClusterSetup, seed: int) -> Trace:
        """A Poisson process with this rate: arrivals are drawn at the highest rate, and each is
        kept by chance, in proportion to the rate at its time. Requests that are too long for an
        instance are left out. Lengths are those of `lengths` as `llumctl simulate` draws them."""
        most = max(self.high_rate, self.burst_rate, self.low_rate)
        number = math.ceil(1.2 * most * self.duration_s) + 100
        load = Load(lengths, most, number, drop_too_long=True)
        drawn = fitting(load.trace(seed), setup, load)[0]
        rng = Random(f"{seed}/tide")
        kept = [
            each
            for each in drawn.requests
            if rng.random() * most < self.rate(each.arrival_s) and each.arrival_s < self.duration_s
        ]
        return Trace(f"{lengths}-tide", kept, drawn.prefix_hash_tokens)


def mean_over_time(times_s: Sequence[float], numbers: Sequence[int], until_s: float) -> float:
    """The mean over time of a number that is `numbers[k]` from `times_s[k]` on, between the first
    time and `until_s`. Raises ValueError if there is no time, or if the end is not after the first.
    """
    if not times_s or until_s <= times_s[0]:
        raise ValueError("there is nothing to take the mean of")
    ends_s = [*times_s[1:], until_s]
    total = sum(
        number * max(0.0, min(end_s, until_s) - begin_s)
        for begin_s, end_s, number in zip(times_s, ends_s, numbers, strict=True)
    )
    return total / (until_s - times_s[0])


# The same requests, rule and cluster sizes in virtual time

SCALED = "autoscale"
CHECK_INTERVAL_S = 10.0
"""The time between two looks at the load, as the setting has it by default; two looks in a row
decide."""
DELAY_S = 0.01
"""The mean delay of a request on its way, by the clock (`make bench-fidelity`)."""
COLD_START_S = 1.5
"""How long an emulated instance takes to start, by the clock: between 1.0 and 1.6 s."""


@dataclass(frozen=True, slots=True)
class Scene:
    """One load, and the clusters that get it. `least` and `most`: the numbers of instances between
    which the cluster scales. `speed`: of the live runs; delays that take a fixed time on the clock
    take so many times as long in the profile's time."""

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
    """`number`: the seed of the delays of requests on their way, as two live runs differ too."""
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
    """The simulated runs, by the run and the policy."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(mp_context=context) as pool:
        waiting = {
            f"{run}, {policy}": [
                pool.submit(simulate, scene, run, policy, number) for number in range(num_each)
            ]
            for run, policy in runs
        }
        return {name: [each.result() for each in found] for name, found in waiting.items()}


# The runs as tables and as a picture

Run = Mapping[str, Any]


def figures_table(live: Sequence[Run], simulated: Mapping[str, Sequence[Run]]) -> Table:
    """Each live run, and below it the same run simulated: the mean of each figure, then its lowest
    and highest value."""
    title = (
        f"s and ms of the profile's time; slow: TTFTs above {SLOW_S:g} s before the burst,"
        " from then on, and at the end"
    )
    table = Table(title=title, box=box.SIMPLE, padding=(0, 1, 0, 0))
    for column in (
        *("run", "", "cost", "most", "failed", "TTFT mean / P99 / max, s"),
        *("TPOT P99, ms", "slow", "+ / - / kept"),
    ):
        left = column in ("run", "")
        table.add_column(column, justify="left" if left else "right", no_wrap=True)
    by_name = {f"{run['run']}, {run['policy']}": run for run in live}
    for name in (*by_name, *(each for each in simulated if each not in by_name)):
        if (run := by_name.get(name)) is not None:
            table.add_row(name, "live", *_live_cells(run))
        for row, cells in _simulated_rows(simulated.get(name, ())):
            table.add_row("" if run or row != "simulated" else name, row, *cells)
    return table


def health_table(live: Sequence[Run]) -> Table:
    """`steps`: how long steps took compared with the profile, for all instances and for the worst
    one. `cores`: of all processes on the machine except the client."""
    table = Table(
        title="whether the live runs can be believed", box=box.SIMPLE, padding=(0, 1, 0, 0)
    )
    for column in (
        *("run", "speed", "steps, worst", "late steps", "kept time", "cores", "of instances"),
        *("client", "client late, P99"),
    ):
        table.add_column(column, justify="left" if column == "run" else "right")
    for run in live:
        emulation = run["emulation"] or {}
        table.add_row(
            f"{run['run']}, {run['policy']}",
            f"{run['speed']:g}",
            "{time_ratio:.4f}, {worst_time_ratio:.4f}".format(**emulation) if emulation else "",
            f"{emulation['late_steps_ratio']:.1%}" if emulation else "",
            {True: "yes", False: "NO", None: ""}[run["kept_time"]],
            *(f"{run['cores'][part]:.2f}" for part in ("all", "instances", "client")),
            f"{1000 * run['client_lag_p99_s']:.0f} ms",
        )
    return table


def saving_lines(live: Sequence[Run], simulated: Mapping[str, Sequence[Run]]) -> list[str]:
    """What auto-scaling costs beside each fixed cluster, live and simulated."""
    lines = []
    mean = {name: _mean(runs) for name, runs in simulated.items()}
    shown = {f"{run['run']}, {run['policy']}": run for run in live}
    for title, found in (("live", shown), ("simulated", mean)):
        scaled = {name: run for name, run in found.items() if name.startswith("autoscale")}
        for name, run in scaled.items():
            for other, its in found.items():
                if other != name and (other not in scaled or name > other):
                    lines.append(f"{title}: {name} beside {other}: {_beside(run, its)}")
    return lines


def _beside(run: Run, other: Run) -> str:
    saved = run["mean_num_instances"] / other["mean_num_instances"] - 1
    text = f"cost {saved:+.0%}"
    if run["ttft_s"] and other["ttft_s"]:
        text += f", P99 TTFT {run['ttft_s']['p99'] / other['ttft_s']['p99']:.2f} of it"
    return text


def draw(path: Path, live: Sequence[Run], tide: Tide) -> Path:
    """Draws the instances of all live runs over time, above the rate of the requests."""
    picture = Figure(figsize=(11, 5), layout="constrained")
    axes = picture.subplots()
    for run in live:
        label = f"{run['run']}: {run['mean_num_instances']:.1f} in the mean"
        at_s, numbers = _changes(run, tide.duration_s)
        axes.step(at_s, numbers, where="post", label=label)
    axes.set_xlabel("s of the profile's time")
    axes.set_ylabel("instances, with those that start and drain")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    rates = axes.twinx()
    moments_s = [tide.duration_s * number / 500 for number in range(501)]
    rates.fill_between(moments_s, [tide.rate(each) for each in moments_s], alpha=0.15, color="grey")
    rates.set_ylabel("requests/s (grey)")
    rates.set_ylim(bottom=0)
    axes.legend(loc="upper right", fontsize="small")
    picture.savefig(path, format=path.suffix[1:], dpi=120)
    return path


def _changes(run: Run, until_s: float) -> tuple[list[float], list[int]]:
    """The times at which the number of instances changed, and the numbers, until `until_s`."""
    times_s, numbers = [0.0], [run["numbers"][0]]
    for at_s, number in zip(run["times_s"], run["numbers"], strict=True):
        if number != numbers[-1] and at_s < until_s:
            times_s.append(at_s)
            numbers.append(number)
    return [*times_s, until_s], [*numbers, numbers[-1]]


def _live_cells(run: Run) -> list[str]:
    return [
        f"{run['mean_num_instances']:.2f}",
        str(max(run["numbers"])),
        str(run["num_failed"] + run["num_wrong_tokens"]),
        *_latencies(run),
        " / ".join(map(str, run["num_slow"])),
        f"{run['num_added']} / {run['num_removed']} / {run['num_kept']}",
    ]


def _simulated_rows(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    if not runs:
        return []
    lowest, highest = _of_all(runs, min), _of_all(runs, max)
    found = {"simulated": _mean(runs), "lowest": lowest, "highest": highest}
    return [
        (
            name,
            [
                f"{run['mean_num_instances']:.2f}",
                f"{run['most']:.0f}",
                f"{run['num_failed']:.0f}",
                *_latencies(run),
                " / ".join(f"{number:.0f}" for number in run["num_slow"]),
                f"{run['num_added']:.0f} / {run['num_removed']:.0f} /",
            ],
        )
        for name, run in found.items()
    ]


def _latencies(run: Run) -> tuple[str, str]:
    ttft, tpot = run["ttft_s"] or {}, run["tpot_s"] or {}
    return (
        " / ".join(f"{ttft[key]:.2f}" for key in ("mean", "p99", "max")) if ttft else "",
        f"{1000 * tpot['p99']:.0f}" if tpot else "",
    )


def _mean(runs: Sequence[Run]) -> dict[str, Any]:
    return _of_all(runs, fmean)


def _of_all(runs: Sequence[Run], of: Any) -> dict[str, Any]:
    """Combines each figure of several runs; None if one of the runs lacks it."""
    found: dict[str, Any] = {}
    for key, first in runs[0].items():
        values = [run[key] for run in runs]
        if any(value is None for value in values):
            found[key] = None
        elif isinstance(first, dict):
            found[key] = _of_all(values, of)
        elif isinstance(first, list | tuple):
            found[key] = [of(each) for each in zip(*values, strict=True)]
        else:
            found[key] = of(values)
    return found


# The live runs

LOOK_EVERY_S = 0.5
STREAM_INTERVAL = 16
"""How many tokens an event has. Writing an event takes the frontend more time than everything else
for a token, and neither TTFT nor TPOT depends on the tokens in between."""
NUM_SIMULATED = 4
"""How many simulated runs there are for each: their P99 TTFTs differ by multiples."""
SIMULATED_BESIDE = (SCALED, "infaas++")
"""A further simulated run: with that policy a cluster scales too, but moves nothing. The paper
compares its savings with such a cluster."""


@dataclass
class Observed:
    """Samples of the cluster: the times, and how many instances there were, with those that start
    and drain, as each of them costs a GPU."""

    times_s: list[float] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    serving: list[int] = field(default_factory=list)
    cores: list[float] = field(default_factory=list)
    """How many cores the instances kept busy."""

    def look(self, at_s: float, status: ClusterStatus) -> None:
        self.times_s.append(at_s)
        self.numbers.append(len(status.instances))
        self.serving.append(sum(each.state == "active" for each in status.instances))
        self.cores.append(sum(each.cpu_cores or 0.0 for each in status.instances))

    def since(self, began_s: float) -> "Observed":
        """The samples with times from then on; the last sample before stands for that moment."""
        first = max(0, sum(at_s < began_s for at_s in self.times_s) - 1)
        times_s = [max(0.0, at_s - began_s) for at_s in self.times_s[first:]]
        return Observed(times_s, self.numbers[first:], self.serving[first:], self.cores[first:])


class Observer(threading.Thread):
    """Takes samples until it is told to finish. If the controller does not answer, a sample is
    missing."""

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
            with stops_interrupt():
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
    """Shows all runs of the load so far, whichever call made them."""
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
        **{"machine": results.describe(), "seed": scene.seed},
        **(figures | {"times_s": times_s, "mean_num_instances": cost}),
        "last_arrival_s": trace.requests[-1].arrival_s,
    }
    _path(folder, wanted, policy).write_text(json.dumps(content, indent=1) + "\n")
    for line in figures["warnings"]:
        console.print(f"[yellow]{line}[/yellow]")
    return int(bool(figures["num_failed"] or figures["num_wrong_tokens"]))


def _load_on(cluster: LlumctlServer, trace: Path, scene: Scene) -> dict[str, Any]:
    speed, tide = scene.speed, scene.tide
    load = bench_load.Load(trace=trace, speed=speed, duration_s=None, seed=scene.seed)
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
