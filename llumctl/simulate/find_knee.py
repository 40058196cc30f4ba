"""The knee of a workload under a policy, each rate simulated with several seeds at once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from controller.api.errors import LlumctlError
from controller.sim.rates import TARGET_S, Knee, knee
from controller.sim.run import Ran, Run
from controller.sim.statistics import mean_of
from llumctl.simulate import plan
from llumctl.simulate.plan import Wanted
from llumctl.simulate.workers import OnProgress, Workers

BELOW_SATURATION = 0.9
"""Where the search begins: what evictions and fragmentation cost is not in the estimate."""


@dataclass(frozen=True, slots=True)
class Found:
    """`saturation_rate`: by the estimate. `target_s`: what P99 TTFT is at the knee. `steady`: by
    rate, whether each run reached a steady state."""

    knee: Knee
    saturation_rate: float
    target_s: float
    num_seeds: int
    steady: Mapping[float, list[bool | None]]


def find(
    wanted: Wanted,
    workers: Workers,
    target_s: float = TARGET_S,
    on_progress: OnProgress | None = None,
    on_rate: Callable[[float], None] | None = None,
) -> Found:
    """Of the one workload, policy and size that are wanted, over its seeds; its rate does not
    matter. `on_rate` is told each rate that is tried.

    Raises:
        UsageError: the runs cannot be carried out.
        LlumctlError: there is no knee where it was sought.
    """
    runs = plan.runs(wanted)
    steady: dict[float, list[bool | None]] = {}
    _, limit = plan.estimate(_at_rate(runs, 1.0))

    def p99_at(rate: float) -> float:
        if on_rate is not None:
            on_rate(rate)
        ran = workers.run(_at_rate(runs, rate), on_progress)
        steady[rate] = [each.summary.steady for each in ran]
        return mean_p99_s(ran)

    try:
        found = knee(p99_at, BELOW_SATURATION * limit, target_s)
        return Found(found, limit, target_s, len(runs), steady)
    except ValueError as error:
        raise LlumctlError(str(error), "--target-ttft-p99") from error


def mean_p99_s(ran: Sequence[Ran]) -> float:
    """P99 TTFT, its mean over seeds."""
    spreads = [each.summary.all.ttft_s for each in ran]
    return mean_of([spread.p99 for spread in spreads if spread is not None]).mean


def _at_rate(runs: Sequence[Run], rate: float) -> list[Run]:
    return [replace(run, load=replace(run.load, rate=rate)) for run in runs]
