"""`llumctl simulate paper`: simulates the figures of the Llumnix paper, and shows them next to the
paper's values.

`paper_points.csv` was read off the vector graphics of Sun et al., "Llumnix: Dynamic Scheduling for
Large Language Model Serving" (OSDI '24). Its column `x` is the rate in requests per second. In
figure 13, and with the Gamma arrivals of figure 14, it is the coefficient of variation of the gaps;
in figure 15 it is the threshold of scaling in blocks per request. Of figure 12 the file has the two
shares that the text gives. The names of policies and metrics are ours.
"""

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

from controller.model.profile import Mode
from controller.sim.outcome import Interval, geometric_mean_ratio, mean_of, ratio_of_means
from controller.sim.run import Load, Ran, Run
from llumctl import output
from llumctl.arguments import one_of
from llumctl.lab import simulation, simulation_plan, simulation_report
from llumctl.lab.option_values import FigureName
from llumctl.lab.simulation_plan import Wanted
from llumctl.lab.simulation_report import Figure, Seeds, count, latency
from llumctl.lab.simulation_workers import ProgressBar, Workers


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line asks for. `workloads`: only these of the figure; empty means all.
    `mode`: None means the experiment's own mode. `knees`: known rates of INFaaS++'s knee; the
    others are searched."""

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
    """Carries out the runs of a figure, and shows its points.

    Raises:
        UsageError: the figure does not have what is asked for, or it cannot be carried out.
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
    ran = simulation.carried_out(runs(asked, experiment, cases), num_workers)
    shown_by_paper = {} if asked.matched else points(asked.figure)
    rows = compared(experiment, cases, ran, shown_by_paper)
    means = geometric_means(experiment, rows)
    cost = costs(rows) if asked.figure is FigureName.FIGURE15 else None
    if as_json:
        found = document(experiment, rows, means, knees, ran, cost)
        output.emit(output.json_text(found, indent=2))
    else:
        instances = f"1..{asked.num_instances}" if asked.figure in SCALED else asked.num_instances
        title = (
            f"{experiment.name}  {instances} x {asked.profile}  {experiment.mode}"
            f"  {ran[0].num_requests} requests  seeds {asked.seeds[0]} to {asked.seeds[-1]}"
        )
        output.emit(tables(experiment, rows, means, title, cost))
    if plot is not None:
        simulation_report.save_plot(plot, ran)
    for line in simulation_report.never_steady(ran):
        output.say(f"warning: {line}")


# -- the paper's values -----------------------------------------------------------------

FILE = Path(__file__).with_name("paper_points.csv")


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a point in a figure. `workload`: the trace; in figures 14 and 15, how it
    arrives. `rank`: only requests of this rank."""

    workload: str
    x: float
    rank: int | None
    policy: str
    metric: str


@cache
def points(figure: FigureName) -> dict[Place, float]:
    """All points of a figure, in the order of the file; times in seconds."""
    with FILE.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["figure"] == figure]
    return {
        Place(
            row["workload"],
            float(row["x"]),
            int(row["rank"]) if row["rank"] else None,
            row["policy"],
            row["metric"],
        ): float(row["value"])
        for row in rows
    }


# -- experiments: which policies, which loads, which constants --------------------------

# Rates and traces are the paper's, and thresholds are those of its authors' experiments. None was
# chosen after seeing results.
GENERATED = ("S-S", "M-M", "L-L", "S-L", "L-S")
REAL = ("sharegpt", "burstgpt")
SCALED = (FigureName.FIGURE14, FigureName.FIGURE15)
FIGURE13_RATE = 26.0
FIGURE13_HIGH_FRACTION = 0.1
SCALED_RATE = 2.0
"""The rate of the Gamma arrivals in figures 14 and 15."""
SCALED_CV = 2.0
"""The CV of the arrivals in figure 15."""
SCALE_FROM_BLOCKS = 10.0
SCALE_RANGE_BLOCKS = 50.0
BLOCK_TOKENS = 16
LONG_STEPS = MappingProxyType(dict.fromkeys(("M-M", "S-L"), 160))
"""Thresholds of moves on these traces. On others the default applies, 48 steps, which the authors
use too."""


@dataclass(frozen=True, slots=True)
class Case:
    """One load of a figure, at the place `x`. `lengths`: the name of the requests' lengths, if it
    is not `workload`. `scale_from_blocks`: with auto-scaling, the number of free blocks per request
    below which instances are added."""

    workload: str
    x: float
    rate: float
    cv: float | None = None
    high_fraction: float | None = None
    lengths: str = ""
    scale_from_blocks: float | None = None

    @property
    def requests(self) -> str:
        """The name of the requests in `--workload`."""
        return self.lengths or self.workload


@dataclass(frozen=True, slots=True)
class Experiment:
    """A figure, or loads at equal distances from the knee. The result is the ratio of `baseline` to
    `ours`. `extra`: other policies, each on the given workloads. `mode`: how engines schedule,
    unless the call says otherwise. `ranks`: (None,) if all requests have the same rank."""

    name: str
    x_title: str
    baseline: str
    ours: Sequence[str]
    metrics: Sequence[str]
    cases: Sequence[Case]
    extra: Mapping[str, Sequence[str]] = field(default_factory=dict)
    ranks: Sequence[int | None] = (None,)
    mode: Mode = "prefill-first"

    def policies(self, workload: str) -> list[str]:
        more = [name for name, workloads in self.extra.items() if workload in workloads]
        return [self.baseline, *self.ours, *more]

    @property
    def workloads(self) -> list[str]:
        return list(dict.fromkeys(case.workload for case in self.cases))


def figure(name: FigureName) -> Experiment:
    """The paper's experiment with all of its loads."""
    found = points(name)
    places = dict.fromkeys((place.workload, place.x) for place in found)
    metrics = list(dict.fromkeys(place.metric for place in found))
    if name is FigureName.FIGURE13:
        cases = [
            Case(workload, cv, FIGURE13_RATE, cv, FIGURE13_HIGH_FRACTION) for workload, cv in places
        ]
        return Experiment(name, "CV", "llumnix-base", ["llumnix"], metrics, cases, ranks=(1, 0))
    cases = [Case(workload, rate, rate) for workload, rate in places]
    if name in SCALED:
        return Experiment(
            name,
            "T" if name is FigureName.FIGURE15 else "RATE/CV",
            "infaas++",
            ["llumnix"],
            metrics,
            [_scaled(name, *place) for place in places],
        )
    extra = {"round-robin": REAL} if name is FigureName.FIGURE11 else {}
    return Experiment(name, "RATE", "infaas++", ["llumnix"], metrics, cases, extra)


def _scaled(name: FigureName, arrivals: str, x: float) -> Case:
    """A load of figure 14 or 15. These have one trace, and differ in the arrivals of its
    requests."""
    if name is FigureName.FIGURE15:
        return Case(arrivals, x, SCALED_RATE, SCALED_CV, lengths="L-L", scale_from_blocks=x)
    rate, cv = (x, None) if arrivals == "poisson" else (SCALED_RATE, x)
    return Case(arrivals, x, rate, cv, lengths="L-L", scale_from_blocks=SCALE_FROM_BLOCKS)


MATCHED_METRICS = (
    "ttft_s p99",
    "ttft_s mean",
    "longest_pause_s p99",
    "preemption_loss_s",
    "tpot_s p99",
    "ttft_s max",
    "e2e_latency_s mean",
    "fragmentation",
)


def matched(knees: Mapping[str, float], shares: Sequence[float]) -> Experiment:
    """Loads at shares of the rate at which INFaaS++ has a P99 TTFT of 30 s."""
    cases = [Case(name, share, share * rate) for name, rate in knees.items() for share in shares]
    ours = ["llumnix", "llumnix+"]
    return Experiment("matched", "LOAD", "infaas++", ours, MATCHED_METRICS, cases, mode="chunked")


def matched_bursts(knee: float, shares: Sequence[float]) -> Experiment:
    """Figure 13's bursts and priorities at shares of the knee of its trace."""
    bursts = figure(FigureName.FIGURE13)
    cases = [
        replace(case, workload=f"{share:g} of the knee", rate=share * knee, lengths=case.workload)
        for share in shares
        for case in bursts.cases
    ]
    ours = ["llumnix", "llumnix+"]
    return replace(bursts, name="matched", ours=ours, cases=cases, mode="chunked")


def middle(experiment: Experiment) -> list[Case]:
    """For each workload, the middle one of its loads."""
    found = []
    for workload in experiment.workloads:
        cases = sorted(
            (case for case in experiment.cases if case.workload == workload),
            key=lambda case: case.x,
        )
        found.append(cases[(len(cases) - 1) // 2])
    return found


def scaling(case: Case, max_instances: int) -> dict[str, str]:
    """Settings that scale like the authors' code: each check decides by itself, and may add any
    number of instances."""
    if case.scale_from_blocks is None:
        return {}
    up_below_steps = BLOCK_TOKENS * case.scale_from_blocks
    return {
        "autoscale.up_below_steps": f"{up_below_steps:g}",
        "autoscale.down_above_steps": f"{up_below_steps + BLOCK_TOKENS * SCALE_RANGE_BLOCKS:g}",
        "autoscale.up_above_backlog_s": "0",
        "autoscale.max_added": f"{max_instances}",
        "autoscale.up_persistence_s": "0",
        "autoscale.down_persistence_s": "0",
    }


def settings(policy: str, workload: str) -> dict[str, str]:
    """Settings of the paper's policies in their authors' experiments. `llumnix+` keeps its
    defaults: one setting must serve all loads."""
    if policy not in ("llumnix", "llumnix-base"):
        return {}
    found = {"migration.guard": "off"}
    if (steps := LONG_STEPS.get(workload)) is not None:
        found["migration.source_below_steps"] = str(steps)
        found["migration.destination_above_steps"] = str(steps)
    return found


# -- runs of an experiment --------------------------------------------------------------


def runs(asked: Asked, experiment: Experiment, cases: Sequence[Case]) -> list[Run]:
    """The runs by load, policy and seed."""
    return [
        run
        for case in cases
        for policy in experiment.policies(case.workload)
        for run in simulation_plan.runs(
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
    """The number of instances at first: with auto-scaling half of the most, like the authors' 8 of
    16."""
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
    """The knee of each workload: the given one, or else the one that `llumctl simulate knee`
    finds."""
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
            found[name] = simulation.find_knee(wanted, workers, on_progress=bar).knee.rate
    return found


# -- simulated values beside the paper's, and their ratios ------------------------------

Key = tuple[str, float | None, float | None, float | None, str]
"""Lengths, rate, CV, the lower end of the range of auto-scaling in steps, policy."""


@dataclass(frozen=True, slots=True)
class Cell:
    """The result of one policy at one point. `values`: one for each seed. `paper`: the paper's
    value, if there is one."""

    values: Sequence[float]
    paper: float | None

    @property
    def mean(self) -> Interval | None:
        return mean_of(self.values) if self.values else None


@dataclass(frozen=True, slots=True)
class Row:
    """One metric of one load under each policy."""

    case: Case
    rank: int | None
    metric: str
    baseline: str
    cells: Mapping[str, Cell]

    def ratio(self, policy: str) -> Interval | None:
        """The ratio of the baseline to the policy; None if it cannot be computed."""
        above, below = self.pair(policy)
        if not above or len(above) != len(below):
            return None
        return ratio_of_means(above, below)

    def paper_ratio(self, policy: str) -> float | None:
        above, below = self.cells[self.baseline].paper, self.cells[policy].paper
        return above / below if above and below else None

    def pair(self, policy: str) -> tuple[Sequence[float], Sequence[float]]:
        return self.cells[self.baseline].values, self.cells[policy].values


@dataclass(frozen=True, slots=True)
class GeometricMean:
    """The geometric mean of one metric's ratios over those points of `traces` that have a ratio;
    `num_points` is their number. `paper`: the mean of the paper's ratios at the same points."""

    traces: str
    rank: int | None
    metric: str
    policy: str
    num_points: int
    simulated: Interval
    paper: float | None


def compared(
    experiment: Experiment,
    cases: Sequence[Case],
    ran: Sequence[Ran],
    shown_by_paper: Mapping[Place, float],
) -> list[Row]:
    """The rows by workload, rank, metric and then load, in the order in which a figure is read."""
    by_key: dict[Key, list[Ran]] = {}
    for each in ran:
        load, policy = each.run.load, each.run.setup.policy
        scale = policy.autoscale
        steps = None if scale is None else scale.up_below_steps
        key = load.workload, load.rate, load.cv, steps, policy.name
        by_key.setdefault(key, []).append(each)

    def cell(case: Case, rank: int | None, metric: str, policy: str) -> Cell:
        blocks = case.scale_from_blocks
        steps = None if blocks is None else BLOCK_TOKENS * blocks
        key = case.requests, case.rate, case.cv, steps, policy
        seeds = Seeds(policy, by_key.get(key, []))
        place = Place(case.workload, case.x, rank, policy, metric)
        return Cell(seeds.values(measured(metric, rank)), shown_by_paper.get(place))

    return [
        Row(
            case,
            rank,
            metric,
            experiment.baseline,
            {
                policy: cell(case, rank, metric, policy)
                for policy in experiment.policies(case.workload)
            },
        )
        for workload in dict.fromkeys(case.workload for case in cases)
        for rank in experiment.ranks
        for metric in experiment.metrics
        for case in cases
        if case.workload == workload
    ]


def measured(metric: str, rank: int | None) -> Figure:
    """The metric of a name: `ttft_s p99`, `preemption_loss_s`, `fragmentation`."""
    if metric in ("fragmentation", "mean_num_instances"):
        return lambda summary: float(getattr(summary, metric))
    name, _, statistic = metric.partition(" ")
    return latency(name, statistic, rank) if statistic else count(name, rank)


_TRACES: Mapping[str, Callable[[str], bool]] = {
    "generated": lambda requests: requests in GENERATED,
    "real": lambda requests: requests in REAL,
}


def geometric_means(experiment: Experiment, found: Sequence[Row]) -> list[GeometricMean]:
    """The means over the generated and over the real traces, for each rank, metric and policy of
    ours."""
    means = []
    for traces, among in _TRACES.items():
        for rank in experiment.ranks:
            for metric in experiment.metrics:
                alike = [
                    row
                    for row in found
                    if (row.rank, row.metric) == (rank, metric) and among(row.case.requests)
                ]
                for policy in experiment.ours:
                    mean = _geometric_mean(traces, alike, policy)
                    if mean is not None:
                        means.append(mean)
    return means


def _geometric_mean(traces: str, alike: Sequence[Row], policy: str) -> GeometricMean | None:
    with_ratio = [row for row in alike if row.ratio(policy) is not None]
    if len(with_ratio) < 2:
        return None
    simulated = geometric_mean_ratio([row.pair(policy) for row in with_ratio])
    if simulated is None:
        return None
    theirs = [row.paper_ratio(policy) for row in with_ratio]
    known = [ratio for ratio in theirs if ratio is not None]
    paper = geometric_mean_ratio([([ratio], [1.0]) for ratio in known]) if known else None
    row = with_ratio[0]
    return GeometricMean(
        traces,
        row.rank,
        row.metric,
        policy,
        len(with_ratio),
        simulated,
        paper.mean if paper is not None and len(known) == len(with_ratio) else None,
    )


# -- figure 15: how many instances a P99 of prefills costs ------------------------------

TARGET_S = 5.0
"""The latency at which the paper compares."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The number of instances that each policy needs for this P99; None if its curve does not reach
    it."""

    target_s: float
    simulated: Mapping[str, float | None]
    paper: Mapping[str, float | None]


def costs(found: Sequence[Row], target_s: float = TARGET_S) -> Cost:
    """The costs, computed from means over seeds. `found`: the rows of figure 15."""
    by_x: dict[float, dict[str, Row]] = {}
    for row in found:
        by_x.setdefault(row.case.x, {})[row.metric] = row
    pairs = [(each["mean_num_instances"], each["ttft_s p99"]) for each in by_x.values()]
    policies = list(dict.fromkeys(policy for row in found for policy in row.cells))

    return Cost(
        target_s,
        {policy: crossing(_curve(pairs, policy, _simulated), target_s) for policy in policies},
        {policy: crossing(_curve(pairs, policy, _paper), target_s) for policy in policies},
    )


def _curve(
    pairs: Sequence[tuple[Row, Row]], policy: str, value: Callable[[Cell], float | None]
) -> list[tuple[float, float]]:
    points = [(value(x.cells[policy]), value(y.cells[policy])) for x, y in pairs]
    return [(x, y) for x, y in points if x is not None and y is not None]


def _simulated(cell: Cell) -> float | None:
    return None if cell.mean is None else cell.mean.mean


def _paper(cell: Cell) -> float | None:
    return cell.paper


def crossing(points: Sequence[tuple[float, float]], target_s: float) -> float | None:
    """The fewest instances from which the P99 stays at or below the target. On the curve through
    the points (instances, P99), the logarithm of P99 is linear between two points. None if the last
    point is above the target, or if the first one is already below it."""
    last_first = sorted(points, reverse=True)
    for (high, low_s), (low, high_s) in pairwise(last_first):
        if low_s > target_s:
            return None
        if high_s > target_s:
            share = math.log(target_s / low_s) / math.log(high_s / low_s)
            return high + share * (low - high)
    return None


# -- tables and JSON --------------------------------------------------------------------

RANKS = {None: "", 0: "normal ", 1: "high "}


def tables(
    experiment: Experiment,
    found: Sequence[Row],
    means: Sequence[GeometricMean],
    title: str,
    cost: Cost | None,
) -> str:
    """A table for each workload, then the geometric means and, for figure 15, the costs."""
    parts = [title]
    for workload in dict.fromkeys(row.case.workload for row in found):
        own = [row for row in found if row.case.workload == workload]
        parts += [workload, _table(experiment, own)]
    if means:
        parts += ["geometric means", _means(experiment, means)]
    if cost is not None:
        title = f"instances at a prefill P99 of {cost.target_s:g} s"
        parts += [title, _cost(experiment, cost)]
    return "\n\n".join(parts)


def _table(experiment: Experiment, own: Sequence[Row]) -> str:
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
            line.append(simulation_report.with_interval(cell.mean))
            line += [_number(cell.paper)] if has_paper else []
        for policy in experiment.ours:
            line.append(_ratio(row.ratio(policy)))
            line += [_times(row.paper_ratio(policy))] if has_paper else []
        lines.append(line)
    return output.table(header, lines)


def _means(experiment: Experiment, means: Sequence[GeometricMean]) -> str:
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
    return output.table(header, lines)


def _cost(experiment: Experiment, cost: Cost) -> str:
    rows = []
    for policy, simulated in cost.simulated.items():
        row = [policy, _number(simulated), _number(cost.paper[policy])]
        for found in (cost.simulated, cost.paper):
            ours, theirs = found[policy], found[experiment.baseline]
            row.append(_times(theirs / ours if ours and theirs else None))
        rows.append(row)
    return output.table(["", "", "paper", f"{experiment.baseline}/", "paper"], rows)


def document(
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
        "runs": [simulation_report.as_json(each) for each in ran],
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
    return "-" if value is None else simulation_report.number(value)


def _ratio(found: Interval | None) -> str:
    return "-" if found is None else simulation_report.with_range(found)


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}x"
