"""Live migration beside stop-and-copy and recompute, on real engines, in one run.

A streaming request of a given length moves to and fro between two instances. Downtime is what
its frontend saw between the last token of one instance and the first of the other; excess is the
downtime less the step that computed that first token. Stop-and-copy is the same move with one
stage only. Recompute is what a request of that length waits for its first token: what a move by
abort and resend would cost. The others' steps are the gaps in streams that do not move.

Another model, and other settings, by the configuration file that LLUMCTL_CONFIG names. The model
must take 8,192 tokens.
"""

import argparse
import asyncio
import statistics
import sys
from dataclasses import asdict, replace
from typing import Any

import httpx
from rich import box
from rich.table import Table

from benchmarks import results
from benchmarks.downtimes import Case, Downtimes
from benchmarks.engine_plan import make_plan
from benchmarks.moved_streams import MigrationCluster, MovedStreams
from benchmarks.process_groups import signals_interrupt
from benchmarks.servers import ServerError, control_of, running
from benchmarks.slowdowns import LIMITS_BYTES_PER_S, Slowdowns
from controller.api.client import ControlClient
from controller.api.errors import LlumctlError

LENGTHS = (256, 1024, 3500, 7500)
KV_BYTES = 256 << 20


async def measure(
    plan: Any, control: ControlClient, options: argparse.Namespace, figures: dict[str, Any]
) -> None:
    """Adds to `figures` what is known, case by case."""
    cases = [Case(n, others) for others in (0, 3) for n in options.lengths]
    cases += [Case(n, 0, prefill=True) for n in options.lengths]
    if options.only_slowdown:
        cases = []
    timeout = httpx.Timeout(None, connect=10.0)
    url = f"http://127.0.0.1:{plan.port}"
    async with httpx.AsyncClient(base_url=url, timeout=timeout, trust_env=False) as http:
        streams = MovedStreams(plan, http, control)
        downtimes, slowdowns = Downtimes(streams), Slowdowns(streams, plan.kv_bytes_per_token)
        for case in cases:
            samples = await downtimes.measure(case, options.repeats)
            recompute_s: list[float] = []
            if not case.prefill:
                recompute_s = await downtimes.recompute(case.num_tokens, case.num_others, 3)
            figures["cases"].append(
                asdict(case)
                | {kind: [asdict(s) for s in found] for kind, found in samples.items()}
                | {"recompute_s": recompute_s}
            )
            print(f"  {case}: done", flush=True)
        for limit in options.limits:
            figures["slowdown"].append(await slowdowns.measure(limit, options.repeats))
            print(f"  limit {limit}: done", flush=True)


def main() -> int:
    options = _options()
    console = results.make_console()
    plan = make_plan(2)
    plan = replace(plan, engine_args=plan.engine_args | {"kv_cache_memory_bytes": options.kv_bytes})
    cluster = MigrationCluster(plan)
    figures: dict[str, Any] = {"cases": [], "slowdown": []}
    code = 0
    try:
        with signals_interrupt(), running(cluster), control_of(plan.cluster) as control:
            asyncio.run(measure(plan, control, options, figures))
    except KeyboardInterrupt:
        console.print("interrupted; nothing runs any more")
        return 130
    except ServerError as error:
        console.print(f"[red]{error}[/red]")
        return 1
    except (RuntimeError, ValueError, LlumctlError, httpx.HTTPError) as error:
        console.print(f"[red]cut short: {error}[/red]")
        code = 1
    console.print(_case_table(figures["cases"]))
    console.print(_slowdown_table(figures["slowdown"]))
    console.print(f"written to {results.write('migration', figures)}")
    return code


def _case_table(cases: list[dict[str, Any]]) -> Table:
    table = Table(title="downtime, ms (median)", box=box.SIMPLE)
    for column in (
        *("tokens", "others", "prefill", "live", "excess", "its step", "stop-and-copy"),
        *("recompute", "recompute / live", "stages"),
    ):
        table.add_column(column, justify="right")
    for case in cases:
        live, stop = case["live"], case["stop-and-copy"]
        downtime_s = _median(live, "downtime_s")
        recompute_s = statistics.median(case["recompute_s"]) if case["recompute_s"] else None
        table.add_row(
            str(case["num_tokens"]),
            str(case["num_others"]),
            "yes" if case["prefill"] else "",
            _ms(downtime_s),
            _ms(_median(live, "excess_s")),
            _ms(_median(live, "step_time_s")),
            _ms(_median(stop, "downtime_s")),
            _ms(recompute_s),
            f"{recompute_s / downtime_s:.0f}x" if recompute_s and downtime_s else "",
            f"{_median(live, 'num_stages') or 0:.0f}",
        )
    return table


def _slowdown_table(curve: list[dict[str, Any]]) -> Table:
    table = Table(title="the others' steps while a long prompt moves", box=box.SIMPLE)
    for column in ("limit MB/s", "tokens", "moves", "a move, s", "slowed by"):
        table.add_column(column, justify="right")
    for point in curve:
        limit = point["max_bytes_per_s"]
        table.add_row(
            "none" if limit is None else f"{limit / 1e6:.0f}",
            str(point["num_tokens"]),
            str(point["num_moves"]),
            f"{point['duration_s']:.2f}",
            f"{point['slowdown']:+.1%}",
        )
    return table


def _median(samples: list[dict[str, Any]], name: str) -> float | None:
    return statistics.median(sample[name] for sample in samples) if samples else None


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1000:.1f}"


def _limit(text: str) -> float | None:
    return None if text == "none" else float(text) * 1e6


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.migration",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--only-slowdown", action="store_true", help="of the others, no downtimes")
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument(
        "--kv-bytes", type=int, default=KV_BYTES, help="of an instance's cache; another model's too"
    )
    parser.add_argument(
        "--limits",
        type=_limit,
        nargs="*",
        default=LIMITS_BYTES_PER_S,
        metavar="MB/S",
        help="or none",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
