"""The collected runs of one load as tables: each live run with the simulated ones below it."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from rich import box
from rich.console import JustifyMethod
from rich.table import Table

RATIO_OF = "infaas++"
"""The policy that others are compared with."""


def latency_table(runs: Sequence[Mapping[str, Any]], title: str) -> Table:
    table = Table(title=title, box=box.SIMPLE, padding=(0, 1, 0, 0))
    for column in (
        *("policy, seed", "", "TTFT mean / P99 / max", "mean / P99 TPOT"),
        *("P99 / max pause", "loss", "evicted", "moves", "steady", "ends"),
    ):
        justify: JustifyMethod = "left" if column in ("policy, seed", "") else "right"
        table.add_column(column, justify=justify, no_wrap=True)
    for run in runs:
        table.add_row(f"{run['policy']}, {run['seed']}", "live", *_cells(run["live"]))
        for name, of in (("sim", fmean), ("lowest", min), ("highest", max)):
            table.add_row("", name, *_cells(_of_all(run["simulated"], of)))
    return table


def _of_all(runs: Sequence[Mapping[str, Any]], of: Callable[[list[Any]], Any]) -> dict[str, Any]:
    """Each figure of several runs in one."""
    found: dict[str, Any] = {}
    for key, first in runs[0].items():
        values = [run[key] for run in runs]
        if key == "steady":
            found[key] = first if len(set(values)) == 1 else None
        elif any(value is None for value in values):
            found[key] = None
        else:
            found[key] = _of_all(values, of) if isinstance(first, dict) else of(values)
    return found


def _cells(found: Mapping[str, Any]) -> list[str]:
    loss_s = found["preemption_loss_s"]
    return [
        _spread(found["ttft_s"], ("mean", "p99", "max"), ".2f"),
        _spread(found["tpot_s"], ("mean", "p99"), ".1f", 1000),
        _spread(found["longest_pause_s"], ("p99", "max"), ".1f"),
        "" if loss_s is None else f"{loss_s:.3f}",
        *(f"{found[key]:.0f}" for key in ("num_evictions", "num_moves")),
        {True: "yes", False: "no", None: ""}[found["steady"]],
        f"{found['duration_s']:.0f}",
    ]


def _spread(
    found: Mapping[str, float] | None, keys: Sequence[str], form: str, factor: float = 1
) -> str:
    return " / ".join(f"{factor * found[key]:{form}}" for key in keys) if found else ""


def health_table(runs: Sequence[Mapping[str, Any]]) -> Table:
    """`steps`: how long they took beside the profile's. `cores` that the cluster used, and `others`
    on this machine. `client late`: 1 request in 100 went out so long after it was due."""
    table = Table(
        title="whether the live runs can be believed", box=box.SIMPLE, padding=(0, 1, 0, 0)
    )
    for column in (
        *("policy", "seed", "speed", "failed", "wrong tokens", "failed moves", "steps, worst"),
        *("late steps", "kept time", "cores", "others", "client late"),
    ):
        table.add_column(column, justify="left" if column == "policy" else "right")
    for run in runs:
        live = run["live"]
        emulation = live["emulation"]
        table.add_row(
            *(run["policy"], str(run["seed"]), f"{live['speed']:g}"),
            *(str(live[key]) for key in ("num_failed", "num_wrong_tokens", "num_failed_moves")),
            f"{emulation['time_ratio']:.3f}, {emulation['worst_time_ratio']:.3f}"
            if emulation
            else "",
            f"{emulation['late_steps_ratio']:.1%}" if emulation else "",
            "yes" if live["kept_time"] else "NO",
            f"{sum(live['cores'].values()):.2f}",
            f"{live['other_cores']:.2f}",
            f"{1000 * live['bench']['send_lag_p99_s']:.0f} ms",
        )
    return table


def ratio_lines(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """P99 TTFT of each policy against that of infaas++, means over the seeds that both have."""
    by_policy: dict[str, dict[int, Mapping[str, Any]]] = {}
    for run in runs:
        by_policy.setdefault(run["policy"], {})[run["seed"]] = run
    base = by_policy.get(RATIO_OF, {})
    lines = []
    for policy, its in by_policy.items():
        seeds = sorted(its.keys() & base.keys())
        if policy == RATIO_OF or not seeds:
            continue
        live, simulated = (
            fmean(p99_s(its[seed]) for seed in seeds) / fmean(p99_s(base[seed]) for seed in seeds)
            for p99_s in (_live_p99_s, _simulated_p99_s)
        )
        which = ", ".join(map(str, seeds))
        lines.append(
            f"P99 TTFT of {policy} over that of {RATIO_OF}: {live:.2f} live,"
            f" {simulated:.2f} simulated (seeds {which})"
        )
    return lines


def _live_p99_s(run: Mapping[str, Any]) -> float:
    return float(run["live"]["ttft_s"]["p99"])


def _simulated_p99_s(run: Mapping[str, Any]) -> float:
    return fmean(each["ttft_s"]["p99"] for each in run["simulated"])
