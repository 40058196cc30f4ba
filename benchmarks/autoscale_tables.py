"""The runs of `make bench-autoscale` as tables and as a picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich import box
from rich.table import Table

from benchmarks.autoscale_load import SLOW_S, Tide

Run = Mapping[str, Any]


def figures_table(live: Sequence[Run], simulated: Mapping[str, Sequence[Run]]) -> Table:
    """Each live run, and below it the simulated ones of that run: the mean of each figure, then
    its lowest and highest value."""
    title = (
        f"s and ms of the profile's time; slow: TTFTs above {SLOW_S:g} s before the burst,"
        " from then on, and at the end"
    )
    table = Table(title=title, box=box.SIMPLE, padding=(0, 1, 0, 0))
    for column in (
        *("run", "", "cost", "most", "failed", "TTFT mean / P99 / max, s"),
        *("TPOT P99, ms", "slow", "+ / - / kept"),
    ):
        left = column in ("run", "")
        table.add_column(column, justify="left" if left else "right", no_wrap=True)
    by_name = {f"{run['run']}, {run['policy']}": run for run in live}
    for name in (*by_name, *(each for each in simulated if each not in by_name)):
        if (run := by_name.get(name)) is not None:
            table.add_row(name, "live", *_live_cells(run))
        for row, cells in _simulated_rows(simulated.get(name, ())):
            table.add_row("" if run or row != "simulated" else name, row, *cells)
    return table


def health_table(live: Sequence[Run]) -> Table:
    """`steps`: how long they took beside what the profile says, of all instances and of the one
    that kept it worst. `cores`: of all processes but the client, other ones of the machine too."""
    table = Table(
        title="whether the live runs can be believed", box=box.SIMPLE, padding=(0, 1, 0, 0)
    )
    for column in (
        *("run", "speed", "steps, worst", "late steps", "kept time", "cores", "of instances"),
        *("client", "client late, P99"),
    ):
        table.add_column(column, justify="left" if column == "run" else "right")
    for run in live:
        emulation = run["emulation"] or {}
        table.add_row(
            f"{run['run']}, {run['policy']}",
            f"{run['speed']:g}",
            "{time_ratio:.4f}, {worst_time_ratio:.4f}".format(**emulation) if emulation else "",
            f"{emulation['late_steps_ratio']:.1%}" if emulation else "",
            {True: "yes", False: "NO", None: ""}[run["kept_time"]],
            *(f"{run['cores'][part]:.2f}" for part in ("all", "instances", "client")),
            f"{1000 * run['client_lag_p99_s']:.0f} ms",
        )
    return table


def saving_lines(live: Sequence[Run], simulated: Mapping[str, Sequence[Run]]) -> list[str]:
    """What auto-scaling costs beside each fixed cluster, live and simulated."""
    lines = []
    mean = {name: _mean(runs) for name, runs in simulated.items()}
    shown = {f"{run['run']}, {run['policy']}": run for run in live}
    for title, found in (("live", shown), ("simulated", mean)):
        scaled = {name: run for name, run in found.items() if name.startswith("autoscale")}
        for name, run in scaled.items():
            for other, its in found.items():
                if other != name and (other not in scaled or name > other):
                    lines.append(f"{title}: {name} beside {other}: {_beside(run, its)}")
    return lines


def _beside(run: Run, other: Run) -> str:
    saved = run["mean_num_instances"] / other["mean_num_instances"] - 1
    text = f"cost {saved:+.0%}"
    if run["ttft_s"] and other["ttft_s"]:
        text += f", P99 TTFT {run['ttft_s']['p99'] / other['ttft_s']['p99']:.2f} of it"
    return text


def draw(path: Path, live: Sequence[Run], tide: Tide) -> Path:
    """Instances over time, of all live runs, above the rate of the requests."""
    picture = Figure(figsize=(11, 5), layout="constrained")
    axes = picture.subplots()
    for run in live:
        label = f"{run['run']}: {run['mean_num_instances']:.1f} in the mean"
        at_s, numbers = _changes(run, tide.duration_s)
        axes.step(at_s, numbers, where="post", label=label)
    axes.set_xlabel("s of the profile's time")
    axes.set_ylabel("instances, with those that start and drain")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    rates = axes.twinx()
    moments_s = [tide.duration_s * number / 500 for number in range(501)]
    rates.fill_between(moments_s, [tide.rate(each) for each in moments_s], alpha=0.15, color="grey")
    rates.set_ylabel("requests/s (grey)")
    rates.set_ylim(bottom=0)
    axes.legend(loc="upper right", fontsize="small")
    picture.savefig(path, format=path.suffix[1:], dpi=120)
    return path


def _changes(run: Run, until_s: float) -> tuple[list[float], list[int]]:
    """When the number of instances changed, and to what; until then."""
    times_s, numbers = [0.0], [run["numbers"][0]]
    for at_s, number in zip(run["times_s"], run["numbers"], strict=True):
        if number != numbers[-1] and at_s < until_s:
            times_s.append(at_s)
            numbers.append(number)
    return [*times_s, until_s], [*numbers, numbers[-1]]


def _live_cells(run: Run) -> list[str]:
    return [
        f"{run['mean_num_instances']:.2f}",
        str(max(run["numbers"])),
        str(run["num_failed"] + run["num_wrong_tokens"]),
        *_latencies(run),
        " / ".join(map(str, run["num_slow"])),
        f"{run['num_added']} / {run['num_removed']} / {run['num_kept']}",
    ]


def _simulated_rows(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    if not runs:
        return []
    lowest, highest = _of_all(runs, min), _of_all(runs, max)
    found = {"simulated": _mean(runs), "lowest": lowest, "highest": highest}
    return [
        (
            name,
            [
                f"{run['mean_num_instances']:.2f}",
                f"{run['most']:.0f}",
                f"{run['num_failed']:.0f}",
                *_latencies(run),
                " / ".join(f"{number:.0f}" for number in run["num_slow"]),
                f"{run['num_added']:.0f} / {run['num_removed']:.0f} /",
            ],
        )
        for name, run in found.items()
    ]


def _latencies(run: Run) -> tuple[str, str]:
    ttft, tpot = run["ttft_s"] or {}, run["tpot_s"] or {}
    return (
        " / ".join(f"{ttft[key]:.2f}" for key in ("mean", "p99", "max")) if ttft else "",
        f"{1000 * tpot['p99']:.0f}" if tpot else "",
    )


def _mean(runs: Sequence[Run]) -> dict[str, Any]:
    return _of_all(runs, fmean)


def _of_all(runs: Sequence[Run], of: Any) -> dict[str, Any]:
    """Each figure of several runs in one; None where one run has none."""
    found: dict[str, Any] = {}
    for key, first in runs[0].items():
        values = [run[key] for run in runs]
        if any(value is None for value in values):
            found[key] = None
        elif isinstance(first, dict):
            found[key] = _of_all(values, of)
        elif isinstance(first, list | tuple):
            found[key] = [of(each) for each in zip(*values, strict=True)]
        else:
            found[key] = of(values)
    return found
