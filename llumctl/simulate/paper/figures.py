"""The figures' experiments: which policies, which loads, which constants.

Rates and traces are the paper's, thresholds those of its authors' own experiments. None of them was
chosen by what came out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from controller.model.profile import Mode
from llumctl.simulate.paper.points import FigureName, points

GENERATED = ("S-S", "M-M", "L-L", "S-L", "L-S")
REAL = ("sharegpt", "burstgpt")
SCALED = (FigureName.FIGURE14, FigureName.FIGURE15)
FIGURE13_RATE = 26.0
FIGURE13_HIGH_FRACTION = 0.1
SCALED_RATE = 2.0
"""Of the Gamma arrivals in figures 14 and 15."""
SCALED_CV = 2.0
"""In figure 15."""
SCALE_FROM_BLOCKS = 10.0
SCALE_RANGE_BLOCKS = 50.0
BLOCK_TOKENS = 16
LONG_STEPS = MappingProxyType(dict.fromkeys(("M-M", "S-L"), 160))
"""Thresholds of moves on these traces. On others they are the default, 48 steps, which is that of
the authors too."""


@dataclass(frozen=True, slots=True)
class Case:
    """One load of a figure; `x` is its place there. `lengths`: of the requests, where `workload` is
    not the name of them. `scale_from_blocks`: with auto-scaling, from so many free blocks per
    request on."""

    workload: str
    x: float
    rate: float
    cv: float | None = None
    high_fraction: float | None = None
    lengths: str = ""
    scale_from_blocks: float | None = None

    @property
    def requests(self) -> str:
        """What `--workload` calls them."""
        return self.lengths or self.workload


@dataclass(frozen=True, slots=True)
class Experiment:
    """A figure, or loads at matched distance from the knee. `baseline` over `ours` is the ratio
    that counts; `extra` are shown beside them, each on the workloads given. `mode`: as engines
    schedule unless the call says otherwise. `ranks` is (None,) where all requests are alike."""

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
    """Figures 14 and 15 have one trace, and differ in how its requests arrive."""
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
    """Loads at these shares of the rate at which INFaaS++ has a P99 TTFT of 30 s."""
    cases = [Case(name, share, share * rate) for name, rate in knees.items() for share in shares]
    ours = ["llumnix", "llumnix+"]
    return Experiment("matched", "LOAD", "infaas++", ours, MATCHED_METRICS, cases, mode="chunked")


def matched_bursts(knee: float, shares: Sequence[float]) -> Experiment:
    """Figure 13's bursts and priorities at these shares of the knee of its trace."""
    bursts = figure(FigureName.FIGURE13)
    cases = [
        replace(case, workload=f"{share:g} of the knee", rate=share * knee, lengths=case.workload)
        for share in shares
        for case in bursts.cases
    ]
    ours = ["llumnix", "llumnix+"]
    return replace(bursts, name="matched", ours=ours, cases=cases, mode="chunked")


def middle(experiment: Experiment) -> list[Case]:
    """The middle one of each workload's loads."""
    found = []
    for workload in experiment.workloads:
        cases = sorted(
            (case for case in experiment.cases if case.workload == workload),
            key=lambda case: case.x,
        )
        found.append(cases[(len(cases) - 1) // 2])
    return found


def scaling(case: Case, max_instances: int) -> dict[str, str]:
    """How the authors' code scales: each check decides by what it sees, with no limit to how many
    it adds."""
    if case.scale_from_blocks is None:
        return {}
    up_below_steps = BLOCK_TOKENS * case.scale_from_blocks
    return {
        "autoscale.up_below_steps": f"{up_below_steps:g}",
        "autoscale.down_above_steps": f"{up_below_steps + BLOCK_TOKENS * SCALE_RANGE_BLOCKS:g}",
        "autoscale.max_added": f"{max_instances}",
        "autoscale.up_persistence_s": "0",
        "autoscale.down_persistence_s": "0",
    }


def settings(policy: str, workload: str) -> dict[str, str]:
    """What the paper's policies have in their authors' experiments. `llumnix+` keeps its defaults:
    it has to do with one setting for all loads."""
    if policy not in ("llumnix", "llumnix-base"):
        return {}
    found = {"migration.guard": "off"}
    if (steps := LONG_STEPS.get(workload)) is not None:
        found["migration.source_below_steps"] = str(steps)
        found["migration.destination_above_steps"] = str(steps)
    return found
