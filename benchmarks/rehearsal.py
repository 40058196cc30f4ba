"""A rehearsal: emulated instances on this machine under open-loop load.

It shows CPU and memory use, whether every token was right, and how well the machine kept the
profile's time. The load and its figures are those of `llumctl bench`.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
from rich import box
from rich.table import Table

from benchmarks import results
from benchmarks.engine_plan import emulated_plan
from benchmarks.process_groups import CpuMeter
from benchmarks.servers import LlumctlServer, ServerError, llumctl, running
from controller.api.interrupts import stops_interrupt

IDLE_S = 15.0
# The first requests of a run cost more than later ones.
SETTLE_S = 20.0


def main() -> int:
    options = _options()
    console = results.make_console()
    cluster = LlumctlServer(emulated_plan(options.instances), emulated=True)
    try:
        with stops_interrupt(), running(cluster) as taken_s:
            figures = _measure(cluster, options) | {"ready_s": taken_s[0]}
    except KeyboardInterrupt:
        console.print("interrupted; nothing runs any more")
        return 130
    except ServerError as error:
        console.print(f"[red]{error}[/red]")
        return 1
    console.print(_table(figures))
    console.print(f"written to {results.write('rehearsal', figures)}")
    return int(figures["bench"]["num_right"] != figures["bench"]["num_requests"])


def _measure(cluster: LlumctlServer, options: argparse.Namespace) -> dict[str, Any]:
    parts = cluster.parts()
    idle = _cores(parts, IDLE_S)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        load = subprocess.Popen(
            [
                *(llumctl(), "bench", "--cluster", cluster.plan.cluster, "--json", str(report)),
                *("--rate", str(options.rate), "--lengths", options.lengths),
                *("--duration", str(options.duration), "--seed", str(options.seed)),
            ]
        )
        try:
            time.sleep(min(SETTLE_S, options.duration / 4))
            busy = _cores(parts, options.duration / 2)
            memory = _memory(parts)
            load.wait()
        finally:
            load.kill()
            load.wait()
        bench = json.loads(report.read_text(encoding="utf-8"))
    return {
        "num_processes": len(parts),
        "idle_cores": idle,
        "busy_cores": busy,
        "memory_bytes": memory,
        "bench": bench,
    }


def _cores(parts: dict[int, str], seconds: float) -> dict[str, float]:
    meter = CpuMeter(parts)
    time.sleep(seconds)
    return {part: used_s / seconds for part, used_s in meter.used().parts_s.items()}


def _memory(parts: Mapping[int, str]) -> dict[str, dict[str, int]]:
    """For each role of a process, resident memory, and memory with its share of what it has in
    common with others."""
    found: dict[str, dict[str, int]] = {}
    for pid, part in parts.items():
        info = psutil.Process(pid).memory_full_info()
        sums = found.setdefault(part, {"rss": 0, "pss": 0})
        sums["rss"] += info.rss
        sums["pss"] += info.pss
    return found


def _table(figures: dict[str, Any]) -> Table:
    table = Table(title="what it costs", box=box.SIMPLE)
    for column in ("part", "cores, idle", "cores, under load", "RSS GB", "PSS GB"):
        table.add_column(column, justify="left" if column == "part" else "right")
    memory = figures["memory_bytes"]
    for part in sorted(memory):
        table.add_row(
            part,
            f"{figures['idle_cores'][part]:.3f}",
            f"{figures['busy_cores'][part]:.3f}",
            f"{memory[part]['rss'] / 1e9:.2f}",
            f"{memory[part]['pss'] / 1e9:.2f}",
        )
    table.add_row(
        "all",
        f"{sum(figures['idle_cores'].values()):.3f}",
        f"{sum(figures['busy_cores'].values()):.3f}",
        f"{sum(sums['rss'] for sums in memory.values()) / 1e9:.2f}",
        f"{sum(sums['pss'] for sums in memory.values()) / 1e9:.2f}",
    )
    return table


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rehearsal",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--instances", type=int, default=16)
    parser.add_argument("--rate", type=float, default=7.0)
    parser.add_argument("--lengths", default="M-M")
    parser.add_argument("--duration", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
