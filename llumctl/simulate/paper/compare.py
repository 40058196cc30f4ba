"""The points of an experiment: what was simulated beside what the paper shows, and their ratios."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from controller.sim.run import Ran
from controller.sim.statistics import Interval, geometric_mean_ratio, mean_of, ratio_of_means
from llumctl.simulate.groups import Figure, Seeds, count, latency
from llumctl.simulate.paper.figures import BLOCK_TOKENS, GENERATED, REAL, Case, Experiment
from llumctl.simulate.paper.points import Place

Key = tuple[str, float | None, float | None, float | None, str]
"""Lengths, rate, CV, the lower end of the range of auto-scaling in steps, policy."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One policy at one point. `values` are by seed; `paper` is None where the paper has none."""

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
        """The baseline over the policy; None if one of the two is 0."""
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
    """Of the ratios of one metric over the `num_points` points of `traces` that have one; `paper`
    is that of the paper's ratios at the same points."""

    traces: str
    rank: int | None
    metric: str
    policy: str
    num_points: int
    simulated: Interval
    paper: float | None


def rows(
    experiment: Experiment,
    cases: Sequence[Case],
    ran: Sequence[Ran],
    shown_by_paper: Mapping[Place, float],
) -> list[Row]:
    """By workload, rank, metric, and only then by load: as one reads a figure."""
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
    """A metric by its name: `ttft_s p99`, `preemption_loss_s`, `fragmentation`."""
    if metric in ("fragmentation", "mean_num_instances"):
        return lambda summary: float(getattr(summary, metric))
    name, _, statistic = metric.partition(" ")
    return latency(name, statistic, rank) if statistic else count(name, rank)


_TRACES: Mapping[str, Callable[[str], bool]] = {
    "generated": lambda requests: requests in GENERATED,
    "real": lambda requests: requests in REAL,
}


def geometric_means(experiment: Experiment, found: Sequence[Row]) -> list[GeometricMean]:
    """Of the generated and of the real traces, for each rank, metric and policy of ours."""
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
