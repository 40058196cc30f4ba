"""The run in four pictures: distributions of TTFT and end-to-end latency, TTFT and rates over
time."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

from controller.api.errors import LlumctlError
from llumctl.lab import bench_report
from llumctl.lab.bench_run import Result, Results

MAX_RATE_BINS = 60


def save(path: Path, results: Results, title: str) -> None:
    """Writes a PNG. Raises LlumctlError if it cannot be written."""
    picture = Figure(figsize=(11, 7.5), layout="constrained")
    (ttft, e2e), (over_time, rate) = picture.subplots(2, 2)
    by_level = _by_level(results)
    for level, of_level in by_level.items():
        label = f"{level} ({len(of_level)})"
        due_s = [result.due_s - results.started_s for result in of_level]
        ttfts_s = [bench_report.ttft_s(result) for result in of_level]
        _cumulate(ttft, ttfts_s, label)
        _cumulate(e2e, [bench_report.e2e_latency_s(result) for result in of_level], label)
        over_time.plot(due_s, ttfts_s, ".", markersize=3, label=label)
    _label(ttft, "TTFT", "s", "share of requests")
    _label(e2e, "end-to-end latency", "s", "share of requests")
    _label(over_time, "TTFT by when the request was due", "s since the start", "s")
    _draw_rates(rate, results)
    if by_level:
        for axes, place in ((ttft, "lower right"), (e2e, "lower right"), (over_time, "best")):
            axes.legend(loc=place, fontsize="small")
    for axes in (ttft, e2e):
        if by_level:
            _make_logarithmic(axes)
        axes.set_ylim(0, 1)
    picture.suptitle(title, fontsize="medium")
    try:
        picture.savefig(path, dpi=120, format="png")
    except OSError as error:
        raise LlumctlError(
            f"cannot write {path}: {error.strerror}", f"ls -ld {path.parent}"
        ) from error


def _by_level(results: Results) -> dict[str, list[Result]]:
    by_level: dict[str, list[Result]] = {}
    for result in sorted(results.ended, key=lambda result: result.request.priority):
        if result.is_right:
            by_level.setdefault(result.request.level, []).append(result)
    return by_level


def _cumulate(axes: Axes, values: Sequence[float], label: str) -> None:
    shares = np.arange(1, len(values) + 1) / len(values)
    axes.step(np.sort(values), shares, "-", label=label, where="post")


def _draw_rates(axes: Axes, results: Results) -> None:
    """Requests due and tokens received per second."""
    span_s = max(results.duration_s, 1e-3)
    num_bins = min(MAX_RATE_BINS, max(1, int(span_s)))
    edges = np.linspace(0, span_s, num_bins + 1)
    width_s = span_s / num_bins
    due_s = [result.due_s - results.started_s for result in results.ended]
    tokens_s = [
        np.array(result.answer.token_times_s) - results.started_s for result in results.ended
    ]
    due, _ = np.histogram(due_s, edges)
    tokens, _ = np.histogram(np.concatenate(tokens_s) if tokens_s else [], edges)
    axes.stairs(tokens / width_s, edges, label="output tokens/s")
    _label(axes, "rates", "s since the start", "tokens/s")
    right = axes.twinx()
    right.stairs(due / width_s, edges, color="tab:orange", alpha=0.7, label="requests/s")
    right.set_ylabel("requests due per s")
    for drawn in (axes, right):
        drawn.set_ylim(0, 1.2 * drawn.get_ylim()[1])  # room for the legends
    axes.legend(loc="upper left", fontsize="small")
    right.legend(loc="upper right", fontsize="small")


def _make_logarithmic(axes: Axes) -> None:
    """Seconds as plain numbers: 0.01, 0.03, 0.1."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _label(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title, fontsize="medium")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.3)
