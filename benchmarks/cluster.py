"""Policies side by side: one fixed trace on 16 emulated instances under each of them.

Each policy gets a fresh cluster and the very same requests at the same times from the same
client. Times are the profile's: what a clock shows, times the speed. Before anything is read
from them: `kept time` says whether the machine kept the profile's time.
"""

import argparse
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

from rich import box
from rich.table import Table

from benchmarks import results
from benchmarks.cluster_events import EventTap, Told, evictions, preemption_loss_s
from benchmarks.cpu_meter import CpuMeter
from benchmarks.engine_plan import EnginePlan, make_plan
from benchmarks.process_groups import signals_interrupt
from benchmarks.servers import LlumctlServer, ServerError, running
from controller.api.client import ControlClient
from controller.api.errors import LlumctlError
from controller.api.state import run_state
from llumctl.bench import session
from llumctl.bench.session import Measured, Wanted
from llumctl.bench.statistics import Spread
from llumctl.bench.workload import Load

# Near the knee of INFaaS++ on this trace: the engine model in virtual time, 16 of them under the
# same scheduler, gave a TTFT P99 of 1.0 s at 10.5 requests/s, 1.6 at 11.5 and 123 at 12.
RATE = 11.5
# In decode steps; of the authors' experiments on M-M (the default, 48, on most others).
THRESHOLD_STEPS = 160.0
INTERVAL_S = 0.1
NOT_BACK_S = 10.0
MAX_MOVES_PER_MINUTE = 6
STATUS_INTERVAL_S = 0.005
# Of one run: far more than any has events between two looks at them.
MAX_EVENTS = 200_000
# In profile time. A request waits its turn in an overloaded cluster: none is to fail by the clock.
TIMEOUT_S = 3600.0
# Beyond these the machine was too busy for its figures to be the policy's.
MAX_TIME_RATIO = 1.02
MAX_LATE_RATIO = 0.05


@dataclass(frozen=True, slots=True)
class Policy:
    """`dispatch`: a name in `controller.core.dispatch.policies.POLICIES`."""

    dispatch: str
    migration: bool = False


POLICIES: Mapping[str, Policy] = {
    "llumnix": Policy("llumnix", migration=True),
    "llumnix-without-migration": Policy("llumnix"),
    "infaas++": Policy("remaining-steps"),
    "round-robin": Policy("round-robin"),
    "vllm-dp": Policy("vllm-dp"),
}


class PolicyCluster(LlumctlServer):
    """Emulated, `speed` times as fast as the profile; so are the times that policies go by."""

    def __init__(self, plan: EnginePlan, policy: Policy, speed: float) -> None:
        super().__init__(plan)
        self._policy = policy
        self._speed = speed

    def _command(self) -> list[str]:
        return [*super()._command(), "--engine", "emulated"]

    def _environment(self) -> dict[str, str]:
        speed = self._speed
        settings = {
            "EMULATED_SPEED": speed,
            "CONTROL_MAX_EVENTS": MAX_EVENTS,
            "SCHEDULER_POLICY": self._policy.dispatch,
            "SCHEDULER_STATUS_INTERVAL_S": max(0.001, STATUS_INTERVAL_S / speed),
            "MIGRATION_ENABLED": str(self._policy.migration).lower(),
            "MIGRATION_INTERVAL_S": max(0.01, INTERVAL_S / speed),
            "MIGRATION_SOURCE_BELOW_STEPS": THRESHOLD_STEPS,
            "MIGRATION_DESTINATION_ABOVE_STEPS": THRESHOLD_STEPS,
            "MIGRATION_NOT_BACK_S": NOT_BACK_S / speed,
            "MIGRATION_MAX_MOVES_PER_MINUTE": round(MAX_MOVES_PER_MINUTE * speed),
        }
        return {f"LLUMCTL_{name}": str(value) for name, value in settings.items()}


def main() -> int:
    options = _options()
    console = results.make_console()
    wanted = vars(options) | {"threshold_steps": THRESHOLD_STEPS}
    figures: dict[str, Any] = {"options": wanted, "policies": {}}
    code = 0
    try:
        with signals_interrupt():
            for name in options.policies:
                console.print(f"[bold]{name}[/bold]")
                figures["policies"][name] = _run(name, options)
    except KeyboardInterrupt:
        console.print("interrupted; nothing runs any more")
        code = 130
    except (ServerError, LlumctlError) as error:
        console.print(f"[red]cut short: {error}[/red]")
        code = 1
    found = figures["policies"]
    if found:
        console.print(_latency_table(found))
        console.print(_health_table(found))
        for name, one in found.items():
            for warning in one["warnings"]:
                console.print(f"[yellow]{name}: {warning}[/yellow]")
        console.print(f"written to {results.write('cluster', figures)}")
    is_wrong = any(one["num_failed"] or one["num_wrong_tokens"] for one in found.values())
    return code or int(is_wrong)


def _run(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """A cluster of its own, from `up` to `down`."""
    speed = options.speed
    plan = replace(
        make_plan(1), num_engines=options.instances, engine_args={"served_model_name": "embedded"}
    )
    cluster = PolicyCluster(plan, POLICIES[name], speed)
    load = Load(
        rate=options.rate * speed,
        lengths=options.lengths,
        duration_s=None,
        num_requests=options.requests,
        seed=options.seed,
    )
    began_s = time.perf_counter()
    with running(cluster):
        state = run_state.load(plan.cluster)
        assert state is not None
        offset_s = time.time() - time.perf_counter()
        with ControlClient(state.control_url, state.control_token) as control:
            tap = EventTap(control)
            tap.start()
            meter = CpuMeter(cluster.parts())
            try:
                measured = session.run(
                    Wanted(load=load, cluster=plan.cluster, timeout_s=TIMEOUT_S / speed)
                )
            finally:
                told = tap.finish()
            cpu = meter.used()
    if measured.results.interrupted:  # Ctrl-C ends the load's run, and with it all of this
        raise KeyboardInterrupt
    duration_s = measured.figures.duration_s
    return figures_of(measured, told, offset_s, speed) | {
        "cores": {part: used_s / duration_s for part, used_s in cpu.parts_s.items()},
        "other_cores": cpu.other_cores,
        "took_s": time.perf_counter() - began_s,
        "bench": measured.as_json(),
    }


def figures_of(measured: Measured, told: Told, offset_s: float, speed: float) -> dict[str, Any]:
    """Seconds are the profile's."""
    found = measured.figures
    latencies = found.latencies["all"]
    evicted = evictions(told.events, measured.sender.cache_salt, offset_s)
    losses_s = [
        speed * preemption_loss_s(result, evicted.get(result.request.index, ()))
        for result in measured.results.ended
    ]
    return {
        "num_requests": found.num_requests,
        "num_failed": found.num_failed + found.num_unfinished,
        "num_wrong_tokens": found.num_wrong_tokens
        + found.num_lost_tokens
        + found.num_doubled_tokens,
        "ttft_s": _scaled(latencies.ttft_s, speed),
        "tpot_s": _scaled(latencies.tpot_s, speed),
        "e2e_latency_s": _scaled(latencies.e2e_latency_s, speed),
        "preemption_loss_s": fmean(losses_s) if losses_s else None,
        "num_evictions": sum(len(its) for its in evicted.values()),
        "num_evicted_requests": len(evicted),
        "num_moves": told.number("migrated"),
        "num_failed_moves": told.number("migration_failed"),
        "num_not_moved": told.number("not_moved"),
        "duration_s": speed * found.duration_s,
        "emulation": None if found.emulation is None else asdict(found.emulation),
        "kept_time": keeps_time(measured),
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
    if not keeps_time(measured):
        lines.append("the machine did not keep the profile's time: run it with a lower --speed")
    if told.num_missed:
        lines.append(f"{told.num_missed} events are missing: evictions and moves are too few")
    return lines


def _scaled(spread: Spread | None, speed: float) -> dict[str, float] | None:
    if spread is None:
        return None
    return {
        "mean": spread.mean * speed,
        "p50": spread.p50 * speed,
        "p99": spread.p99 * speed,
        "max": spread.max * speed,
    }


def _latency_table(found: Mapping[str, dict[str, Any]]) -> Table:
    table = Table(title="profile time; loss: of preemption, mean per request", box=box.SIMPLE)
    for column in (
        *("policy", "TTFT mean s", "P50 s", "P99 s", "TPOT mean ms", "P99 ms", "loss s"),
        *("evictions", "moves"),
    ):
        table.add_column(column, justify="left" if column == "policy" else "right")
    for name, one in found.items():
        ttft, tpot, loss_s = one["ttft_s"], one["tpot_s"], one["preemption_loss_s"]
        table.add_row(
            name,
            *(f"{ttft[key]:.3f}" if ttft else "" for key in ("mean", "p50", "p99")),
            *(f"{1000 * tpot[key]:.1f}" if tpot else "" for key in ("mean", "p99")),
            "" if loss_s is None else f"{loss_s:.4f}",
            str(one["num_evictions"]),
            str(one["num_moves"]),
        )
    return table


def _health_table(found: Mapping[str, dict[str, Any]]) -> Table:
    table = Table(title="whether that can be believed", box=box.SIMPLE)
    for column in (
        *("policy", "failed", "wrong tokens", "failed moves", "steps / profile", "worst"),
        *("late steps", "kept time", "cores", "others' cores"),
    ):
        table.add_column(column, justify="left" if column == "policy" else "right")
    for name, one in found.items():
        emulation = one["emulation"]
        told = ("time_ratio", "worst_time_ratio")
        table.add_row(
            name,
            *(str(one[key]) for key in ("num_failed", "num_wrong_tokens", "num_failed_moves")),
            *(f"{emulation[key]:.4f}" if emulation else "" for key in told),
            f"{emulation['late_steps_ratio']:.1%}" if emulation else "",
            "yes" if one["kept_time"] else "NO",
            f"{sum(one['cores'].values()):.2f}",
            f"{one['other_cores']:.2f}",
        )
    return table


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cluster",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--policies", nargs="+", choices=list(POLICIES), default=list(POLICIES))
    parser.add_argument("--instances", type=int, default=16)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--rate", type=float, default=RATE, help="requests/s, in profile time")
    parser.add_argument("--lengths", default="M-M")
    parser.add_argument("--speed", type=float, default=1.0, help="times faster than the profile")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
