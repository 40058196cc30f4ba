"""Runs by what they have in common: the seeds of one policy, the policies of one load."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from controller.sim.outcome import Figures, Summary
from controller.sim.run import Load, Ran
from controller.sim.statistics import Interval, mean_of

Figure = Callable[[Summary], float | None]


@dataclass(frozen=True, slots=True)
class Seeds:
    """The runs of one policy that differ in their seed only."""

    policy: str
    ran: Sequence[Ran]

    @property
    def summaries(self) -> list[Summary]:
        return [each.summary for each in self.ran]

    def values(self, figure: Figure) -> list[float]:
        """By seed; empty if a run has no such figure."""
        found = [figure(summary) for summary in self.summaries]
        return [value for value in found if value is not None] if None not in found else []

    def mean(self, figure: Figure) -> Interval | None:
        values = self.values(figure)
        return mean_of(values) if values else None

    @property
    def steady(self) -> list[bool | None]:
        return [summary.steady for summary in self.summaries]

    @property
    def num_never_steady(self) -> int:
        return sum(each is False for each in self.steady)


@dataclass(frozen=True, slots=True)
class Group:
    """One load on one number of instances, under several policies, in the order of the runs."""

    load: Load
    num_instances: int
    policies: Sequence[Seeds]

    @property
    def instances(self) -> str:
        """How many there are, or may be, as `16` or `1..16`."""
        setup = self.policies[0].ran[0].run.setup
        config = setup.policy.autoscale
        return (
            f"{setup.num_instances}"
            if config is None
            else f"{config.min_instances}..{config.max_instances}"
        )

    @property
    def rate(self) -> float:
        rates = [ran.rate for seeds in self.policies for ran in seeds.ran]
        return sum(rates) / len(rates)


def grouped(ran: Sequence[Ran]) -> list[Group]:
    groups: dict[tuple[Load, int, Hashable], dict[str, list[Ran]]] = {}
    for each in ran:
        setup = each.run.setup
        key = each.run.load, setup.num_instances, setup.policy.autoscale
        of_load = groups.setdefault(key, {})
        of_load.setdefault(setup.policy.name, []).append(each)
    return [
        Group(load, size, [Seeds(policy, seeds) for policy, seeds in of_load.items()])
        for (load, size, _), of_load in groups.items()
    ]


def latency(name: str, statistic: str, rank: int | None = None) -> Figure:
    """As `latency("ttft_s", "p99")`; of one rank, or of all requests."""

    def figure(summary: Summary) -> float | None:
        figures = summary.all if rank is None else summary.by_rank.get(rank)
        spread = None if figures is None else getattr(figures, name)
        return None if spread is None else float(getattr(spread, statistic))

    return figure


def count(name: str, rank: int | None = None) -> Figure:
    """A figure that is one number, as `preemption_loss_s`."""

    def figure(summary: Summary) -> float | None:
        figures: Figures | None = summary.all if rank is None else summary.by_rank.get(rank)
        return None if figures is None else float(getattr(figures, name))

    return figure
