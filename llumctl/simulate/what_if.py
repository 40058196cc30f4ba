"""The smallest cluster that meets targets, of all sizes that were simulated.

All sizes are tried, not only those on the way of a bisection: they run side by side, the table then
shows what each more instance buys, and a size that meets a target by luck is seen as such, because
the sizes above it must meet it too.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from controller.sim.run import Ran
from llumctl.simulate.groups import Group, Seeds, grouped, latency
from llumctl.simulate.plan import shown
from llumctl.simulate.report import steady, with_interval
from llumctl.text import output


@dataclass(frozen=True, slots=True)
class Targets:
    """Upper bounds in seconds for the mean over seeds; None: none."""

    ttft_p99_s: float | None = None
    tpot_p99_s: float | None = None

    def met_by(self, seeds: Seeds) -> bool:
        """Not if a request failed: those have no latencies."""
        bounds = (
            (self.ttft_p99_s, latency("ttft_s", "p99")),
            (self.tpot_p99_s, latency("tpot_s", "p99")),
        )
        if any(summary.num_failed for summary in seeds.summaries):
            return False
        for bound, figure in bounds:
            found = seeds.mean(figure)
            if bound is not None and found is not None and found.mean > bound:
                return False
        return True


@dataclass(frozen=True, slots=True)
class Answer:
    """For one load and policy. `smallest` is None if the largest size does not meet the targets."""

    workload: str
    rate: float
    policy: str
    smallest: int | None


def answers(ran: Sequence[Ran], targets: Targets) -> list[Answer]:
    by_load: dict[tuple[Any, str], list[tuple[int, Group, Seeds]]] = {}
    for group in grouped(ran):
        for seeds in group.policies:
            key = (group.load, seeds.policy)
            by_load.setdefault(key, []).append((group.num_instances, group, seeds))
    found = []
    for (load, policy), sizes in by_load.items():
        smallest = None
        for size, _, seeds in sorted(sizes, key=lambda each: -each[0]):
            if not targets.met_by(seeds):
                break
            smallest = size
        found.append(Answer(load.workload, sizes[0][1].rate, policy, smallest))
    return found


def table(ran: Sequence[Ran], targets: Targets, *, colours: bool) -> str:
    header = (
        *("WORKLOAD", "RATE", "POLICY", "INSTANCES", "TTFT-P99-S", "TPOT-P99-S", "WAITING"),
        *("STEADY", "MEETS"),
    )
    rows = [
        (
            shown(group.load.workload),
            f"{group.rate:.4g}",
            seeds.policy,
            str(group.num_instances),
            with_interval(seeds.mean(latency("ttft_s", "p99"))),
            with_interval(seeds.mean(latency("tpot_s", "p99"))),
            with_interval(seeds.mean(lambda summary: summary.num_waiting)),
            steady(seeds.steady),
            "yes" if targets.met_by(seeds) else "no",
        )
        for group in grouped(ran)
        for seeds in group.policies
    ]
    rows.sort(key=lambda row: (row[0], float(row[1]), row[2], int(row[3])))
    return output.table(header, rows, colours=colours)


def told(answer: Answer, sizes: Sequence[int]) -> str:
    load = f"{shown(answer.workload)} at {answer.rate:.4g} requests/s under {answer.policy}"
    if answer.smallest is None:
        return f"{load}: {max(sizes)} instances do not meet the targets"
    instances = "1 instance is" if answer.smallest == 1 else f"{answer.smallest} instances are"
    fewest = ", the fewest that were tried" if answer.smallest == min(sizes) else ""
    return f"{load}: {instances} enough{fewest}"


def as_json(ran: Sequence[Ran], targets: Targets) -> dict[str, Any]:
    return {"targets": asdict(targets), "answers": [asdict(each) for each in answers(ran, targets)]}
