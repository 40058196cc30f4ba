"""One call of `llumctl simulate paper`, from what is wanted to what is shown."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from controller.model.profile import Mode
from controller.sim.run import Load, Run
from llumctl.choices import one_of
from llumctl.simulate import find_knee, plan
from llumctl.simulate import report as plain_report
from llumctl.simulate import session as plain
from llumctl.simulate.paper import compare, report
from llumctl.simulate.paper.cost import costs
from llumctl.simulate.paper.figures import (
    GENERATED,
    REAL,
    SCALED,
    Case,
    Experiment,
    figure,
    matched,
    matched_bursts,
    middle,
    scaling,
    settings,
)
from llumctl.simulate.paper.points import FigureName, points
from llumctl.simulate.plan import Wanted
from llumctl.simulate.progress import ProgressBar
from llumctl.simulate.workers import Workers
from llumctl.text import output


@dataclass(frozen=True, slots=True)
class Asked:
    """`workloads`: only these of the figure's; none means all. `mode` None: the experiment's own.
    `knees`: the rates of INFaaS++'s knee that are known, others are searched."""

    figure: FigureName
    seeds: Sequence[int]
    num_requests: int | None = None
    workloads: Sequence[str] = ()
    only_middle: bool = False
    mode: Mode | None = None
    matched: bool = False
    shares: Sequence[float] = ()
    knees: Mapping[str, float] = field(default_factory=dict)
    num_instances: int = 16
    profile: str = "a10-llama-7b"


def simulate(asked: Asked, num_workers: int | None, plot: Path | None, *, as_json: bool) -> None:
    """Carries out the runs of a figure and shows its points.

    Raises:
        UsageError: what is asked for is not in the figure, or cannot be carried out.
    """
    knees = _knees(asked, num_workers) if asked.matched else {}
    if not asked.matched:
        experiment = figure(asked.figure)
    elif asked.figure is FigureName.FIGURE13:
        (knee,) = knees.values()
        experiment = matched_bursts(knee, asked.shares)
    else:
        experiment = matched(knees, asked.shares)
    if asked.mode is not None:
        experiment = replace(experiment, mode=asked.mode)
    if asked.figure in SCALED and experiment.mode == "chunked":
        experiment = replace(experiment, ours=[*experiment.ours, "llumnix+"])
    cases = _cases(asked, experiment)
    ran = plain.carried_out(runs(asked, experiment, cases), num_workers)
    shown_by_paper = {} if asked.matched else points(asked.figure)
    rows = compare.rows(experiment, cases, ran, shown_by_paper)
    means = compare.geometric_means(experiment, rows)
    cost = costs(rows) if asked.figure is FigureName.FIGURE15 else None
    if as_json:
        found = report.as_json(experiment, rows, means, knees, ran, cost)
        output.emit(output.json_text(found, indent=2))
    else:
        instances = f"1..{asked.num_instances}" if asked.figure in SCALED else asked.num_instances
        title = (
            f"{experiment.name}  {instances} x {asked.profile}  {experiment.mode}"
            f"  {ran[0].num_requests} requests  seeds {asked.seeds[0]} to {asked.seeds[-1]}"
        )
        colours = output.use_colours(sys.stdout)
        output.emit(report.tables(experiment, rows, means, title, cost, colours=colours))
    if plot is not None:
        from llumctl.simulate import plot as drawing

        drawing.save(plot, ran)
    for line in plain_report.never_steady(ran):
        output.say(f"warning: {line}")


def runs(asked: Asked, experiment: Experiment, cases: Sequence[Case]) -> list[Run]:
    """By load, policy and seed."""
    return [
        run
        for case in cases
        for policy in experiment.policies(case.workload)
        for run in plan.runs(
            Wanted(
                workloads=[case.requests],
                rates=[case.rate],
                sizes=[_at_first(asked, case)],
                policies=[policy],
                seeds=asked.seeds,
                load=Load(
                    "",
                    num_requests=asked.num_requests,
                    cv=case.cv,
                    high_fraction=case.high_fraction,
                ),
                profile=asked.profile,
                mode=experiment.mode,
                settings={
                    **settings(policy, case.requests),
                    **scaling(case, asked.num_instances),
                },
                autoscale=None if case.scale_from_blocks is None else (1, asked.num_instances),
            )
        )
    ]


def _at_first(asked: Asked, case: Case) -> int:
    """With auto-scaling half of the most, as the authors' 8 of 16."""
    return asked.num_instances if case.scale_from_blocks is None else (asked.num_instances + 1) // 2


def _cases(asked: Asked, experiment: Experiment) -> list[Case]:
    chosen = _chosen(asked, experiment.workloads)
    cases = middle(experiment) if asked.only_middle else list(experiment.cases)
    return [case for case in cases if case.workload in chosen]


def _chosen(asked: Asked, known: Sequence[str]) -> list[str]:
    for name in asked.workloads:
        one_of(name, known, "--workload", f"a trace of {asked.figure}")
    return [name for name in known if not asked.workloads or name in asked.workloads]


def _knees(asked: Asked, num_workers: int | None) -> dict[str, float]:
    """Of each workload, as `llumctl simulate knee` finds it, unless it is given."""
    is_burst = asked.figure is FigureName.FIGURE13
    known = figure(asked.figure).workloads if is_burst else [*GENERATED, *REAL]
    for name in asked.knees:
        one_of(name, known, "--knee", f"a trace of {asked.figure}")
    found = {}
    with Workers(num_workers) as workers, ProgressBar() as bar:
        for name in _chosen(asked, known):
            if name in asked.knees:
                found[name] = asked.knees[name]
                continue
            bar.title = f"knee of {name}"
            wanted = Wanted(
                workloads=[name],
                rates=[1.0],
                sizes=[asked.num_instances],
                policies=["infaas++"],
                seeds=asked.seeds,
                load=Load("", num_requests=asked.num_requests),
                profile=asked.profile,
                mode=asked.mode or "chunked",
            )
            found[name] = find_knee.find(wanted, workers, on_progress=bar).knee.rate
    return found
