"""This checkout beside an older one: `--old PATH`, a checkout with its own installation.

The older checkout runs twice, so that the table shows how much the same code differs from round to
round. All three clusters stay up and take turns, in another order each round. A ratio compares two
measurements of one round; above 1 means slower or longer, or a lower throughput.
"""

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from rich import box
from rich.table import Table

from benchmarks import results
from benchmarks.engine_plan import CLUSTER, EnginePlan, free_port, make_plan
from benchmarks.load import Workload, run_load
from benchmarks.migration import KV_BYTES, Case, Downtimes
from benchmarks.moved_streams import MigrationCluster, MovedStreams
from benchmarks.servers import LlumctlServer, ServerError, control_of, running
from controller.api.errors import LlumctlError
from controller.api.interrupts import stops_interrupt

OLD, OLD_AGAIN, NEW = "old", "old again", "new"
REQUESTS_PER_STREAM = 4
MIN_REQUESTS = 8
MOVES_PER_ROUND = 5
CASES = (Case(1024, 0), Case(7500, 0), Case(7500, 3))


@dataclass(slots=True)
class Figures:
    """For each round the values, by the name of the measurement and by side; smaller is better."""

    values: dict[str, dict[str, list[float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )

    def add(self, side: str, measured: dict[str, float]) -> None:
        for name, value in measured.items():
            self.values[name][side].append(value)

    def ratios(self, name: str, side: str) -> list[float]:
        """The ratios to the old checkout, round by round."""
        sides = self.values[name]
        return [a / b for a, b in zip(sides[side], sides[OLD], strict=False)]

    def table(self) -> Table:
        table = Table(title="ratios to the old checkout; above 1 is slower", box=box.SIMPLE)
        for column in ("measured", "old", "new", "new / old", "(range)", "old / old", "(range)"):
            table.add_column(column, justify="left" if column == "measured" else "right")
        for name, sides in self.values.items():
            if len(sides) < 3:
                continue  # the first round was cut short
            new, again = self.ratios(name, NEW), self.ratios(name, OLD_AGAIN)
            table.add_row(
                name,
                f"{statistics.median(sides[OLD]):.3g}",
                f"{statistics.median(sides[NEW]):.3g}",
                f"{statistics.median(new):.3f}",
                results.spread(new),
                f"{statistics.median(again):.3f}",
                results.spread(again),
            )
        return table


def main() -> int:
    options = _options()
    console = results.make_console()
    figures = Figures()
    code = 0
    checkouts = {OLD: options.old, OLD_AGAIN: options.old, NEW: Path(__file__).parents[1]}
    try:
        with stops_interrupt():
            for part in options.parts:
                PARTS[part](checkouts, options, figures)
    except KeyboardInterrupt:
        console.print("interrupted; nothing runs any more")
        return 130
    except (ServerError, LlumctlError, RuntimeError, httpx.HTTPError) as error:
        console.print(f"[red]cut short: {type(error).__name__}: {error}[/red]")
        code = 1
    console.print(figures.table())
    console.print(f"written to {results.write('against', {'rounds': figures.values})}")
    return code


def _endpoint(checkouts: dict[str, Path], options: argparse.Namespace, figures: Figures) -> None:
    """Compares clusters of one engine each."""
    plans = _plans(checkouts, make_plan(1))
    servers = {side: LlumctlServer(plans[side], side, path) for side, path in checkouts.items()}
    with running(*servers.values()):
        for server in servers.values():
            run_load(server.base_url, _workload(server.plan, 32, -1))
        for index, order in _rounds(checkouts, options.rounds):
            for num_streams in options.streams:
                for side in order:
                    workload = _workload(plans[side], num_streams, index)
                    load = run_load(servers[side].base_url, workload)
                    name = f"{num_streams} streams"
                    figures.add(
                        side,
                        {
                            f"{name}, ms per token": 1000 / load.output_tokens_per_s,
                            f"{name}, TTFT ms": 1000 * load.ttft_s,
                            f"{name}, TPOT ms": 1000 * load.tpot_s,
                        },
                    )
            print(f"  endpoint, round {index + 1}: done", flush=True)


def _workload(plan: EnginePlan, num_streams: int, index: int) -> Workload:
    return Workload(
        model=plan.served_model_name,
        vocab_size=plan.vocab_size,
        num_streams=num_streams,
        num_requests=max(MIN_REQUESTS, REQUESTS_PER_STREAM * num_streams),
        seed=100_000 * index + 1000 * num_streams,
    )


def _migration(checkouts: dict[str, Path], options: argparse.Namespace, figures: Figures) -> None:
    """Compares clusters of two engines each, by the medians of a round's live moves."""
    plan = make_plan(2)
    plan = replace(plan, engine_args=plan.engine_args | {"kv_cache_memory_bytes": KV_BYTES})
    plans = _plans(checkouts, plan)
    servers = {side: MigrationCluster(plans[side], side, path) for side, path in checkouts.items()}
    with running(*servers.values()):
        for index, order in _rounds(checkouts, options.rounds):
            for side in order:
                figures.add(side, asyncio.run(_moves(plans[side])))
            print(f"  migration, round {index + 1}: done", flush=True)


async def _moves(plan: EnginePlan) -> dict[str, float]:
    url, timeout = f"http://127.0.0.1:{plan.port}", httpx.Timeout(None, connect=10.0)
    measured: dict[str, float] = {}
    with control_of(plan.cluster) as control:
        async with httpx.AsyncClient(base_url=url, timeout=timeout, trust_env=False) as http:
            downtimes = Downtimes(MovedStreams(plan, http, control))
            for case in CASES:
                samples = (await downtimes.measure(case, MOVES_PER_ROUND))["live"]
                name = f"move, {case.num_tokens} tokens, {case.num_others} others"
                for what in ("downtime_s", "duration_s"):
                    median = statistics.median(getattr(sample, what) for sample in samples)
                    measured[f"{name}, {what.removesuffix('_s')} ms"] = 1000 * median
    return measured


def _scheduler(
    measure: Callable[[Path], dict[str, float]],
    checkouts: dict[str, Path],
    options: argparse.Namespace,
    figures: Figures,
) -> None:
    for index, order in _rounds(checkouts, options.rounds):
        for side in order:
            figures.add(side, measure(checkouts[side]))
        print(f"  scheduler, round {index + 1}: done", flush=True)


def _core_times(checkout: Path) -> dict[str, float]:
    options = ("--parts", "core", "--largest", "256", "--repeats", "300")
    return {
        f"{core['num_instances']} instances x {core['num_running']}, {kind} us": (
            1e6 * core[f"{kind}_s"]["p50"]
        )
        for core in _scheduler_figures(checkout, options)["core"]
        if core["num_instances"] in (16, 256)
        for kind in ("decision_as_it_runs", "status", "round")
    }


def _loop_times(checkout: Path) -> dict[str, float]:
    """How long a frontend waits for a dispatch, with the naming of the candidates."""
    options = ("--parts", "loop", "--seconds", "3", "--rounds", "1")
    *_, both = _scheduler_figures(checkout, options)["loop"]
    return {
        "loop under load, dispatch ms": 1000 * both["dispatch_s"]["p50"],
        "loop under load, dispatch P99 ms": 1000 * both["dispatch_s"]["p99"],
        "loop under load, cores": both["loop_cores"],
    }


def _scheduler_figures(checkout: Path, options: Sequence[str]) -> dict[str, Any]:
    """The figures of the checkout's own benchmark."""
    command = [str(checkout / ".venv" / "bin" / "python"), "-m", "benchmarks.scheduler"]
    before = set(_results(checkout))
    subprocess.run([*command, *options], cwd=checkout, check=True, stdout=subprocess.DEVNULL)
    (path,) = set(_results(checkout)) - before
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    path.unlink()
    return found


def _results(checkout: Path) -> Iterator[Path]:
    return (checkout / "benchmarks" / "results").glob("scheduler-*.json")


PARTS: dict[str, Callable[[dict[str, Path], argparse.Namespace, Figures], None]] = {
    "core": partial(_scheduler, _core_times),
    "loop": partial(_scheduler, _loop_times),
    "endpoint": _endpoint,
    "migration": _migration,
}


def _plans(sides: dict[str, Path], plan: EnginePlan) -> dict[str, EnginePlan]:
    """The same engines for each side, with a cluster and ports of its own."""
    return {
        side: replace(
            plan,
            cluster=f"{CLUSTER}-{side.replace(' ', '-')}",
            port=free_port(),
            control_port=free_port(),
        )
        for side in sides
    }


def _rounds(sides: dict[str, Any], number: int) -> Iterator[tuple[int, Sequence[str]]]:
    """The rounds, each with the sides in another order."""
    dice = random.Random(1)
    for index in range(number):
        yield index, dice.sample(list(sides), len(sides))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.against",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--old", type=Path, required=True, help="a checkout with its .venv")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32])
    given = parser.parse_args()
    given.old = given.old.resolve()
    return given


if __name__ == "__main__":
    sys.exit(main())
