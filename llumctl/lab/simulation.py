"""Carries out a call of `llumctl simulate` and shows its results: runs side by side, the smallest
cluster that meets targets, or the knee of a workload.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from controller.api.errors import LlumctlError, UsageError
from controller.sim.outcome import mean_of
from controller.sim.rates import TARGET_S, Knee, knee
from controller.sim.run import Ran, Run
from llumctl import output
from llumctl.lab import simulation_plan, simulation_report
from llumctl.lab.simulation_plan import Wanted, shown
from llumctl.lab.simulation_report import (
    Group,
    Seeds,
    cost_per_million,
    grouped,
    latency,
    steady,
    with_interval,
)
from llumctl.lab.simulation_workers import OnProgress, ProgressBar, Workers


@dataclass(frozen=True, slots=True)
class Targets:
    """Upper bounds in seconds for means over seeds; None means no bound."""

    ttft_p99_s: float | None = None
    tpot_p99_s: float | None = None

    def met_by(self, seeds: Seeds) -> bool:
        """Whether the runs meet the targets. They do not if a request failed, because a failed
        request has no latencies."""
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
    """The smallest cluster for one load and policy. `smallest` is None if the largest size does not
    meet the targets."""

    workload: str
    rate: float
    policy: str
    smallest: int | None


def compare(wanted: Wanted, num_workers: int | None, *, strict: bool) -> list[Ran]:
    """Carries out the wanted runs, like `carried_out`."""
    return carried_out(simulation_plan.runs(wanted), num_workers, strict=strict)


def tell_simulated_once(wanted: Wanted) -> None:
    """Says on stderr which workloads have only one run although several seeds were wanted."""
    for name in simulation_plan.simulated_once(wanted):
        output.say(
            f"warning: {shown(name)} is simulated once, not with {len(wanted.seeds)} seeds:"
            " nothing of it is drawn by chance, unless --cv 1 draws its arrivals"
        )


def carried_out(runs: Sequence[Run], num_workers: int | None, *, strict: bool = False) -> list[Ran]:
    """Carries out the runs, after warnings on stderr about loads above saturation. With `strict`,
    such a load is an error."""
    for overload in simulation_plan.overloads(runs):
        if strict:
            raise UsageError(f"--rate: {overload}", f"--rate {overload.saturation_rate:.2g}")
        output.say(f"warning: {overload}")
    began_s = time.monotonic()
    with Workers(num_workers) as workers, ProgressBar() as bar:
        ran = workers.run(runs, bar)
    if output.is_terminal(sys.stderr):
        took_s = time.monotonic() - began_s
        num_steps = sum(each.summary.num_steps for each in ran)
        output.say(f"{len(ran)} runs in {took_s:.1f} s, {num_steps / took_s:,.0f} steps/s")
    return ran


def deliver(
    ran: Sequence[Ran],
    targets: Targets | None,
    plot: Path | None,
    *,
    as_json: bool,
    cost_per_hour: float = 0.0,
) -> None:
    """Shows the figures on stdout and draws the picture; warnings about the figures follow on
    stderr. `cost_per_hour`: of an instance; 0: not known."""
    if as_json:
        output.emit(output.json_text(_as_json(ran, targets, cost_per_hour), indent=2))
    else:
        parts = [_table(ran, targets, cost_per_hour)]
        if plot is not None and str(plot) == "-":
            parts.append(simulation_report.bar_chart(ran))
        output.emit("\n\n".join(parts))
    if plot is not None and str(plot) != "-":
        simulation_report.save_plot(plot, ran)
    for line in simulation_report.never_steady(ran):
        output.say(f"warning: {line}")


def is_short_of(ran: Sequence[Ran], targets: Targets, *, strict: bool) -> bool:
    """Whether no size meets the targets or, with `strict`, a run did not reach a steady state."""
    if strict and any(each.summary.steady is False for each in ran):
        return True
    if targets == Targets():
        return False
    return any(answer.smallest is None for answer in answers(ran, targets))


def _table(ran: Sequence[Ran], targets: Targets | None, cost_per_hour: float) -> str:
    if targets is None:
        return simulation_report.tables(ran, blocks=_shows_blocks(), cost_per_hour=cost_per_hour)
    sizes = sorted({each.run.setup.num_instances for each in ran})
    lines = [_told(answer, sizes) for answer in answers(ran, targets)]
    return "\n\n".join((_sizes_table(ran, targets, cost_per_hour), "\n".join(lines)))


def _as_json(ran: Sequence[Ran], targets: Targets | None, cost_per_hour: float) -> Any:
    """A list of runs; with targets, an object that has the list under `runs`."""
    runs = [simulation_report.as_json(each, cost_per_hour) for each in ran]
    if targets is None:
        return runs
    return {**_answers_json(ran, targets), "runs": runs}


def _shows_blocks() -> bool:
    return (sys.stdout.encoding or "").lower().startswith("utf")


# -- the smallest of the simulated clusters that meets targets --------------------------


def answers(ran: Sequence[Ran], targets: Targets) -> list[Answer]:
    """The smallest size for each load and policy.

    All sizes are simulated instead of a bisection. They run in parallel, and the table shows what
    each further instance gains. A size that meets a target only by luck is detected, because larger
    sizes must meet the target too.
    """
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


def _sizes_table(ran: Sequence[Ran], targets: Targets, cost_per_hour: float) -> str:
    header = (
        *("WORKLOAD", "RATE", "POLICY", "INSTANCES", "TTFT-P99-S", "TPOT-P99-S", "WAITING"),
        *(["COST/M"] if cost_per_hour else []),
        *("STEADY", "MEETS"),
    )
    cost = cost_per_million(cost_per_hour)
    rows = [
        (
            shown(group.load.workload),
            f"{group.rate:.4g}",
            seeds.policy,
            str(group.num_instances),
            with_interval(seeds.mean(latency("ttft_s", "p99"))),
            with_interval(seeds.mean(latency("tpot_s", "p99"))),
            with_interval(seeds.mean(lambda summary: summary.num_waiting)),
            *([with_interval(seeds.mean(cost))] if cost_per_hour else []),
            steady(seeds.steady),
            "yes" if targets.met_by(seeds) else "no",
        )
        for group in grouped(ran)
        for seeds in group.policies
    ]
    rows.sort(key=lambda row: (row[0], float(row[1]), row[2], int(row[3])))
    return output.table(header, rows)


def _told(answer: Answer, sizes: Sequence[int]) -> str:
    load = f"{shown(answer.workload)} at {answer.rate:.4g} requests/s under {answer.policy}"
    if answer.smallest is None:
        return f"{load}: {max(sizes)} instances do not meet the targets"
    instances = "1 instance is" if answer.smallest == 1 else f"{answer.smallest} instances are"
    fewest = ", the fewest that were tried" if answer.smallest == min(sizes) else ""
    return f"{load}: {instances} enough{fewest}"


def _answers_json(ran: Sequence[Ran], targets: Targets) -> dict[str, Any]:
    return {"targets": asdict(targets), "answers": [asdict(each) for each in answers(ran, targets)]}


# -- the knee: each rate simulated with several seeds at once ---------------------------

BELOW_SATURATION = 0.9
"""The search begins at this share of the estimated saturation rate, because the estimate does not
include evictions and fragmentation."""


@dataclass(frozen=True, slots=True)
class FoundKnee:
    """A knee. `saturation_rate`: the estimated one. `target_s`: the P99 TTFT at the knee. `steady`:
    for each rate, whether each run reached a steady state."""

    knee: Knee
    saturation_rate: float
    target_s: float
    num_seeds: int
    steady: Mapping[float, list[bool | None]]


def find_knee(
    wanted: Wanted,
    workers: Workers,
    target_s: float = TARGET_S,
    on_progress: OnProgress | None = None,
    on_rate: Callable[[float], None] | None = None,
) -> FoundKnee:
    """Finds the knee of the one wanted workload, policy and size, over its seeds. The wanted rate
    is not used. `on_rate` is called with each rate that is tried.

    Raises:
        UsageError: the runs cannot be carried out.
        LlumctlError: the searched range has no knee.
    """
    runs = simulation_plan.runs(wanted)
    steady: dict[float, list[bool | None]] = {}
    _, limit = simulation_plan.estimate(_at_rate(runs, 1.0))

    def p99_at(rate: float) -> float:
        if on_rate is not None:
            on_rate(rate)
        ran = workers.run(_at_rate(runs, rate), on_progress)
        steady[rate] = [each.summary.steady for each in ran]
        return mean_p99_s(ran)

    try:
        found = knee(p99_at, BELOW_SATURATION * limit, target_s)
        return FoundKnee(found, limit, target_s, len(runs), steady)
    except ValueError as error:
        raise LlumctlError(str(error), "--target-ttft-p99") from error


def mean_p99_s(ran: Sequence[Ran]) -> float:
    """The mean over seeds of P99 TTFT."""
    spreads = [each.summary.all.ttft_s for each in ran]
    return mean_of([spread.p99 for spread in spreads if spread is not None]).mean


def _at_rate(runs: Sequence[Run], rate: float) -> list[Run]:
    return [replace(run, load=replace(run.load, rate=rate)) for run in runs]


def deliver_knee(
    wanted: Wanted, target_s: float, num_workers: int | None, *, as_json: bool
) -> None:
    with Workers(num_workers) as workers, ProgressBar() as bar:

        def entitle(rate: float) -> None:
            bar.title = f"{rate:.4g} requests/s"

        found = find_knee(wanted, workers, target_s, bar, entitle)
    if as_json:
        output.emit(output.json_text(_knee_json(wanted, found), indent=2))
    else:
        output.emit(_knee_text(wanted, found))
    if found.knee.rate > found.saturation_rate:
        output.say(
            f"warning: the knee is above saturation by the estimate,"
            f" {found.saturation_rate:.3g} requests/s: the requests end before their queues grow"
            f" to a P99 TTFT of {target_s:g} s, so the rate depends on how many come; take more by"
            " --requests, or a lower --target-ttft-p99"
        )


def _knee_text(wanted: Wanted, found: FoundKnee) -> str:
    rows = [
        (
            f"{rate:.4g}",
            simulation_report.number(p99_s),
            steady(found.steady[rate]),
        )
        for rate, p99_s in found.knee.points
    ]
    header = ("RATE", "TTFT-P99-S", "STEADY")
    points = output.table(header, rows)
    seeds = f", mean of {found.num_seeds} seeds" if found.num_seeds > 1 else ""
    return (
        f"knee of {shown(wanted.workloads[0])} under {wanted.policies[0]} on"
        f" {wanted.sizes[0]} instances{seeds}: {found.knee.rate:.4g} requests/s"
        f" (saturation by estimate: {found.saturation_rate:.3g})\n\n{points}"
    )


def _knee_json(wanted: Wanted, found: FoundKnee) -> dict[str, Any]:
    return {
        "workload": wanted.workloads[0],
        "policy": wanted.policies[0],
        "num_instances": wanted.sizes[0],
        "profile": wanted.profile,
        "mode": wanted.mode,
        "seeds": list(wanted.seeds[: found.num_seeds]),
        "target_ttft_p99_s": found.target_s,
        "rate": found.knee.rate,
        "saturation_rate": found.saturation_rate,
        "points": [
            {"rate": rate, "ttft_p99_s": p99_s, "steady": found.steady[rate]}
            for rate, p99_s in found.knee.points
        ],
    }
