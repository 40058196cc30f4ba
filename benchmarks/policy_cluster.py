"""A live cluster under one policy, and a load on it, from `up` to `down`."""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.cluster_events import EventTap, Told, evictions, preemption_loss_s
from benchmarks.cpu_meter import CpuMeter
from benchmarks.engine_plan import emulated_plan
from benchmarks.same_trace import Figures, live_latencies, live_settings, live_steady, live_steps
from benchmarks.servers import LlumctlServer, control_of, running
from controller.sim.setup import SimPolicy
from llumctl.lab import bench
from llumctl.lab.bench import Measured
from llumctl.lab.bench_load import Load

# Of one run: far more than any has events between two looks at them.
MAX_EVENTS = 200_000
# In profile time. A request waits its turn in an overloaded cluster: none is to fail by the clock.
TIMEOUT_S = 7200.0
# Beyond these the machine was too busy for its figures to be the policy's.
MAX_TIME_RATIO = 1.02
MAX_LATE_RATIO = 0.05


@dataclass(frozen=True, slots=True)
class Cast:
    """Who plays: `num_instances` engines of a profile, `speed` times as fast, under a policy."""

    policy: SimPolicy
    num_instances: int
    profile: str
    speed: float
    num_blocks: int | None = None
    """KV blocks of an engine; None: the profile's."""

    def settings(self) -> Mapping[str, Any]:
        settings = live_settings(self.policy, self.speed) | {
            "emulated.speed": self.speed,
            "emulated.profile": self.profile,
            "emulated.prefix_caching": False,
            "control.max_events": MAX_EVENTS,
        }
        if self.num_blocks is not None:
            settings["emulated.num_blocks"] = self.num_blocks
        return settings


def emulated_cluster(cast: Cast) -> LlumctlServer:
    plan = emulated_plan(cast.num_instances)
    return LlumctlServer(plan, settings=cast.settings(), emulated=True)


def play(cast: Cast, trace: Path, seed: int) -> Figures:
    """Plays the trace on a cluster of its own. Raises KeyboardInterrupt: Ctrl-C ended the load."""
    cluster = emulated_cluster(cast)
    began_s = time.perf_counter()
    with running(cluster):
        figures = load_on(cluster, trace, seed, cast.speed)
    return figures | {
        "settings": dict(cast.settings()),
        "took_s": time.perf_counter() - began_s,
    }


def load_on(cluster: LlumctlServer, trace: Path, seed: int, speed: float) -> Figures:
    """Plays the trace on a cluster that serves, `speed` times as fast. Raises KeyboardInterrupt."""
    load = Load(trace=trace, speed=speed, duration_s=None, seed=seed)
    name = cluster.plan.cluster
    offset_s = time.time() - time.perf_counter()
    with control_of(name) as control:
        tap = EventTap(control)
        tap.start()
        meter = CpuMeter(cluster.parts())
        try:
            measured = bench.run(bench.Wanted(load=load, cluster=name, timeout_s=TIMEOUT_S / speed))
        finally:
            told = tap.finish()
        cpu = meter.used()
    if measured.results.interrupted:
        raise KeyboardInterrupt
    duration_s = measured.figures.duration_s
    return figures_of(measured, told, offset_s, speed) | {
        "speed": speed,
        "lags_s": [speed * lag_s for lag_s in lags_s(measured)],
        "cores": {part: used_s / duration_s for part, used_s in cpu.parts_s.items()},
        "other_cores": cpu.other_cores,
        "bench": measured.as_json(),
    }


def lags_s(measured: Measured) -> list[float]:
    """How late the client sent each request, in the order of the trace."""
    by_number = {result.request.index: result.lag_s for result in measured.results.ended}
    return [round(by_number[number], 6) for number in sorted(by_number)]


def figures_of(measured: Measured, told: Told, offset_s: float, speed: float) -> Figures:
    """Seconds are the profile's. `offset_s`: seconds since the epoch less the client's clock."""
    found = measured.figures
    evicted = evictions(told.events, measured.sender.cache_salt, offset_s)
    losses_s = [
        speed * preemption_loss_s(result, evicted.get(result.request.index, ()))
        for result in measured.results.ended
    ]
    figures = live_latencies(measured, speed) | live_steps(measured.statuses, speed)
    return figures | {
        "num_requests": found.num_requests,
        "num_failed": found.num_failed + found.num_unfinished,
        "num_wrong_tokens": found.num_wrong_tokens
        + found.num_lost_tokens
        + found.num_doubled_tokens,
        "preemption_loss_s": fmean(losses_s) if losses_s else None,
        "num_evictions": sum(len(its) for its in evicted.values()),
        "num_moves": told.number("migrated"),
        "num_failed_moves": told.number("migration_failed"),
        "num_not_moved": told.number("not_moved"),
        "steady": live_steady(measured),
        "duration_s": speed * found.duration_s,
        "emulation": None if found.emulation is None else asdict(found.emulation),
        "kept_time": None if found.emulation is None else keeps_time(measured),
        "warnings": [*measured.warnings, *_warnings(measured, told)],
    }


def keeps_time(measured: Measured) -> bool:
    emulation = measured.figures.emulation
    return (
        emulation is not None
        and emulation.worst_time_ratio <= MAX_TIME_RATIO
        and emulation.late_steps_ratio <= MAX_LATE_RATIO
    )


def _warnings(measured: Measured, told: Told) -> list[str]:
    lines = []
    if measured.figures.emulation is not None and not keeps_time(measured):
        lines.append("the machine did not keep the profile's time: run it with a lower --speed")
    if told.num_missed:
        lines.append(f"{told.num_missed} events are missing: evictions and moves are too few")
    if measured.workload.num_shortened:
        lines.append(f"{measured.workload.num_shortened} requests were shortened")
    return lines
