"""Simulated runs as pictures: tails and queues, or figures by rate or by instances."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

from controller.api.errors import LlumctlError
from controller.sim.outcome import SHARES, Curves
from controller.sim.run import Ran
from llumctl.lab.simulation_plan import shown
from llumctl.lab.simulation_report import Figure, Group, Seeds, count, described, grouped, latency

FIGURES: tuple[tuple[str, Figure], ...] = (
    ("TTFT P99 (s)", latency("ttft_s", "p99")),
    ("TTFT mean (s)", latency("ttft_s", "mean")),
    ("TPOT P99 (s)", latency("tpot_s", "p99")),
    ("preemption loss (s)", count("preemption_loss_s")),
)
CURVES: tuple[tuple[str, Callable[[Curves], Sequence[float]]], ...] = (
    ("TTFT", lambda curves: curves.ttft_s),
    ("end-to-end latency", lambda curves: curves.e2e_latency_s),
    ("longest pause of a stream", lambda curves: curves.longest_pause_s),
)
LEAST_S = 1e-3
LEAST_SHARE = 1e-3
"""Below them nothing is drawn: a scale of logarithms has no 0."""


def save(path: Path, ran: Sequence[Ran]) -> None:
    """A row of pictures per workload, as PNG or SVG by the file's name: by rate or by instances
    where there are several, else the tails of latencies.

    Raises:
        LlumctlError: it cannot be written.
    """
    rows: dict[str, list[Group]] = {}
    for group in grouped(ran):
        rows.setdefault(group.load.workload, []).append(group)
    picture = Picture(figsize=(16, 4.2 * len(rows)), layout="constrained")
    axes = picture.subplots(len(rows), 4, squeeze=False)
    for row, (workload, groups) in zip(axes, rows.items(), strict=True):
        if len(groups) == 1:
            _draw_distributions(row, groups[0])
            row[0].set_title(f"{described(groups[0])}: TTFT", fontsize="medium")
        else:
            _draw_sweep(row, groups)
            row[0].set_title(f"{shown(workload)}: {FIGURES[0][0]}", fontsize="medium")
        row[0].legend(fontsize="small")
    try:
        # The same runs make the same file: no date in it, and no ids that are drawn by chance.
        with rc_context({"svg.hashsalt": "llumctl"}):
            metadata = {"Date": None} if path.suffix == ".svg" else None
            picture.savefig(path, dpi=120, metadata=metadata)
    except OSError as error:
        raise LlumctlError(
            f"cannot write {path}: {error.strerror}", f"ls -ld {path.parent}"
        ) from error


def _draw_distributions(row: Sequence[Axes], group: Group) -> None:
    beyond = np.maximum(1 - np.array(SHARES), LEAST_SHARE)
    for axes, (title, curve) in zip(row, CURVES, strict=False):
        for seeds in group.policies:
            curves = [curve(summary.curves) for summary in seeds.summaries]
            if all(curves):
                values = np.maximum(np.mean(curves, axis=0), LEAST_S)
                axes.plot(values, beyond, label=seeds.policy)
        _label(axes, title, "s", "share of requests that take longer")
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(numticks=8))
        axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_yscale("log")
        axes.set_ylim(LEAST_SHARE, 1)
    waiting = row[len(CURVES)]
    for seeds in group.policies:
        moments_s = np.mean([each.curves.moments_s for each in seeds.summaries], axis=0)
        values = np.mean([each.curves.num_waiting for each in seeds.summaries], axis=0)
        waiting.plot(moments_s, values, label=seeds.policy)
    _label(waiting, "waiting requests", "s since the start", "requests")


def _draw_sweep(row: Sequence[Axes], groups: Sequence[Group]) -> None:
    """Means over seeds with their intervals, by rate, or by instances if the rate is one."""
    by_rate = len({group.load.rate for group in groups}) > 1
    place: Callable[[Group], float] = lambda group: (  # noqa: E731
        group.rate if by_rate else float(group.num_instances)
    )
    for axes, (title, figure) in zip(row, FIGURES, strict=True):
        by_policy: dict[tuple[str, int], list[tuple[float, Seeds]]] = {}
        for group in groups:
            for seeds in group.policies:
                size = group.num_instances if by_rate else 0
                by_policy.setdefault((seeds.policy, size), []).append((place(group), seeds))
        several = len({size for _, size in by_policy}) > 1
        for (policy, size), points in by_policy.items():
            label = f"{policy} on {size}" if several else policy
            _draw_line(axes, sorted(points, key=lambda point: point[0]), figure, label)
        _label(axes, title, "requests per s" if by_rate else "instances", "")
        axes.ticklabel_format(useOffset=False)
        axes.set_ylim(bottom=0)


def _draw_line(
    axes: Axes, points: Sequence[tuple[float, Seeds]], figure: Figure, label: str
) -> None:
    found = [(x, mean) for x, seeds in points if (mean := seeds.mean(figure)) is not None]
    xs, means = [x for x, _ in found], [mean.mean for _, mean in found]
    (line,) = axes.plot(xs, means, "o-", markersize=3, label=label)
    bands = [(x, mean.low, mean.high) for x, mean in found if mean.low is not None]
    if bands:
        where, lows, highs = zip(*bands, strict=True)
        axes.fill_between(where, np.maximum(lows, 0), highs, color=line.get_color(), alpha=0.15)


def _label(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title, fontsize="medium")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.3)
