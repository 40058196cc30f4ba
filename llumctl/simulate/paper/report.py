"""An experiment's points as tables and as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from controller.sim.run import Ran
from controller.sim.statistics import Interval
from llumctl.simulate import report
from llumctl.simulate.paper.compare import GeometricMean, Row
from llumctl.simulate.paper.cost import Cost
from llumctl.simulate.paper.figures import Experiment
from llumctl.text import output

RANKS = {None: "", 0: "normal ", 1: "high "}


def tables(
    experiment: Experiment,
    found: Sequence[Row],
    means: Sequence[GeometricMean],
    title: str,
    cost: Cost | None,
    *,
    colours: bool,
) -> str:
    """One per workload, then the geometric means, and of figure 15 what its latency costs."""
    parts = [title]
    for workload in dict.fromkeys(row.case.workload for row in found):
        own = [row for row in found if row.case.workload == workload]
        parts += [workload, _table(experiment, own, colours)]
    if means:
        parts += ["geometric means", _means(experiment, means, colours)]
    if cost is not None:
        title = f"instances at a prefill P99 of {cost.target_s:g} s"
        parts += [title, _cost(experiment, cost, colours)]
    return "\n\n".join(parts)


def _table(experiment: Experiment, own: Sequence[Row], colours: bool) -> str:
    policies = experiment.policies(own[0].case.workload)
    has_paper = any(cell.paper is not None for row in own for cell in row.cells.values())
    header = ["", experiment.x_title]
    for policy in policies:
        header += [policy, "paper"] if has_paper else [policy]
    for policy in experiment.ours:
        header.append(f"{experiment.baseline}/{policy}")
        header += ["paper"] if has_paper else []
    lines = []
    for row in own:
        line = [f"{RANKS[row.rank]}{row.metric}", f"{row.case.x:g}"]
        for policy in policies:
            cell = row.cells[policy]
            line.append(report.with_interval(cell.mean))
            line += [_number(cell.paper)] if has_paper else []
        for policy in experiment.ours:
            line.append(_ratio(row.ratio(policy)))
            line += [_times(row.paper_ratio(policy))] if has_paper else []
        lines.append(line)
    return output.table(header, lines, colours=colours)


def _means(experiment: Experiment, means: Sequence[GeometricMean], colours: bool) -> str:
    header = ["", "TRACES", "POINTS", "OVER", f"{experiment.baseline}/", "paper"]
    lines = [
        [
            f"{RANKS[mean.rank]}{mean.metric}",
            mean.traces,
            str(mean.num_points),
            mean.policy,
            _ratio(mean.simulated),
            _times(mean.paper),
        ]
        for mean in means
    ]
    return output.table(header, lines, colours=colours)


def _cost(experiment: Experiment, cost: Cost, colours: bool) -> str:
    rows = []
    for policy, simulated in cost.simulated.items():
        row = [policy, _number(simulated), _number(cost.paper[policy])]
        for found in (cost.simulated, cost.paper):
            ours, theirs = found[policy], found[experiment.baseline]
            row.append(_times(theirs / ours if ours and theirs else None))
        rows.append(row)
    return output.table(
        ["", "", "paper", f"{experiment.baseline}/", "paper"], rows, colours=colours
    )


def as_json(
    experiment: Experiment,
    found: Sequence[Row],
    means: Sequence[GeometricMean],
    knees: Mapping[str, float],
    ran: Sequence[Ran],
    cost: Cost | None,
) -> dict[str, Any]:
    return {
        "figure": experiment.name,
        "mode": experiment.mode,
        "baseline": experiment.baseline,
        "knees": dict(knees),
        "points": [_point(experiment, row) for row in found],
        "geometric_means": [
            {**asdict(mean), "simulated": _interval(mean.simulated)} for mean in means
        ],
        "cost": None if cost is None else asdict(cost),
        "runs": [report.as_json(each) for each in ran],
    }


def _point(experiment: Experiment, row: Row) -> dict[str, Any]:
    return {
        **asdict(row.case),
        "rank": row.rank,
        "metric": row.metric,
        "policies": {
            policy: {"simulated": _interval(cell.mean), "paper": cell.paper}
            for policy, cell in row.cells.items()
        },
        "ratios": {
            policy: {"simulated": _interval(row.ratio(policy)), "paper": row.paper_ratio(policy)}
            for policy in experiment.ours
        },
    }


def _interval(found: Interval | None) -> dict[str, Any] | None:
    return None if found is None else asdict(found)


def _number(value: float | None) -> str:
    return "-" if value is None else report.number(value)


def _ratio(found: Interval | None) -> str:
    return "-" if found is None else report.with_range(found)


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}x"
