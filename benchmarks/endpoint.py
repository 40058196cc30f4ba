"""Throughput and latency of the endpoint beside vLLM's own server, and several engines also beside
vllm-router in front of as many of these servers.

Both servers stay up and take turns under exactly the same load, so that other work of the machine
affects both; which one goes first alternates. The figures are ratios and differences within a
round, and their median over the rounds.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks import results
from benchmarks.engine_plan import EnginePlan, make_plan
from benchmarks.load import LoadFigures, Workload, run_load
from benchmarks.process_groups import CpuMeter, CpuUse, wait_until_quiet
from benchmarks.servers import (
    IDLE_CPU_LIMIT,
    LlumctlServer,
    RoutedVllmServers,
    Server,
    ServerError,
    VllmServer,
    idle_cpu,
    running,
)
from controller.api.interrupts import stops_interrupt

IDLE_WATCH_S = 5.0
DEFAULT_REQUESTS_PER_STREAM = 4
MIN_REQUESTS = 8
ROUTER_POLICIES = ("round_robin", "cache_aware")
# The cores of all other programs together: above this number a figure says as much about them.
MAX_OTHER_CORES = 0.25


@dataclass(frozen=True, slots=True)
class Options:
    rounds: int
    streams: tuple[int, ...]
    requests: int | None
    """The number in one measurement; None for four per stream, at least eight."""
    staggered: bool
    patience_s: float
    """How long each measurement may wait until other programs are quiet, or be repeated because
    they were not."""
    pairs: tuple[int, ...]
    """The number of engines in each comparison: 1, then 2."""
    router: Path | None
    """The path of the command vllm-router."""


@dataclass(frozen=True, slots=True)
class Measurement:
    load: LoadFigures
    cpu: CpuUse

    @property
    def cpu_ms_per_token(self) -> float:
        return 1000 * self.cpu.total_s / max(1, self.load.num_tokens)

    def as_json(self) -> dict[str, Any]:
        return {
            **self.load.as_json(),
            "cpu_s": self.cpu.parts_s,
            "other_cores": self.cpu.other_cores,
        }


@dataclass(frozen=True, slots=True)
class Round:
    ours: Measurement
    vllm: Measurement

    @property
    def throughput_ratio(self) -> float:
        return _ratio(self.ours.load.output_tokens_per_s, self.vllm.load.output_tokens_per_s)

    @property
    def ttft_difference_ms(self) -> float:
        """The difference of the medians."""
        return 1000 * (self.ours.load.ttft_s - self.vllm.load.ttft_s)

    @property
    def ttft_mean_difference_ms(self) -> float:
        return 1000 * (self.ours.load.ttft_mean_s - self.vllm.load.ttft_mean_s)

    def as_json(self) -> dict[str, Any]:
        return {
            "throughput_ratio": self.throughput_ratio,
            "ttft_difference_ms": self.ttft_difference_ms,
            "ttft_mean_difference_ms": self.ttft_mean_difference_ms,
            "ours": self.ours.as_json(),
            "vllm": self.vllm.as_json(),
        }


def main() -> int:
    options = _options()
    console = results.make_console()
    comparisons = []
    failed = 0
    try:
        with stops_interrupt():
            for num_engines in options.pairs:
                plan = make_plan(num_engines)
                for other in _others(plan, options):
                    comparison = _compare(plan, other, options, console)
                    comparisons.append(comparison)
                    failed += comparison["num_failed"]
    except KeyboardInterrupt:
        console.print("interrupted; both servers are stopped")
        return 130
    except ServerError as error:
        console.print(f"[red]{error}[/red]")
        return 1
    path = results.write("endpoint", {"comparisons": comparisons})
    console.print(f"written to {path}")
    if failed:
        console.print(f"[red]{failed} requests failed[/red]")
    return 1 if failed else 0


def _others(plan: EnginePlan, options: Options) -> Iterator[Server]:
    """The servers with which the endpoint is compared."""
    yield VllmServer(plan)
    if options.router is not None and plan.num_engines > 1:
        for policy in ROUTER_POLICIES:
            yield RoutedVllmServers(plan, options.router, policy)


def _compare(plan: EnginePlan, vllm: Server, options: Options, console: Console) -> dict[str, Any]:
    ours = LlumctlServer(plan)
    with running(ours, vllm):
        idle = {server.name: idle_cpu(server, IDLE_WATCH_S) for server in (ours, vllm)}
        for name, cores in idle.items():
            note = " (disturbs the other)" if cores > IDLE_CPU_LIMIT else ""
            console.print(f"idle, {name} uses {cores:.3f} cores{note}")
        for server in (ours, vllm):
            _warm_up(server, options)
        rounds: dict[int, list[Round]] = {streams: [] for streams in options.streams}
        for index in range(options.rounds):
            for streams, done in rounds.items():
                workload = _workload(plan, streams, options, index)
                order: tuple[Server, Server] = (ours, vllm) if index % 2 == 0 else (vllm, ours)
                measured = {s: _measure(s, workload, options.patience_s) for s in order}
                done.append(Round(measured[ours], measured[vllm]))
                console.print(_progress(index, streams, done[-1]))
    console.print(_table(plan.num_engines, vllm.name, rounds))
    every = [side for done in rounds.values() for r in done for side in (r.ours, r.vllm)]
    for error in sorted({error for side in every for error in side.load.errors}):
        console.print(f"[red]{error}[/red]")
    return {
        "num_engines": plan.num_engines,
        "beside": vllm.name,
        "engine_args": plan.engine_args,
        "omp_num_threads": plan.num_threads,
        "staggered": options.staggered,
        "idle_cores": idle,
        "num_failed": sum(side.load.num_failed for side in every),
        "streams": {
            str(streams): {"summary": _summary(done), "rounds": [r.as_json() for r in done]}
            for streams, done in rounds.items()
        },
    }


def _workload(plan: EnginePlan, streams: int, options: Options, index: int) -> Workload:
    """`index` counts the rounds; -1 is the warm-up."""
    return Workload(
        model=plan.served_model_name,
        vocab_size=plan.vocab_size,
        num_streams=streams,
        num_requests=options.requests or max(MIN_REQUESTS, DEFAULT_REQUESTS_PER_STREAM * streams),
        seed=100_000 * index + 1000 * streams,
        staggered=options.staggered,
    )


def _warm_up(server: Server, options: Options) -> None:
    """Runs every size of batch once, from one stream to the most."""
    workload = _workload(server.plan, max(options.streams), options, index=-1)
    run_load(server.base_url, replace(workload, num_requests=workload.num_streams))


def _measure(server: Server, workload: Workload, patience_s: float) -> Measurement:
    """The first measurement that other programs did not disturb, or the last one before patience
    ended."""
    give_up_s = time.monotonic() + patience_s
    while True:
        wait_until_quiet(MAX_OTHER_CORES, give_up_s - time.monotonic())
        meter = CpuMeter(server.parts())
        load = run_load(server.base_url, workload)
        measured = Measurement(load, meter.used())
        if measured.cpu.other_cores <= MAX_OTHER_CORES or time.monotonic() >= give_up_s:
            return measured
        workload = replace(workload, seed=workload.seed + 1)  # the old prompts are cached


def _summary(done: list[Round]) -> dict[str, Any]:
    ratios = [r.throughput_ratio for r in done]
    differences = [r.ttft_difference_ms for r in done]
    return {
        "throughput_ratio": statistics.median(ratios),
        "throughput_ratio_min": min(ratios),
        "throughput_ratio_max": max(ratios),
        "ttft_difference_ms": statistics.median(differences),
        "ttft_difference_ms_min": min(differences),
        "ttft_difference_ms_max": max(differences),
        "ttft_mean_difference_ms": statistics.median(r.ttft_mean_difference_ms for r in done),
        "ours": _medians([r.ours for r in done]),
        "vllm": _medians([r.vllm for r in done]),
    }


def _medians(measured: list[Measurement]) -> dict[str, float]:
    names = (
        *("output_tokens_per_s", "ttft_s", "ttft_mean_s", "ttft_p99_s"),
        *("tpot_s", "itl_s", "itl_p99_s", "e2e_latency_s"),
    )
    figures = {n: statistics.median(getattr(m.load, n) for m in measured) for n in names}
    return figures | {
        "cpu_ms_per_token": statistics.median(m.cpu_ms_per_token for m in measured),
        "other_cores": statistics.median(m.cpu.other_cores for m in measured),
    }


def _table(num_engines: int, beside: str, rounds: dict[int, list[Round]]) -> Table:
    title = "one engine" if num_engines == 1 else f"{num_engines} engines"
    table = Table(title=f"{title}: llumctl / {beside}, medians of the rounds", box=box.SIMPLE)
    for column in (
        *("streams", "tok/s", "ratio", "(range)", "TTFT ms", "more", "(range)"),
        *("TPOT ms", "CPU ms/tok", "others"),
    ):
        table.add_column(column, justify="right")
    for streams, done in rounds.items():
        s = _summary(done)
        ours, vllm = s["ours"], s["vllm"]
        table.add_row(
            str(streams),
            f"{ours['output_tokens_per_s']:.0f} / {vllm['output_tokens_per_s']:.0f}",
            f"{s['throughput_ratio']:.3f}",
            results.spread([r.throughput_ratio for r in done]),
            f"{1000 * ours['ttft_s']:.1f} / {1000 * vllm['ttft_s']:.1f}",
            f"{s['ttft_difference_ms']:+.1f}",
            results.spread([r.ttft_difference_ms for r in done], "+.1f"),
            f"{1000 * ours['tpot_s']:.2f} / {1000 * vllm['tpot_s']:.2f}",
            f"{ours['cpu_ms_per_token']:.2f} / {vllm['cpu_ms_per_token']:.2f}",
            f"{ours['other_cores']:.1f} / {vllm['other_cores']:.1f}",
        )
    return table


def _progress(index: int, streams: int, done: Round) -> str:
    ours, vllm = done.ours.load, done.vllm.load
    return (
        f"round {index + 1}, {streams} streams:"
        f" {ours.output_tokens_per_s:.0f} / {vllm.output_tokens_per_s:.0f} tok/s,"
        f" TTFT {1000 * ours.ttft_s:.1f} / {1000 * vllm.ttft_s:.1f} ms,"
        f" others {done.ours.cpu.other_cores:.2f} / {done.vllm.cpu.other_cores:.2f} cores"
    )


def _ratio(ours: float, vllm: float) -> float:
    return ours / vllm if vllm else 0.0


def _options() -> Options:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.endpoint", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", default="1,8,32", help="concurrent streams, with commas")
    parser.add_argument("--requests", type=int, help="of one measurement; default 4 per stream")
    parser.add_argument(
        "--in-step", action="store_true", help="all streams begin at once with full requests"
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=0.0,
        help="seconds for which each measurement waits for a quiet machine",
    )
    parser.add_argument("--router", type=Path, help="the command vllm-router, to compare with it")
    parser.add_argument("--skip-single", action="store_true", help="no comparison of one engine")
    parser.add_argument("--skip-pair", action="store_true", help="no comparison of two engines")
    given = parser.parse_args()
    wanted = {1: not given.skip_single, 2: not given.skip_pair}
    return Options(
        rounds=given.rounds,
        streams=tuple(int(part) for part in given.streams.split(",")),
        requests=given.requests,
        staggered=not given.in_step,
        patience_s=given.patience,
        pairs=tuple(num for num, is_wanted in wanted.items() if is_wanted),
        router=given.router,
    )


if __name__ == "__main__":
    sys.exit(main())
