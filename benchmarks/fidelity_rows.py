"""Live runs of one trace against the simulator: how far apart, and whether that is near enough."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from rich import box
from rich.console import JustifyMethod
from rich.table import Table

from benchmarks.core_waits import step_on_a_core_s

MIN_RUNS_FOR_A_SPREAD = 5


@dataclass(frozen=True, slots=True)
class Aim:
    """`within`: the largest difference, relative to the mean of the live runs. `or_in_spread`: a
    figure between the lowest and the highest of five live runs or more will do too."""

    title: str
    figure: str
    of: str
    within: float
    or_in_spread: bool = False


AIMS = (
    Aim("step", "step_s", "", 0.05),
    Aim("TTFT mean", "ttft_s", "mean", 0.10),
    Aim("TPOT mean", "tpot_s", "mean", 0.10),
    Aim("TTFT P99", "ttft_s", "p99", 0.20, or_in_spread=True),
    Aim("TPOT P99", "tpot_s", "p99", 0.20, or_in_spread=True),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of each run; of the simulated ones the mean counts."""

    aim: Aim
    live_s: tuple[float, ...]
    simulated_s: tuple[float, ...]
    busy_s: tuple[float, ...] = ()
    """Simulated with steps as slow as the machine let the live runs have them."""

    @property
    def difference(self) -> float:
        """Of the simulator, relative to live."""
        return fmean(self.simulated_s) / fmean(self.live_s) - 1

    @property
    def is_met(self) -> bool:
        if abs(self.difference) <= self.aim.within:
            return True
        has_spread = self.aim.or_in_spread and len(self.live_s) >= MIN_RUNS_FOR_A_SPREAD
        return has_spread and min(self.live_s) <= fmean(self.simulated_s) <= max(self.live_s)


def rows(
    live: Sequence[Mapping[str, Any]],
    simulated: Sequence[Mapping[str, Any]],
    overhead_s: float,
    as_busy: Sequence[Mapping[str, Any]] = (),
) -> list[Row]:
    """`overhead_s`: what the client waits for beside the engine, which the simulator does not
    have; added to its TTFT. Figures that the runs lack have no row."""
    found = []
    for aim in AIMS:
        more_s = overhead_s if aim.figure == "ttft_s" else 0.0
        values, its_own, busy = (
            tuple(value for run in runs if (value := _value(run, aim)) is not None)
            for runs in (live, simulated, as_busy)
        )
        if values and its_own:
            found.append(Row(aim, values, *(_more(more_s, each) for each in (its_own, busy))))
    return found


def _more(more_s: float, values: Sequence[float]) -> tuple[float, ...]:
    return tuple(more_s + value for value in values)


def _value(figures: Mapping[str, Any], aim: Aim) -> float | None:
    found = figures[aim.figure]
    if found is not None and aim.of:
        found = found[aim.of]
    return found if found is None else float(found)


def table(title: str, found: Sequence[Row]) -> Table:
    shown = Table(title=title, box=box.SIMPLE, padding=(0, 1, 0, 0))
    for column in (
        *("ms", "live: mean (range)", "simulated: mean (range)", "differs", "aim", ""),
        *("as busy", "differs"),
    ):
        justify: JustifyMethod = "left" if column in ("ms", "") else "right"
        shown.add_column(column, justify=justify, no_wrap=True)
    for row in found:
        aim = f"{row.aim.within:.0%}" + (" or spread" if row.aim.or_in_spread else "")
        shown.add_row(
            row.aim.title,
            _spread(row.live_s),
            _spread(row.simulated_s),
            f"{row.difference:+.1%}",
            aim,
            "yes" if row.is_met else "NO",
            f"{1000 * fmean(row.busy_s):.1f}" if row.busy_s else "",
            f"{fmean(row.busy_s) / fmean(row.live_s) - 1:+.1%}" if row.busy_s else "",
        )
    return shown


def _spread(values_s: Sequence[float]) -> str:
    mean, lowest, highest = (
        f"{1000 * value:.1f}" for value in (fmean(values_s), min(values_s), max(values_s))
    )
    return f"{mean} ({lowest}..{highest})"


def slowdown(run: Mapping[str, Any]) -> float:
    """How many times as long as on a quiet machine the steps of a live run took, by what is known
    apart from the steps themselves: the emulated engines' clocks, or the waits for a core."""
    if run["emulation"]:
        return float(run["emulation"]["time_ratio"])
    waited_share = run.get("waited_share")
    return 1.0 if waited_share is None else 1 / (1 - waited_share)


def health(live: Sequence[Mapping[str, Any]]) -> Table:
    """How busy the machine was with other things, run by run."""
    shown = Table(title="whether the live runs can be believed", box=box.SIMPLE)
    for column in (
        *("run", "failed", "cores", "others", "engines waited", "step without it, ms"),
        *("late steps", "kept time", "moves", "evictions"),
    ):
        shown.add_column(column, justify="right")
    for number, run in enumerate(live, 1):
        emulation, step_s = run["emulation"], step_on_a_core_s(run)
        shown.add_row(
            *(str(number), str(run["num_failed"])),
            *(f"{sum(run['cores'].values()):.2f}", f"{run['other_cores']:.2f}"),
            f"{run['waited_share']:.1%}" if run.get("waited_share") is not None else "",
            "" if step_s is None else f"{1000 * step_s:.2f}",
            f"{emulation['late_steps_ratio']:.1%}" if emulation else "",
            {True: "yes", False: "NO", None: ""}[run["kept_time"]],
            *(str(run["num_moves"]), str(run["num_evictions"])),
        )
    return shown
