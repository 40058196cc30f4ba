"""The simulator beside what it simulates: one trace live and in virtual time, with the same policy,
the same profile and the same settings.

Each call makes the missing runs of one part, `emulated`, `sessions` or `vllm`, on one cluster, and
keeps them in benchmarks/results/fidelity. `--short`: fewer requests and one run each.
"""

import argparse
import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from rich import box
from rich.console import Console, JustifyMethod
from rich.table import Table

from benchmarks import results
from benchmarks.engine_plan import EnginePlan, make_plan
from benchmarks.policy_cluster import Cast, emulated_cluster, load_on
from benchmarks.same_trace import (
    LIMIT_FACTOR,
    Figures,
    as_sent,
    delayed,
    live_settings,
    simulated,
    smaller,
    write_trace,
)
from benchmarks.servers import RESULTS, LlumctlServer, ServerError, llumctl, running
from controller.api.errors import LlumctlError
from controller.api.interrupts import stops_interrupt
from controller.model.profile import LatencyProfile, load_profile
from controller.sim.rates import saturation_rate
from controller.sim.run import Load, fitting
from controller.sim.setup import ClusterSetup, Fault, SimPolicy, sim_policy, with_settings
from controller.sim.workload.trace import Trace, TraceRequest
from llumctl.lab.paper import settings as paper_settings

# How long engines waited for a core that other programs had, by Linux's account of each thread. On
# a machine with other work, these waits make the steps of a real engine longer, and neither a
# profile (`controller.main.profile.engine_process`) nor the simulator has them.

PROC = Path("/proc")


class CoreWaits:
    """Measures engines from its creation on: in each process, the thread that ran most."""

    def __init__(self, pids: Iterable[int], proc: Path = PROC) -> None:
        self._proc = proc
        self._before = {pid: self._threads(pid) for pid in pids}

    def waited_s(self) -> float | None:
        """The total time; None if Linux does not tell."""
        waited_ns = 0
        for pid, before in self._before.items():
            after = self._threads(pid)
            grown = [
                (ran - before.get(thread, (0, 0))[0], waited - before.get(thread, (0, 0))[1])
                for thread, (ran, waited) in after.items()
            ]
            if not grown:
                return None
            waited_ns += max(grown)[1]
        return waited_ns / 1e9

    def _threads(self, pid: int) -> dict[str, tuple[int, int]]:
        """For each thread, nanoseconds on a core and nanoseconds of waiting for one."""
        found = {}
        for path in (self._proc / str(pid) / "task").glob("*/schedstat"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                ran, waited, *_ = path.read_text("utf-8").split()
                found[path.parent.name] = int(ran), int(waited)
        return found


def step_on_a_core_s(run: Mapping[str, Any]) -> float | None:
    """The mean step of a live run, without the time for which the engine waited for a core."""
    if run.get("waited_share") is None or run["step_s"] is None:
        return None
    return float(run["step_s"] * (1 - run["waited_share"]))


# The two clusters, the trace of each, and how each is simulated.
#
# emulated: 4 instances of `a10-llama-7b` with 300 KV blocks each, so that memory runs short within
# minutes and requests move. Their step times are the profile's by construction: the run compares
# everything around the steps.
#
# vllm: one real engine of the embedded model. Two engines would share two cores with the frontend
# and the client and slow each other's steps, which no profile of one engine can tell.
#
# sessions: eight emulated engines with prefix caches, and agents, whose turns wait for each other.
# The memory is never short; what counts is where a prompt is cached, and what is fetched.
#
# The probe sends one request at a time: what its client waits for besides the engine is the
# overhead that is added to the simulator's TTFT.

LENGTHS = "S-S"
NUM_EMULATED = 4
NUM_BLOCKS = 300
RATE = 4.6
"""The rate on the emulated instances: 0.7 of the rate at which they saturate, by the simulator's
estimate. Requests move, and hardly any is evicted."""
LOAD_OF_ONE = 0.6
"""The load of the real engine, as a share of the rate at which it saturates by that estimate."""
SESSIONS = "agents"
SESSIONS_PROFILE = "h100-llama-8b-256k"
NUM_FOR_SESSIONS = 8
SESSIONS_RATE = 1.5
"""Requests per second of all sessions: 0.8 of what `llumnix+` serves well, by decision 0062."""
PROBE_LENGTHS = (32, 96, 192)
PROBE_GAP_S = 0.5
NUM_PROBES = 24
PROFILE_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Size:
    num_requests: int
    num_runs: int


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the comparison. `profile`: the simulator's; live engines are `speed` times as
    fast."""

    name: str
    profile: LatencyProfile
    policy: SimPolicy
    num_instances: int
    speed: float
    make_cluster: Callable[[], LlumctlServer]
    lengths: str = LENGTHS
    rate: float = RATE

    @property
    def has_sessions(self) -> bool:
        return self.lengths == SESSIONS

    def setup(self) -> ClusterSetup:
        return ClusterSetup(
            self.profile,
            self.policy,
            self.num_instances,
            prefix_caching=self.has_sessions,
            limit_factor=LIMIT_FACTOR,
        )

    def busy_setup(self, slowdown: float) -> ClusterSetup:
        """The setup with steps that take `slowdown` times as long as the profile says."""
        faults = tuple(
            Fault(0.0, "slow-steps", f"i-{number}", slowdown)
            for number in range(self.num_instances)
        )
        return replace(self.setup(), faults=faults)

    def trace(self, num_requests: int, seed: int) -> Trace:
        """The trace, without requests that are too long for an instance."""
        setup = self.setup()
        load = Load(self.lengths, self.rate, num_requests, drop_too_long=True)
        trace, _ = fitting(load.trace(seed), setup, load)
        if self.name != "vllm":
            return trace
        rate = LOAD_OF_ONE * saturation_rate(trace, setup.profile, 1, setup.mode)
        faster = [each.arriving(each.arrival_s * RATE / rate) for each in trace.requests]
        return Trace(trace.name, faster)

    def probe(self) -> Trace:
        """A trace of one request at a time: each arrives when the one before has long ended."""
        gap_s = PROBE_GAP_S * self.speed
        return Trace(
            "probe",
            [
                TraceRequest(number * gap_s, PROBE_LENGTHS[number % len(PROBE_LENGTHS)], 2)
                for number in range(NUM_PROBES)
            ],
        )


def emulated(speed: float) -> Part:
    profile = smaller(load_profile("a10-llama-7b"), NUM_BLOCKS)
    policy = _policy()
    cast = Cast(policy, NUM_EMULATED, "a10-llama-7b", speed, NUM_BLOCKS)
    return Part("emulated", profile, policy, NUM_EMULATED, speed, lambda: emulated_cluster(cast))


def sessions(speed: float) -> Part:
    profile, policy = load_profile(SESSIONS_PROFILE), sim_policy("llumnix+")
    cast = Cast(policy, NUM_FOR_SESSIONS, SESSIONS_PROFILE, speed, prefix_caching=True)
    return Part(
        *("sessions", profile, policy, NUM_FOR_SESSIONS, speed),
        lambda: emulated_cluster(cast),
        SESSIONS,
        SESSIONS_RATE,
    )


def vllm(folder: Path) -> Part:
    """Measures the engine's profile once; the file stays in the folder. Raises ServerError."""
    plan, policy = make_plan(1), _policy()
    path = folder / "embedded.toml"
    if not path.exists():
        _measure_profile(plan, path)
    # The profile is measured with this setting too; without it, an evicted request would find its
    # blocks again.
    settings = live_settings(policy, 1.0) | {"engine.enable_prefix_caching": False}
    return Part(
        *("vllm", load_profile(str(path)), policy, 1, 1.0),
        lambda: LlumctlServer(plan, settings=settings),
    )


def _policy() -> SimPolicy:
    return with_settings(sim_policy("llumnix"), paper_settings("llumnix", LENGTHS))


def _measure_profile(plan: EnginePlan, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    arguments: Mapping[str, object] = {
        "kv_cache_memory_bytes": plan.engine_args["kv_cache_memory_bytes"]
    }
    given = [part for item in arguments.items() for part in ("--engine-arg", "{}={}".format(*item))]
    command = [llumctl(), "profile", "-n", "1", "-o", str(path), *given]
    try:
        subprocess.run(command, check=True, timeout=PROFILE_TIMEOUT_S)
    except (subprocess.SubprocessError, OSError) as error:
        raise ServerError(f"llumctl profile: {error}") from error


# How far apart the runs are, and whether that is near enough

MIN_RUNS_FOR_A_SPREAD = 5


@dataclass(frozen=True, slots=True)
class Aim:
    """What counts as near enough. `within`: the largest difference, relative to the mean of the
    live runs. `or_in_spread`: a figure between the lowest and the highest of at least five live
    runs counts too."""

    title: str
    figure: str
    of: str
    within: float
    or_in_spread: bool = False


AIMS = (
    Aim("step", "step_s", "", 0.05),
    Aim("TTFT mean", "ttft_s", "mean", 0.10),
    Aim("TPOT mean", "tpot_s", "mean", 0.10),
    Aim("TTFT P99", "ttft_s", "p99", 0.20, or_in_spread=True),
    Aim("TPOT P99", "tpot_s", "p99", 0.20, or_in_spread=True),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of all runs; the mean of the simulated ones counts."""

    aim: Aim
    live_s: tuple[float, ...]
    simulated_s: tuple[float, ...]
    busy_s: tuple[float, ...] = ()
    """The figures of simulated runs whose steps are as slow as those of the live runs were on this
    machine."""

    @property
    def difference(self) -> float:
        """The difference of the simulator, relative to the live runs."""
        return fmean(self.simulated_s) / fmean(self.live_s) - 1

    @property
    def is_met(self) -> bool:
        if abs(self.difference) <= self.aim.within:
            return True
        has_spread = self.aim.or_in_spread and len(self.live_s) >= MIN_RUNS_FOR_A_SPREAD
        return has_spread and min(self.live_s) <= fmean(self.simulated_s) <= max(self.live_s)


def rows(
    live: Sequence[Mapping[str, Any]],
    simulated: Sequence[Mapping[str, Any]],
    overhead_s: float,
    as_busy: Sequence[Mapping[str, Any]] = (),
) -> list[Row]:
    """`overhead_s`: the time that the client waits for other things than the engine. The simulator
    has no such time, so it is added to its TTFT. Figures that the runs lack have no row."""
    found = []
    for aim in AIMS:
        more_s = overhead_s if aim.figure == "ttft_s" else 0.0
        values, its_own, busy = (
            tuple(value for run in runs if (value := _value(run, aim)) is not None)
            for runs in (live, simulated, as_busy)
        )
        if values and its_own:
            found.append(Row(aim, values, *(_more(more_s, each) for each in (its_own, busy))))
    return found


def _more(more_s: float, values: Sequence[float]) -> tuple[float, ...]:
    return tuple(more_s + value for value in values)


def _value(figures: Mapping[str, Any], aim: Aim) -> float | None:
    found = figures[aim.figure]
    if found is not None and aim.of:
        found = found[aim.of]
    return found if found is None else float(found)


def table(title: str, found: Sequence[Row]) -> Table:
    shown = Table(title=title, box=box.SIMPLE, padding=(0, 1, 0, 0))
    for column in (
        *("ms", "live: mean (range)", "simulated: mean (range)", "differs", "aim", ""),
        *("as busy", "differs"),
    ):
        justify: JustifyMethod = "left" if column in ("ms", "") else "right"
        shown.add_column(column, justify=justify, no_wrap=True)
    for row in found:
        aim = f"{row.aim.within:.0%}" + (" or spread" if row.aim.or_in_spread else "")
        shown.add_row(
            row.aim.title,
            _spread(row.live_s),
            _spread(row.simulated_s),
            f"{row.difference:+.1%}",
            aim,
            "yes" if row.is_met else "NO",
            f"{1000 * fmean(row.busy_s):.1f}" if row.busy_s else "",
            f"{fmean(row.busy_s) / fmean(row.live_s) - 1:+.1%}" if row.busy_s else "",
        )
    return shown


def _spread(values_s: Sequence[float]) -> str:
    mean, lowest, highest = (
        f"{1000 * value:.1f}" for value in (fmean(values_s), min(values_s), max(values_s))
    )
    return f"{mean} ({lowest}..{highest})"


def slowdown(run: Mapping[str, Any]) -> float:
    """How many times as long the steps of a live run took as on a quiet machine. This is estimated
    without the steps themselves: by the emulated engines' clocks, or by the waits for a core."""
    if run["emulation"]:
        return float(run["emulation"]["time_ratio"])
    waited_share = run.get("waited_share")
    return 1.0 if waited_share is None else 1 / (1 - waited_share)


def health(live: Sequence[Mapping[str, Any]]) -> Table:
    """How busy the machine was with other things, for each run."""
    shown = Table(title="whether the live runs can be believed", box=box.SIMPLE)
    for column in (
        *("run", "failed", "cores", "others", "engines waited", "step without it, ms"),
        *("late steps", "kept time", "moves", "evictions"),
    ):
        shown.add_column(column, justify="right")
    for number, run in enumerate(live, 1):
        emulation, step_s = run["emulation"], step_on_a_core_s(run)
        shown.add_row(
            *(str(number), str(run["num_failed"])),
            *(f"{sum(run['cores'].values()):.2f}", f"{run['other_cores']:.2f}"),
            f"{run['waited_share']:.1%}" if run.get("waited_share") is not None else "",
            "" if step_s is None else f"{1000 * step_s:.2f}",
            f"{emulation['late_steps_ratio']:.1%}" if emulation else "",
            {True: "yes", False: "NO", None: ""}[run["kept_time"]],
            *(str(run["num_moves"]), str(run["num_evictions"])),
        )
    return shown


# The runs

PARTS = ("emulated", "sessions", "vllm")
LONG = Size(num_requests=1200, num_runs=5)
SHORT = Size(num_requests=250, num_runs=1)
NUM_SIMULATED = 40
"""How many simulated runs there are. Each has the requests that the clients of the live runs sent,
at the same times, with other delays (`same_trace.delayed`)."""


def main() -> int:
    options = _options()
    console = results.make_console()
    size = SHORT if options.short else LONG
    folder = RESULTS / "fidelity" / ("short" if options.short else "long")
    code = 0
    for name in (options.part,) if options.part else PARTS:
        try:
            with stops_interrupt():
                part = _part(name, options.speed)
                if not options.show:
                    _play_missing(console, part, folder / name, size, options)
        except KeyboardInterrupt:
            console.print("interrupted; nothing runs any more")
            return 130
        except (ServerError, LlumctlError) as error:
            console.print(f"[red]cut short: {error}[/red]")
            code = 1
            continue
        _show(console, part, folder / name, part.trace(size.num_requests, options.seed))
    return code


def _part(name: str, speed: float) -> Part:
    if name == "vllm":
        return vllm(RESULTS / "fidelity")
    return emulated(speed) if name == "emulated" else sessions(speed)


def _play_missing(
    console: Console, part: Part, folder: Path, size: Size, options: argparse.Namespace
) -> None:
    missing = [n for n in range(1, size.num_runs + 1) if not (folder / f"run-{n}.json").exists()]
    if not missing:
        return
    trace, probe = part.trace(size.num_requests, options.seed), part.probe()
    path, probe_path = (
        write_trace(each, folder / f"{what}.jsonl")
        for what, each in (("trace", trace), ("probe", probe))
    )
    cluster = part.make_cluster()
    with running(cluster):
        for number in missing:
            console.print(f"[bold]{part.name}, run {number} of {size.num_runs}[/bold]")
            waited = simulated(part.setup(), probe)["ttft_s"]["p50"]
            probed = load_on(cluster, probe_path, options.seed, part.speed)
            figures = _measured(part, cluster, path, options.seed)
            content = {
                "overhead_s": probed["ttft_s"]["p50"] - waited,
                "machine": results.describe(),
                **figures,
            }
            _write(folder / f"run-{number}.json", content)


def _measured(part: Part, cluster: LlumctlServer, trace: Path, seed: int) -> Figures:
    pids = [pid for pid, kind in cluster.parts().items() if kind == "engine"]
    waits = CoreWaits(pids)
    figures = load_on(cluster, trace, seed, part.speed)
    waited_s, busy_s = waits.waited_s(), figures["busy_s"]
    is_known = part.name == "vllm" and waited_s is not None and busy_s
    return figures | {
        "ttft_s": figures["ttft_from_sent_s"],
        "waited_share": waited_s / busy_s if is_known else None,
    }


def _show(console: Console, part: Part, folder: Path, trace: Trace) -> None:
    live = [_read(path) for path in sorted(folder.glob("run-*.json"))]
    if not live:
        return
    overheads_s = [run["overhead_s"] for run in live]
    overhead_s = median(overheads_s)
    if part.has_sessions:
        delays = [trace]  # a turn comes when the one before was answered, whatever its time says
    else:
        sent = [as_sent(trace, run["lags_s"]) for run in live]
        delays = [delayed(sent[n % len(sent)], overhead_s, n) for n in range(NUM_SIMULATED)]
    found = [simulated(part.setup(), each) for each in delays]
    slow = part.busy_setup(fmean(slowdown(run) for run in live))
    busy = [simulated(slow, each) for each in delays]
    console.print(table(part.name, rows(live, found, overhead_s, busy)))
    moves, evicted = (
        f"{min(values)} to {max(values)}"
        for values in ([run[key] for run in found] for key in ("num_moves", "num_evictions"))
    )
    console.print(
        f"{1000 * overhead_s:.2f} ms of the simulated TTFT are what a single request waits for"
        f" beside the engine ({', '.join(f'{1000 * each:.2f}' for each in overheads_s)});"
        f" simulated: {moves} moves, {evicted} evictions"
    )
    console.print(health(live))


def _write(path: Path, figures: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return found


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fidelity",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--part", choices=PARTS, help="all, one after the other, if not given")
    parser.add_argument("--short", action="store_true", help="two minutes for each part")
    parser.add_argument("--speed", type=float, default=1.0, help="of the emulated engines")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", action="store_true", help="only show what is there")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
