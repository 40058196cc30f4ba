"""What scheduling costs: the pure core by cluster size, and a controller's loop under load.

The core: a dispatch decision, a rescheduling round, the choice of one move. The loop: how late
it runs what is due, and how long a frontend waits for a dispatch, while 64 instances report to
it every 5 ms. The same loop with nothing to do is this machine's floor.
"""

import argparse
import statistics
import sys
from typing import Any

from rich import box
from rich.table import Table

from benchmarks import results
from benchmarks.controller_load import ControllerBench, Load, Seen
from benchmarks.core_times import CoreTimes, ReliefTimes, core_times, relief_times, sizes
from benchmarks.process_groups import signals_interrupt

RUNNING = (10, 1000)
DECISION_TARGET_S = 50e-6
STALL_TARGET_S = 1e-3


def main() -> int:
    options = _options()
    console = results.make_console()
    figures: dict[str, Any] = {"options": vars(options), "core": [], "relief": [], "loop": []}
    try:
        with signals_interrupt():
            if "core" in options.parts:
                figures["core"], figures["relief"] = _core(options)
                console.print(_core_table(figures["core"]))
                console.print(_relief_table(figures["relief"]))
            if "loop" in options.parts:
                figures["loop"] = _loop(options)
                console.print(_loop_table(figures["loop"]))
    except KeyboardInterrupt:
        console.print("interrupted; nothing runs any more")
        return 130
    for line in _verdicts(figures):
        console.print(line)
    console.print(f"written to {results.write('scheduler', figures)}")
    return 0


def _core(options: argparse.Namespace) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    core = [
        _core_figures(core_times(number, num_running, options.repeats))
        for number in sizes(options.largest)
        for num_running in RUNNING
    ]
    relief = [
        _relief_figures(relief_times(number, options.repeats))
        for number in (16, 256, 1024)
        if number <= options.largest
    ]
    return core, relief


def _loop(options: argparse.Namespace) -> list[dict[str, Any]]:
    every_s = options.status_ms / 1000
    loads = (
        Load("nothing", None, 0.0),
        Load("dispatches", None, options.asks),
        Load("statuses", every_s, 0.0),
        Load("both", every_s, options.asks),
    )
    bench = ControllerBench(options.instances)
    try:
        bench.start()
        rounds = [
            bench.measure(load, options.seconds) for _ in range(options.rounds) for load in loads
        ]
    finally:
        bench.stop()
    return [_loop_figures([seen for seen in rounds if seen.load == load]) for load in loads]


def _core_figures(times: CoreTimes) -> dict[str, Any]:
    return {
        "num_instances": times.num_instances,
        "num_running": times.num_running,
        "decision_warm_s": spread(times.warm_s),
        "decision_as_it_runs_s": spread(times.as_it_runs_s),
        "decision_cold_s": spread(times.cold_s),
        "status_s": spread(times.statuses_s),
        "round_s": spread(times.round_s),
    }


def _relief_figures(times: ReliefTimes) -> dict[str, Any]:
    return {
        "num_candidates": times.num_candidates,
        "chosen_s": spread(times.chosen_s),
        "refused_s": spread(times.refused_s),
    }


def _loop_figures(rounds: list[Seen]) -> dict[str, Any]:
    """Of all rounds together; and the P99 of each, as some may be disturbed."""
    stall_s = [value for seen in rounds for value in seen.stall_s]
    dispatch_s = [value for seen in rounds for value in seen.dispatch_s]
    duration_s = sum(seen.duration_s for seen in rounds)
    return {
        "load": rounds[0].load.name,
        "stall_s": spread(stall_s),
        "stall_p99_of_rounds_s": [spread(seen.stall_s)["p99"] for seen in rounds],
        "dispatch_s": spread(dispatch_s) if dispatch_s else None,
        "dispatch_p99_of_rounds_s": [
            spread(seen.dispatch_s)["p99"] for seen in rounds if seen.dispatch_s
        ],
        "loop_cores": statistics.fmean(seen.loop_cores for seen in rounds),
        "cores": statistics.fmean(seen.cores for seen in rounds),
        "statuses_per_s": sum(seen.num_statuses for seen in rounds) / duration_s,
        "dispatches_per_s": sum(seen.num_dispatches for seen in rounds) / duration_s,
    }


def spread(values: list[float]) -> dict[str, float]:
    """Median, P99 and maximum; the P99 is the value that 1 in 100 are not below."""
    ordered = sorted(values)
    return {
        "p50": statistics.median(ordered),
        "p99": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)],
        "max": ordered[-1],
    }


def _verdicts(figures: dict[str, Any]) -> list[str]:
    lines = []
    for row in figures["core"]:
        if row["num_instances"] == 1024:
            median_s = row["decision_as_it_runs_s"]["p50"]
            lines.append(
                f"a decision at 1,024 instances, {row['num_running']:,} running on each:"
                f" {median_s * 1e6:.0f} us, {_met(median_s <= DECISION_TARGET_S)} (50 us)"
            )
    for row in figures["loop"]:
        if row["load"] == "both":
            p99_s = row["stall_s"]["p99"]
            lines.append(f"stall P99: {p99_s * 1e3:.2f} ms, {_met(p99_s <= STALL_TARGET_S)} (1 ms)")
    return lines


def _met(is_met: bool) -> str:
    return "as wanted" if is_met else "[red]more than wanted[/red]"


def _core_table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="the core, us: median / P99", box=box.SIMPLE)
    columns = {
        "decision": "decision_as_it_runs_s",
        "no news": "decision_warm_s",
        "all news": "decision_cold_s",
        "a status": "status_s",
        "round": "round_s",
    }
    for column in ("instances", "running each", *columns):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            f"{row['num_instances']:,}",
            f"{row['num_running']:,}",
            *(_pair(row[key], 1e6) for key in columns.values()),
        )
    return table


def _relief_table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="the choice of one move, us: median / P99", box=box.SIMPLE)
    for column in ("candidates", "the first may move", "none may"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            f"{row['num_candidates']:,}", _pair(row["chosen_s"], 1e6), _pair(row["refused_s"], 1e6)
        )
    return table


def _loop_table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="a controller's loop, ms", box=box.SIMPLE)
    for column in (
        *("load", "statuses/s", "dispatches/s", "stall P50", "P99", "P99 by round", "max"),
        *("dispatch P50", "P99", "cores, loop", "all"),
    ):
        table.add_column(column, justify="left" if column == "load" else "right")
    for row in rows:
        stall, dispatch = row["stall_s"], row["dispatch_s"]
        by_round = [1e3 * value for value in row["stall_p99_of_rounds_s"]]
        table.add_row(
            row["load"],
            f"{row['statuses_per_s']:,.0f}",
            f"{row['dispatches_per_s']:,.0f}",
            f"{1e3 * stall['p50']:.2f}",
            f"{1e3 * stall['p99']:.2f}",
            results.spread(by_round),
            f"{1e3 * stall['max']:.1f}",
            *(f"{1e3 * dispatch[key]:.2f}" if dispatch else "" for key in ("p50", "p99")),
            f"{row['loop_cores']:.2f}",
            f"{row['cores']:.2f}",
        )
    return table


def _pair(found: dict[str, float], scale: float) -> str:
    return f"{found['p50'] * scale:,.1f} / {found['p99'] * scale:,.1f}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scheduler",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--parts", nargs="+", choices=["core", "loop"], default=["core", "loop"])
    parser.add_argument("--largest", type=int, default=1024, help="instances, of the core")
    parser.add_argument("--repeats", type=int, default=500)
    parser.add_argument("--instances", type=int, default=64, help="that report to the loop")
    parser.add_argument("--status-ms", type=float, default=5.0, help="of each instance")
    parser.add_argument("--asks", type=float, default=200.0, help="for dispatches, per second")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each load and round")
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
