"""The tables about the Llumnix paper: docs/paper/*.csv, and those that docs/paper.md shows.

Without arguments it writes all of docs/paper, from ten seeds of each run, and makes the runs that
are not in benchmarks/results/paper yet (those of a table of figure 11 took a minute on 16 cores).
With arguments it prints one table, from files that `llumctl simulate` wrote with `-o json`:

figures   from files of `llumctl simulate paper`: a line for each metric, point and policy. The
files of one figure may have a trace each. A ratio is the baseline's mean over ours. Geometric means
leave out points without a ratio; their intervals come from the seeds too, so points may share
requests. means     from the same files: only the geometric means, all metrics in one table. cost
from files of figure 15: instances at one prefill latency. overtaken from files of figure 11 at
matched load: how long one request was overtaken under llumnix+. bound     from files of figure 11
at matched load, and of `llumctl simulate -p O1` at the same loads: how much of the gap between
infaas++ and the bound O1 llumnix+ closes. parts     from files of `llumctl simulate -p llumnix+`,
named as PART=FILE: the figures of the first file of each trace, and how many times as high those of
its other files are. policies  from files of `llumctl simulate` with one run each: a line for each
policy.
"""

import argparse
import csv
import io
import json
import math
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from controller.sim.outcome import geometric_mean_ratio, mean_of, ratio_of_means
from llumctl.lab import simulation_report
from llumctl.lab.paper import BLOCK_TOKENS, crossing

# Cells and lines

TITLES = {
    "mean_num_instances": "mean number of instances",
    "ttft_s p99": "prefill (TTFT) P99, s",
    "ttft_s mean": "prefill mean, s",
    "ttft_s max": "prefill maximum, s",
    "tpot_s p99": "decode (TPOT) P99, s",
    "tpot_s mean": "decode mean, s",
    "longest_pause_s p99": "P99 of the longest pause, s",
    "preemption_loss_s": "preemption loss, s",
    "e2e_latency_s p99": "request P99, s",
    "e2e_latency_s mean": "request mean, s",
    "fragmentation": "fragmented memory, share",
}
"""For each metric, in the order of the tables."""

Interval = Mapping[str, float]
Run = Mapping[str, Any]


def value(run: Run, metric: str, rank: int | None = None) -> float:
    """A metric of one run, such as `ttft_s p99` or `preemption_loss_s`; with `rank`, for the
    requests of that rank."""
    name, _, statistic = metric.partition(" ")
    figures = run if rank is None else run["by_rank"][str(rank)]
    return float(figures[name][statistic] if statistic else figures[name])


@dataclass(frozen=True)
class Table:
    """The headings of the columns, and the lines, each with as many cells."""

    header: Sequence[str]
    lines: Sequence[Sequence[str]]

    def csv(self) -> str:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.header, *self.lines])
        return text.getvalue()

    def markdown(self) -> str:
        lines = (self.header, ["---"] * len(self.header), *self.lines)
        return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def mean_columns(found: Interval | None) -> list[str]:
    """The mean, and half of its interval; empty if there is none."""
    if found is None:
        return ["", ""]
    mean = simulation_report.number(found["mean"])
    if found["low"] is None:
        return [mean, ""]
    return [mean, number((found["high"] - found["low"]) / 2)]


def ratio_columns(found: Interval | None) -> list[str]:
    """The ratio, and the ends of its interval; empty if there is none."""
    if found is None:
        return ["", "", ""]
    return ["" if found[end] is None else times(found[end]) for end in ("mean", "low", "high")]


def ratio(found: Interval | None) -> str:
    if found is None:
        return "-"
    if found["low"] is None:
        return times(found["mean"])
    return f"{found['mean']:.3g} ({found['low']:.3g} to {found['high']:.3g})"


def number(found: float | None) -> str:
    return "-" if found is None else simulation_report.number(found)


def times(found: float | None) -> str:
    return "-" if found is None else f"{found:.3g}"


# Tables of the points of `llumctl simulate paper`

RANKS = {None: "", 0: "normal: ", 1: "high: "}
REAL = ("sharegpt", "burstgpt")
FROM_RUNS = {
    "figure14": ("ttft_s max", "preemption_loss_s"),
    "figure15": ("ttft_s mean", "ttft_s max", "preemption_loss_s"),
}
"""Metrics of the figure's runs that are not among its points."""
AT_COST = (("ttft_s p99", 5.0), ("ttft_s mean", 0.3), ("ttft_s max", 50.0))
"""Latencies in seconds at which numbers of instances are compared; the first is the paper's."""

Point = Mapping[str, Any]
File = Mapping[str, Any]


COLUMNS = (
    "metric",
    "point",
    "policy",
    "simulated",
    "plus_minus",
    "paper",
    "ratio",
    "ratio_low",
    "ratio_high",
    "paper_ratio",
)


def figures(files: Sequence[File]) -> Table:
    """A line for each rank, metric, point and policy. `simulated` is the mean over seeds, and
    `plus_minus` half of its 95% interval; `ratio` is the baseline's figure over the policy's, with
    its interval. A point that is called a geometric mean has only ratios."""
    figure, baseline = files[0]["figure"], files[0]["baseline"]
    points = [point for file in files for point in all_points(file)]
    lines = []
    for title, own in _by_metric(points):
        for point in own:
            policies = dict.fromkeys((baseline, *point["ratios"], *point["policies"]))
            lines += [
                _line(title, _place(figure, point), policy, point)
                for policy in policies
                if policy in point["policies"]
            ]
        ours = list(own[0]["ratios"])
        for label, alike in _groups(figure, own):
            means = {"policies": {}, "ratios": _means(alike, baseline, ours)}
            lines += [_line(title, label, policy, means) for policy in ours]
    return Table(COLUMNS, lines)


def _line(title: str, place: str, policy: str, point: Point) -> list[str]:
    nothing = {"simulated": None, "paper": None}
    figure = point["policies"].get(policy, nothing)
    ratio = point["ratios"].get(policy, nothing)
    line = [title, place, policy, *mean_columns(figure["simulated"])]
    line.append("" if figure["paper"] is None else number(figure["paper"]))
    line += ratio_columns(ratio["simulated"])
    return [*line, "" if ratio["paper"] is None else times(ratio["paper"])]


def _by_metric(points: Sequence[Point]) -> Iterator[tuple[str, list[Point]]]:
    order = list(TITLES)
    kinds = dict.fromkeys((point["rank"], point["metric"]) for point in points)
    for rank, metric in sorted(kinds, key=lambda kind: (-(kind[0] or 0), order.index(kind[1]))):
        own = [point for point in points if (point["rank"], point["metric"]) == (rank, metric)]
        yield f"{RANKS[rank]}{TITLES[metric]}", own


def all_points(file: File) -> list[Point]:
    """The points of the file, and further ones from its runs; each with its `values` by seed."""
    runs: dict[tuple[Any, ...], list[Run]] = {}
    for run in file["runs"]:
        runs.setdefault(_run_key(run), []).append(run)

    def values(place: Point, metric: str) -> dict[str, list[float]]:
        return {
            policy: [
                value(run, metric, place["rank"]) for run in runs.get((*_key(place), policy), [])
            ]
            for policy in place["policies"]
        }

    points: list[Point] = [
        {**point, "values": values(point, point["metric"])} for point in file["points"]
    ]
    places = {_key(point): point for point in points}
    for metric in FROM_RUNS.get(file["figure"], ()):
        points += [
            _point(place, metric, file["baseline"], values(place, metric))
            for place in places.values()
        ]
    return points


def _key(point: Point) -> tuple[Any, ...]:
    blocks = point["scale_from_blocks"]
    steps = None if blocks is None else BLOCK_TOKENS * blocks
    return point["lengths"] or point["workload"], point["rate"], point["cv"], steps


def _run_key(run: Run) -> tuple[Any, ...]:
    steps = run["settings"].get("autoscale.up_below_steps")
    found = run["workload"], run["rate"], run["options"].get("cv"), steps and float(steps)
    return *found, run["policy"]


def _point(
    place: Point, metric: str, baseline: str, values: Mapping[str, Sequence[float]]
) -> Point:
    def against(policy: str) -> dict[str, Any]:
        found = ratio_of_means(values[baseline], values[policy])
        return {"simulated": None if found is None else asdict(found), "paper": None}

    return {
        **place,
        "metric": metric,
        "values": values,
        "policies": {
            policy: {"simulated": asdict(mean_of(by_seed)), "paper": None}
            for policy, by_seed in values.items()
        },
        "ratios": {policy: against(policy) for policy in place["ratios"]},
    }


def _means(alike: Sequence[Point], baseline: str, ours: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The means by policy, over the points that have a ratio: a figure of zero has none."""

    def simulated(policy: str) -> dict[str, Any] | None:
        known = [point["values"] for point in alike if point["ratios"][policy]["simulated"]]
        pairs = [(values[baseline], values[policy]) for values in known]
        found = geometric_mean_ratio(pairs) if len(pairs) > 1 else None
        return None if found is None else asdict(found)

    return {
        policy: {
            "simulated": simulated(policy),
            "paper": _plain_mean([_paper(point, "ratios", policy) for point in alike]),
        }
        for policy in ours
    }


def means(files: Sequence[File]) -> Table:
    """The geometric means of all metrics in one table, with a column for each policy and group of
    points."""
    figure, baseline = files[0]["figure"], files[0]["baseline"]
    points = [point for file in files for point in all_points(file)]
    ours = list(points[0]["ratios"])
    header = ["geometric mean of ratios"]
    lines = []
    for title, own in _by_metric(points):
        groups = list(_groups(figure, own))
        labels = [label.removeprefix("geometric mean") for label, _ in groups]
        header[1:] = [f"{policy}{label}" for policy in ours for label in labels]
        by_group = [_means(alike, baseline, ours) for _, alike in groups]
        line = [ratio(found[policy]["simulated"]) for policy in ours for found in by_group]
        lines.append([title, *line])
    return Table(header, lines)


def _paper(point: Point, kind: str, policy: str) -> float | None:
    found: float | None = point[kind].get(policy, {"paper": None})["paper"]
    return found


def _groups(figure: str, points: Sequence[Point]) -> Iterator[tuple[str, list[Point]]]:
    """The groups of points whose ratios have a geometric mean, each with its name."""
    groups: dict[str, list[Point]] = {}
    if figure == "figure14":
        for point in points:
            label = f"geometric mean, {point['workload'].capitalize()}"
            groups.setdefault(label, []).append(point)
    elif points[0]["cv"] is not None:
        groups["geometric mean"] = list(points)
    else:
        for point in points:
            kind = "real" if point["workload"] in REAL else "generated"
            groups.setdefault(f"geometric mean, {kind}", []).append(point)
        if len(groups) > 1:
            groups["geometric mean, all"] = list(points)
    for label, alike in groups.items():
        if len(alike) > 1:
            yield label, alike


def _plain_mean(ratios: Sequence[float | None]) -> float | None:
    known = [ratio for ratio in ratios if ratio]
    return math.exp(sum(map(math.log, known)) / len(known)) if known else None


def _place(figure: str, point: Point) -> str:
    if figure == "figure15":
        return f"t = {point['x']:g}"
    if figure == "figure14" and point["cv"] is None:
        return f"Poisson {point['x']:g}/s"
    if point["cv"] is not None:
        return f"{'Gamma ' if figure == 'figure14' else ''}CV {point['x']:g}"
    return f"{point['workload']} {point['rate']:.3g}/s"


def cost(files: Sequence[File]) -> Table:
    """Figure 15: the number of instances at which the curve through a policy's means crosses a
    latency."""
    points = [point for file in files for point in all_points(file)]
    baseline, ours = files[0]["baseline"], list(points[0]["ratios"])
    found: dict[tuple[str, float], dict[str, float]] = {}
    for point in points:
        for policy, cell in point["policies"].items():
            found.setdefault((policy, point["x"]), {})[point["metric"]] = cell["simulated"]["mean"]
    lines = []
    for metric, target_s in AT_COST:
        at: dict[str, float | None] = {}
        for policy in (baseline, *ours):
            curve = [each for (name, _), each in found.items() if name == policy]
            pairs = [(each["mean_num_instances"], each[metric]) for each in curve]
            at[policy] = crossing(pairs, target_s)
        line = [f"{TITLES[metric].removesuffix(', s')} of {target_s:g} s"]
        line += [number(instances) for instances in at.values()]
        dearest = at[baseline]
        for policy in ours:
            own = at[policy]
            line.append(times(dearest / own if dearest and own else None))
        lines.append(line)
    over = [f"over {policy}" for policy in ours]
    return Table(["instances at a", baseline, *ours, *over], lines)


# Tables of runs: the bound O1, the parts of llumnix+, the policies on a public trace

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


def bound(files: Sequence[Any]) -> Table:
    """How much of the gap between infaas++ and O1 llumnix+ closes, by trace. If infaas++ is better
    than O1, there is no gap, and O1's own figure stands in brackets."""
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
                line.append(f"no gap ({number(worst)}, O1 {number(best)})")
            else:
                line.append(f"{100 * (worst - own) / (worst - best):.0f} %")
        lines.append(line)
    return Table(["gap closed", *(_title(metric) for metric in METRICS)], lines)


def overtaken(files: Sequence[Any]) -> Table:
    """The longest time of each, over all seeds."""
    lines = []
    for place, found in _by_place(files).items():
        plus, plain = found["llumnix+"], found["llumnix"]
        line = [
            _name(place),
            f"{max(run['longest_overtaken_s'] for run in plus):.1f}",
            f"{max(run['most_overtaking'] for run in plus)}",
        ]
        line += [f"{max(value(run, 'ttft_s max') for run in each):.1f}" for each in (plus, plain)]
        above = [
            own["seed"]
            for own, other in zip(plus, plain, strict=True)
            if value(own, "ttft_s max") > value(other, "ttft_s max")
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
    return Table(header, lines)


def parts(found: Sequence[tuple[str, Sequence[Run]]]) -> Table:
    """For each trace the figures of its first runs, which have all parts, then how many times as
    high each figure is in the other runs. `found` has runs of one trace under each name."""
    wholes: dict[str, Sequence[Run]] = {}
    lines = []
    for name, runs in found:
        trace = runs[0]["workload"]
        whole = wholes.setdefault(trace, runs)
        for metric in METRICS:
            base, own = ([value(run, metric) for run in each] for each in (whole, runs))
            ratio = None if runs is whole else ratio_of_means(own, base)
            mean = mean_columns(asdict(mean_of(base)) if runs is whole else None)
            times = ratio_columns(None if ratio is None else asdict(ratio))
            lines.append([trace, name, TITLES[metric], *mean, *times])
    header = ["trace", "part", "metric", "simulated", "plus_minus"]
    return Table([*header, "ratio", "ratio_low", "ratio_high"], lines)


def policies(files: Sequence[Sequence[Run]]) -> Table:
    """The policies in the order of their runs; those with the same figures share one line."""
    by_figures: dict[tuple[str, ...], list[str]] = {}
    for runs in files:
        for run in runs:
            figures = tuple(number(value(run, metric)) for metric in POLICY_METRICS)
            by_figures.setdefault(figures, []).append(f"`{run['policy']}`")
    lines = [[", ".join(names), *figures] for figures, names in by_figures.items()]
    return Table(["policy", *(TITLES[metric] for metric in POLICY_METRICS)], lines)


def _by_place(files: Sequence[Any]) -> dict[Place, dict[str, list[Run]]]:
    found: dict[Place, dict[str, list[Run]]] = {}
    for file in files:
        for run in file["runs"] if isinstance(file, dict) else file:
            place = run["workload"], run["rate"]
            found.setdefault(place, {}).setdefault(run["policy"], []).append(run)
    return found


def _mean(runs: Sequence[Run], metric: str) -> float:
    return mean_of([value(run, metric) for run in runs]).mean


def _title(metric: str) -> str:
    return TITLES[metric].removesuffix(", s")


def _name(place: Place) -> str:
    return f"{place[0]} {place[1]:.3g}/s"


# The command

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "paper"
RUNS = ROOT / "benchmarks" / "results" / "paper"

Found = tuple[str, Any]
"""A file's name, as given or before the `=`, and its content."""

KINDS: Mapping[str, Callable[[Sequence[Found]], Table]] = {
    "figures": lambda found: figures([file for _, file in found]),
    "means": lambda found: means([file for _, file in found]),
    "cost": lambda found: cost([file for _, file in found]),
    "overtaken": lambda found: overtaken([file for _, file in found]),
    "bound": lambda found: bound([file for _, file in found]),
    "parts": parts,
    "policies": lambda found: policies([file for _, file in found]),
}

KNEES = {
    "M-M": 6.86,
    "L-L": 2.67,
    "S-L": 3.66,
    "L-S": 17.1,
    "S-S": 27.9,
    "sharegpt": 8.31,
    "burstgpt": 9.42,
}
"""The rates in requests per second at which `infaas++` has a P99 TTFT of 30 s (docs/paper.md)."""
MOST = [trace for trace in KNEES if trace != "S-S"]
"""The traces of the tables beside the knee and of the bound: without S-S, which needs 20,000
requests."""
PARTS = {
    "all of it": "",
    "overtaking off": "holding.overtaking=false",
    "making room off": "holding.making_room=false",
    "reserved share 0: one instance is kept": "holding.reserved_share=0",
    "no relief before an eviction": "holding.evict_margin_steps=0",
    "no room to grow left": "holding.room_to_grow_tokens=0",
}
"""The parts of llumnix+, and the setting that switches each off."""

Simulated = list[str]
"""Arguments of `llumctl simulate`, without seeds and output."""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paper_tables",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("kind", choices=list(KINDS), nargs="?")
    parser.add_argument("files", nargs="*", metavar="FILE")
    parser.add_argument("--markdown", action="store_true", help="not as CSV")
    args = parser.parse_args()
    if args.kind is None:
        _write_all()
        return 0
    if not args.files:
        parser.error("name the files of the runs")
    table = KINDS[args.kind]([_read(name) for name in args.files])
    print(table.markdown() if args.markdown else table.csv(), end="")
    return 0


def _read(given: str) -> Found:
    name, _, file = given.rpartition("=")
    return name or given, json.loads(Path(file).read_text("utf-8"))


def plan() -> dict[str, tuple[str, dict[str, Simulated]]]:
    """For each file in docs/paper the kind of its table, and its runs by name."""
    matched = {trace: _matched(trace, "1") for trace in KNEES}
    bursts = ["paper", "figure13", "--matched", "--load", "1", "--knee", f"S-S={KNEES['S-S']}"]
    chunked = {
        figure: {f"{figure}-chunked": ["paper", figure, "--mode", "chunked"]}
        for figure in ("figure14", "figure15")
    }
    bounds = {f"O1 {trace}": [*_at_knee(trace), "-p", "O1"] for trace in MOST}
    return {
        **{
            figure: ("figures", {figure: ["paper", figure]})
            for figure in ("figure11", "figure12", "figure13", "figure14", "figure15")
        },
        "figure13-matched": ("figures", {"bursts": [*bursts, "--requests", "20000"]}),
        "figure14-chunked": ("figures", chunked["figure14"]),
        "figure15-chunked": ("figures", chunked["figure15"]),
        "figure15-cost": ("cost", {"figure15": ["paper", "figure15"]}),
        "figure15-chunked-cost": ("cost", chunked["figure15"]),
        "matched-1.0": ("figures", matched),
        "matched-0.9": ("figures", _all_matched(MOST, "0.9")),
        "matched-1.05": ("figures", _all_matched(MOST, "1.05")),
        "matched-prefill-first": (
            "figures",
            _all_matched(KNEES, "1", "--mode", "prefill-first"),
        ),
        "overtaken": ("overtaken", matched),
        "bound": ("bound", {**{trace: matched[trace] for trace in MOST}, **bounds}),
        "parts": (
            "parts",
            {
                f"{trace} {part}": [
                    *_at_knee(trace),
                    "-p",
                    "llumnix+",
                    *(["--set", setting] if setting else []),
                ]
                for trace in ("M-M", "S-L", "burstgpt")
                for part, setting in PARTS.items()
            },
        ),
    }


def _all_matched(traces: Sequence[str] | Mapping[str, float], *more: str) -> dict[str, Simulated]:
    return {" ".join((trace, *more)): _matched(trace, *more) for trace in traces}


def _matched(trace: str, load: str, *more: str) -> Simulated:
    knee = ["-w", trace, "--knee", f"{trace}={KNEES[trace]}"]
    requests = ["--requests", "20000"] if trace == "S-S" else []
    return ["paper", "figure11", "--matched", "--load", load, *knee, *requests, *more]


def _at_knee(trace: str) -> Simulated:
    return ["-w", trace, "--rate", str(KNEES[trace])]


def _write_all() -> None:
    RUNS.mkdir(parents=True, exist_ok=True)
    FOLDER.mkdir(exist_ok=True)
    for name, (kind, runs) in plan().items():
        found = [(run.partition(" ")[2], _simulated(run, given)) for run, given in runs.items()]
        (FOLDER / f"{name}.csv").write_text(KINDS[kind](found).csv(), "utf-8")
        print(f"docs/paper/{name}.csv", flush=True)


def _simulated(name: str, given: Simulated) -> Any:
    """The output of that run, which is made if it is missing."""
    path = RUNS / f"{re.sub(r'[^A-Za-z0-9.-]+', '-', name)}.json"
    if not path.exists():
        command = [sys.executable, "-m", "llumctl", "simulate", *given]
        result = subprocess.run(
            [*command, "--seeds", "10", "-o", "json"], stdout=subprocess.PIPE, check=True
        )
        path.write_bytes(result.stdout)
    return json.loads(path.read_bytes())


if __name__ == "__main__":
    sys.exit(main())
