"""Tables of the points of `llumctl simulate paper`."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks import paper_cells as cells
from controller.sim.outcome import geometric_mean_ratio, mean_of, ratio_of_means
from llumctl.lab.paper import BLOCK_TOKENS, crossing

RANKS = {None: "", 0: "normal: ", 1: "high: "}
REAL = ("sharegpt", "burstgpt")
FROM_RUNS = {
    "figure14": ("ttft_s max", "preemption_loss_s"),
    "figure15": ("ttft_s mean", "ttft_s max", "preemption_loss_s"),
}
"""Metrics that are in the figure's runs and not among its points."""
AT_COST = (("ttft_s p99", 5.0), ("ttft_s mean", 0.3), ("ttft_s max", 50.0))
"""Latencies in seconds at which instances are compared; the paper's is the first."""

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


def figures(files: Sequence[File]) -> cells.Table:
    """A line for each rank, metric, point and policy. `simulated` is the mean over seeds, and
    `plus_minus` half of its 95% interval; `ratio` is the baseline's over the policy's, with its
    interval. A point that is called a geometric mean has ratios alone."""
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
    return cells.Table(COLUMNS, lines)


def _line(title: str, place: str, policy: str, point: Point) -> list[str]:
    nothing = {"simulated": None, "paper": None}
    figure = point["policies"].get(policy, nothing)
    ratio = point["ratios"].get(policy, nothing)
    line = [title, place, policy, *cells.mean_columns(figure["simulated"])]
    line.append("" if figure["paper"] is None else cells.number(figure["paper"]))
    line += cells.ratio_columns(ratio["simulated"])
    return [*line, "" if ratio["paper"] is None else cells.times(ratio["paper"])]


def _by_metric(points: Sequence[Point]) -> Iterator[tuple[str, list[Point]]]:
    order = list(cells.TITLES)
    kinds = dict.fromkeys((point["rank"], point["metric"]) for point in points)
    for rank, metric in sorted(kinds, key=lambda kind: (-(kind[0] or 0), order.index(kind[1]))):
        own = [point for point in points if (point["rank"], point["metric"]) == (rank, metric)]
        yield f"{RANKS[rank]}{cells.TITLES[metric]}", own


def all_points(file: File) -> list[Point]:
    """Those of the file, and those that its runs have besides; each with its `values` by seed."""
    runs: dict[tuple[Any, ...], list[cells.Run]] = {}
    for run in file["runs"]:
        runs.setdefault(_run_key(run), []).append(run)

    def values(place: Point, metric: str) -> dict[str, list[float]]:
        return {
            policy: [
                cells.value(run, metric, place["rank"])
                for run in runs.get((*_key(place), policy), [])
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


def _run_key(run: cells.Run) -> tuple[Any, ...]:
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
    """By policy, over the points that have a ratio: nothing is no times less than something."""

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


def means(files: Sequence[File]) -> cells.Table:
    """The geometric means of all metrics in one table: a column per policy and group of points."""
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
        line = [cells.ratio(found[policy]["simulated"]) for policy in ours for found in by_group]
        lines.append([title, *line])
    return cells.Table(header, lines)


def _paper(point: Point, kind: str, policy: str) -> float | None:
    found: float | None = point[kind].get(policy, {"paper": None})["paper"]
    return found


def _groups(figure: str, points: Sequence[Point]) -> Iterator[tuple[str, list[Point]]]:
    """Those whose ratios have a geometric mean, each group with its name."""
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


def cost(files: Sequence[File]) -> cells.Table:
    """Figure 15: instances where the curve through the means of a policy crosses a latency."""
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
        line = [f"{cells.TITLES[metric].removesuffix(', s')} of {target_s:g} s"]
        line += [cells.number(instances) for instances in at.values()]
        dearest = at[baseline]
        for policy in ours:
            own = at[policy]
            line.append(cells.times(dearest / own if dearest and own else None))
        lines.append(line)
    over = [f"over {policy}" for policy in ours]
    return cells.Table(["instances at a", baseline, *ours, *over], lines)
