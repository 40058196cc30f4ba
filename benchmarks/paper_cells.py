"""Cells and lines of the tables about the paper."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llumctl.lab import simulation_report

TITLES = {
    "mean_num_instances": "mean number of instances",
    "ttft_s p99": "prefill (TTFT) P99, s",
    "ttft_s mean": "prefill mean, s",
    "ttft_s max": "prefill maximum, s",
    "tpot_s p99": "decode (TPOT) P99, s",
    "tpot_s mean": "decode mean, s",
    "longest_pause_s p99": "P99 of the longest pause, s",
    "preemption_loss_s": "preemption loss, s",
    "e2e_latency_s p99": "request P99, s",
    "e2e_latency_s mean": "request mean, s",
    "fragmentation": "fragmented memory, share",
}
"""Of each metric, in the order in which the tables stand."""

Interval = Mapping[str, float]
Run = Mapping[str, Any]


def value(run: Run, metric: str, rank: int | None = None) -> float:
    """A metric of one run, as `ttft_s p99` or `preemption_loss_s`; of one rank's requests."""
    name, _, statistic = metric.partition(" ")
    figures = run if rank is None else run["by_rank"][str(rank)]
    return float(figures[name][statistic] if statistic else figures[name])


@dataclass(frozen=True)
class Table:
    """What stands in each column, and the lines, each as long as that."""

    header: Sequence[str]
    lines: Sequence[Sequence[str]]

    def csv(self) -> str:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.header, *self.lines])
        return text.getvalue()

    def markdown(self) -> str:
        lines = (self.header, ["---"] * len(self.header), *self.lines)
        return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def mean_columns(found: Interval | None) -> list[str]:
    """The mean, and half of its interval; empty where there is none."""
    if found is None:
        return ["", ""]
    mean = simulation_report.number(found["mean"])
    if found["low"] is None:
        return [mean, ""]
    return [mean, number((found["high"] - found["low"]) / 2)]


def ratio_columns(found: Interval | None) -> list[str]:
    """The ratio, and where its interval begins and ends; empty where there is none."""
    if found is None:
        return ["", "", ""]
    return ["" if found[end] is None else times(found[end]) for end in ("mean", "low", "high")]


def ratio(found: Interval | None) -> str:
    if found is None:
        return "-"
    if found["low"] is None:
        return times(found["mean"])
    return f"{found['mean']:.3g} ({found['low']:.3g} to {found['high']:.3g})"


def number(found: float | None) -> str:
    return "-" if found is None else simulation_report.number(found)


def times(found: float | None) -> str:
    return "-" if found is None else f"{found:.3g}"
