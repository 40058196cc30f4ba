"""Cells and lines of the tables about the paper."""

from collections.abc import Iterator, Mapping, Sequence
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


def table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    return list(_lines(header, lines))


def _lines(header: Sequence[str], lines: Sequence[Sequence[str]]) -> Iterator[str]:
    for cells in (header, ["---"] * len(header), *lines):
        yield f"| {' | '.join(cells)} |"


def interval(found: Interval | None) -> str:
    if found is None:
        return "-"
    if found["low"] is None:
        return simulation_report.number(found["mean"])
    return (
        f"{simulation_report.number(found['mean'])} ±{number((found['high'] - found['low']) / 2)}"
    )


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
