"""One call of `llumctl simulate`, from what is wanted to what is shown."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from controller.api.errors import UsageError
from controller.sim.run import Ran, Run
from llumctl.simulate import chart, find_knee, plan, report, what_if
from llumctl.simulate.plan import Wanted
from llumctl.simulate.progress import ProgressBar
from llumctl.simulate.what_if import Targets
from llumctl.simulate.workers import Workers
from llumctl.text import output


def compare(wanted: Wanted, num_workers: int | None, *, strict: bool) -> list[Ran]:
    """Carries out what is wanted; see `carried_out`."""
    return carried_out(plan.runs(wanted), num_workers, strict=strict)


def tell_simulated_once(wanted: Wanted) -> None:
    """Says on stderr why there are fewer runs than the seeds that were asked for."""
    for name in plan.simulated_once(wanted):
        output.say(
            f"warning: {plan.shown(name)} is simulated once, not with {len(wanted.seeds)} seeds:"
            " nothing of it is drawn by chance, unless --cv 1 draws its arrivals"
        )


def carried_out(runs: Sequence[Run], num_workers: int | None, *, strict: bool = False) -> list[Ran]:
    """The runs, and on stderr what is wrong with their load. `strict`: a rate above saturation is
    an error instead."""
    for overload in plan.overloads(runs):
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
    ran: Sequence[Ran], targets: Targets | None, plot: Path | None, *, as_json: bool
) -> None:
    """Figures on stdout and into the picture; what they are not good for on stderr, after them."""
    if as_json:
        output.emit(output.json_text(_as_json(ran, targets), indent=2))
    else:
        colours = output.use_colours(sys.stdout)
        parts = [_table(ran, targets, colours=colours)]
        if plot is not None and str(plot) == "-":
            parts.append(chart.drawn(ran))
        output.emit("\n\n".join(parts))
    if plot is not None and str(plot) != "-":
        from llumctl.simulate import plot as drawing

        drawing.save(plot, ran)
    for line in report.never_steady(ran):
        output.say(f"warning: {line}")


def is_short_of(ran: Sequence[Ran], targets: Targets, *, strict: bool) -> bool:
    """Whether targets are met by no size, or, if `strict`, a run reached no steady state."""
    if strict and any(each.summary.steady is False for each in ran):
        return True
    if targets == Targets():
        return False
    return any(answer.smallest is None for answer in what_if.answers(ran, targets))


def deliver_knee(
    wanted: Wanted, target_s: float, num_workers: int | None, *, as_json: bool
) -> None:
    with Workers(num_workers) as workers, ProgressBar() as bar:

        def entitle(rate: float) -> None:
            bar.title = f"{rate:.4g} requests/s"

        found = find_knee.find(wanted, workers, target_s, bar, entitle)
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


def _table(ran: Sequence[Ran], targets: Targets | None, *, colours: bool) -> str:
    if targets is None:
        return report.tables(ran, colours=colours, blocks=_shows_blocks())
    sizes = sorted({each.run.setup.num_instances for each in ran})
    lines = [what_if.told(answer, sizes) for answer in what_if.answers(ran, targets)]
    return "\n\n".join((what_if.table(ran, targets, colours=colours), "\n".join(lines)))


def _as_json(ran: Sequence[Ran], targets: Targets | None) -> Any:
    """A list of runs; with targets an object that has them under `runs`."""
    runs = [report.as_json(each) for each in ran]
    if targets is None:
        return runs
    return {**what_if.as_json(ran, targets), "runs": runs}


def _knee_text(wanted: Wanted, found: find_knee.Found) -> str:
    rows = [
        (f"{rate:.4g}", report.number(p99_s), report.steady(found.steady[rate]))
        for rate, p99_s in found.knee.points
    ]
    header = ("RATE", "TTFT-P99-S", "STEADY")
    points = output.table(header, rows, colours=output.use_colours(sys.stdout))
    seeds = f", mean of {found.num_seeds} seeds" if found.num_seeds > 1 else ""
    return (
        f"knee of {plan.shown(wanted.workloads[0])} under {wanted.policies[0]} on"
        f" {wanted.sizes[0]} instances{seeds}: {found.knee.rate:.4g} requests/s"
        f" (saturation by estimate: {found.saturation_rate:.3g})\n\n{points}"
    )


def _knee_json(wanted: Wanted, found: find_knee.Found) -> dict[str, Any]:
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


def _shows_blocks() -> bool:
    return (sys.stdout.encoding or "").lower().startswith("utf")
