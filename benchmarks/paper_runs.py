"""Tables of runs: the bound O1, the parts of llumnix+, the policies on a public trace."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from benchmarks import paper_cells as cells
from controller.sim.outcome import mean_of, ratio_of_means

METRICS = (
    "ttft_s mean",
    "ttft_s p99",
    "ttft_s max",
    "preemption_loss_s",
    "longest_pause_s p99",
)
POLICY_METRICS = (
    "ttft_s mean",
    "ttft_s p99",
    "ttft_s max",
    "tpot_s p99",
    "longest_pause_s p99",
    "preemption_loss_s",
)

Place = tuple[str, float]
"""A trace and its rate."""


def bound(files: Sequence[Any]) -> cells.Table:
    """How much of the gap between infaas++ and O1 llumnix+ closes, by trace. In brackets O1's own
    figure where infaas++ has the better one, so that there is no gap."""
    by_place = _by_place(files)
    places = [place for place, found in by_place.items() if "O1" in found]
    lines = []
    for place in places:
        found = by_place[place]
        line = [_name(place)]
        for metric in METRICS:
            worst, own, best = (
                _mean(found[each], metric) for each in ("infaas++", "llumnix+", "O1")
            )
            if best >= worst:
                line.append(f"no gap ({cells.number(worst)}, O1 {cells.number(best)})")
            else:
                line.append(f"{100 * (worst - own) / (worst - best):.0f} %")
        lines.append(line)
    return cells.Table(["gap closed", *(_title(metric) for metric in METRICS)], lines)


def overtaken(files: Sequence[Any]) -> cells.Table:
    """With whichever seed each was longest."""
    lines = []
    for place, found in _by_place(files).items():
        plus, plain = found["llumnix+"], found["llumnix"]
        line = [
            _name(place),
            f"{max(run['longest_overtaken_s'] for run in plus):.1f}",
            f"{max(run['most_overtaking'] for run in plus)}",
        ]
        line += [
            f"{max(cells.value(run, 'ttft_s max') for run in each):.1f}" for each in (plus, plain)
        ]
        above = [
            own["seed"]
            for own, other in zip(plus, plain, strict=True)
            if cells.value(own, "ttft_s max") > cells.value(other, "ttft_s max")
        ]
        lines.append([*line, f"{len(above)} of {len(plus)}"])
    header = [
        "point",
        "overtaken for at most, s",
        "by at most",
        "waited at most, s",
        "llumnix: waited at most, s",
        "seeds with a maximum above that of llumnix",
    ]
    return cells.Table(header, lines)


def parts(found: Sequence[tuple[str, Sequence[cells.Run]]]) -> cells.Table:
    """Of each trace the figures of its first runs, which have all parts, then how many times as
    high each is in its others; `found` has runs of one trace under each name."""
    wholes: dict[str, Sequence[cells.Run]] = {}
    lines = []
    for name, runs in found:
        trace = runs[0]["workload"]
        whole = wholes.setdefault(trace, runs)
        for metric in METRICS:
            base, own = ([cells.value(run, metric) for run in each] for each in (whole, runs))
            ratio = None if runs is whole else ratio_of_means(own, base)
            mean = cells.mean_columns(asdict(mean_of(base)) if runs is whole else None)
            times = cells.ratio_columns(None if ratio is None else asdict(ratio))
            lines.append([trace, name, cells.TITLES[metric], *mean, *times])
    header = ["trace", "part", "metric", "simulated", "plus_minus"]
    return cells.Table([*header, "ratio", "ratio_low", "ratio_high"], lines)


def policies(files: Sequence[Sequence[cells.Run]]) -> cells.Table:
    """In the order of their runs; of those with the same figures one line, named after all."""
    by_figures: dict[tuple[str, ...], list[str]] = {}
    for runs in files:
        for run in runs:
            figures = tuple(cells.number(cells.value(run, metric)) for metric in POLICY_METRICS)
            by_figures.setdefault(figures, []).append(f"`{run['policy']}`")
    lines = [[", ".join(names), *figures] for figures, names in by_figures.items()]
    return cells.Table(["policy", *(cells.TITLES[metric] for metric in POLICY_METRICS)], lines)


def _by_place(files: Sequence[Any]) -> dict[Place, dict[str, list[cells.Run]]]:
    found: dict[Place, dict[str, list[cells.Run]]] = {}
    for file in files:
        for run in file["runs"] if isinstance(file, dict) else file:
            place = run["workload"], run["rate"]
            found.setdefault(place, {}).setdefault(run["policy"], []).append(run)
    return found


def _mean(runs: Sequence[cells.Run], metric: str) -> float:
    return mean_of([cells.value(run, metric) for run in runs]).mean


def _title(metric: str) -> str:
    return cells.TITLES[metric].removesuffix(", s")


def _name(place: Place) -> str:
    return f"{place[0]} {place[1]:.3g}/s"
