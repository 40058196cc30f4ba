"""The simulator beside what it simulates: one trace live and in virtual time, the same policy, the
same profile, the same settings.

One part per call, `emulated` or `vllm`; the runs of it that are missing are made, on one cluster,
and kept in benchmarks/results/fidelity. `--short`: fewer requests and one run each.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, median
from typing import Any

from rich.console import Console

from benchmarks import machine, results
from benchmarks.core_waits import CoreWaits
from benchmarks.fidelity_parts import Part, Size, emulated, vllm
from benchmarks.fidelity_rows import health, rows, slowdown, table
from benchmarks.policy_cluster import load_on
from benchmarks.process_groups import signals_interrupt
from benchmarks.same_trace import Figures, as_sent, delayed, simulated, write_trace
from benchmarks.servers import RESULTS, LlumctlServer, ServerError, running
from controller.api.errors import LlumctlError
from controller.sim.workload.trace import Trace

PARTS = ("emulated", "vllm")
LONG = Size(num_requests=1200, num_runs=5)
SHORT = Size(num_requests=250, num_runs=1)
NUM_SIMULATED = 40
"""Simulated runs: of what the clients of the live ones sent, and when, each with other delays
(`same_trace.delayed`)."""


def main() -> int:
    options = _options()
    console = results.make_console()
    size = SHORT if options.short else LONG
    folder = RESULTS / "fidelity" / ("short" if options.short else "long")
    code = 0
    for name in (options.part,) if options.part else PARTS:
        try:
            with signals_interrupt():
                part = emulated(options.speed) if name == "emulated" else vllm(RESULTS / "fidelity")
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
                "machine": machine.describe(),
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
    parser.add_argument("--part", choices=PARTS, help="both, one after the other, if not given")
    parser.add_argument("--short", action="store_true", help="two minutes for each part")
    parser.add_argument("--speed", type=float, default=1.0, help="of the emulated engines")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", action="store_true", help="only show what is there")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
