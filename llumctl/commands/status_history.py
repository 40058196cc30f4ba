"""The history of a cluster as text and as a picture: `llumctl status --since`.

This module stands apart from `status.py` because it imports pydantic: the commands' options are
read without it.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from controller.api.errors import LlumctlError
from controller.api.text.quantities import (
    counted,
    duration,
    latency,
    price,
    price_of_million,
    time_of_day,
)
from controller.api.wire.history import Column, HistoryReport
from llumctl import output

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_ROWS = 20
"""So many rows fit on a screen."""
NUM_CELLS = 60
"""How wide the curves in a terminal are."""
PLOT_POINTS = 600
_GLYPHS, _ASCII = "▁▂▃▄▅▆▇█", ".:-=+*#@"

_Say = Callable[[float | None], str]


def table(report: HistoryReport, cost_per_hour: float = 0.0) -> str:
    """A row for each point, the latest at the end. `cost_per_hour`: of an instance; 0: unknown."""
    columns = _columns(report, cost_per_hour)
    rows = [
        [time_of_day(time_s), *(say(values[at]) for _, values, say in columns)]
        for at, time_s in enumerate(report.time_s)
    ]
    return output.table(["TIME", *(title for title, _, _ in columns)], rows)


def curves(report: HistoryReport, cost_per_hour: float = 0.0) -> str:
    """A curve for each figure that is not always the same, with its least and largest value."""
    glyphs = _GLYPHS if (sys.stdout.encoding or "").lower().startswith("utf") else _ASCII
    rows = []
    for title, values, say in _columns(report, cost_per_hour):
        known = [each for each in values if each is not None]
        if known and min(known) < max(known):
            rows.append([title, say(min(known)), _curve(values, glyphs), say(max(known))])
    if not rows:
        return "nothing happened"
    first_s, last_s = report.time_s[0] or 0.0, report.time_s[-1] or 0.0
    times = f"{time_of_day(first_s)} to {time_of_day(last_s)}, {duration(last_s - first_s)}"
    return output.table(["FIGURE", "LEAST", times, "MOST"], rows)


def save_plot(path: Path, report: HistoryReport) -> None:
    """Writes the curves as PNG or SVG by the file's name.

    Raises:
        LlumctlError: the file cannot be written.
    """
    from matplotlib.figure import Figure as Picture

    picture = Picture(figsize=(12, 10), layout="constrained")
    axes: Sequence[Axes] = picture.subplots(4, 1, sharex=True)
    last_s = report.time_s[-1] or 0.0
    ago_s = [(each or 0.0) - last_s for each in report.time_s]
    cluster = report.cluster
    per_s = [_per_s(cluster[name], report.span_s) for name in ("num_evictions", "num_migrated")]
    requests = {"running": cluster["num_running_reqs"], "waiting": cluster["num_waiting_reqs"]}
    _draw(axes[0], ago_s, requests, "requests")
    shares = {"held": cluster["kv_held_share"], "wanted": cluster["kv_wanted_share"]}
    _draw(axes[1], ago_s, shares, "share of the KV memory")
    ttfts_s = {name: level.ttft_p99_s for name, level in report.levels.items()}
    _draw(axes[2], ago_s, ttfts_s, "P99 TTFT, s")
    _draw(axes[3], ago_s, dict(zip(("evicted", "moved"), per_s, strict=True)), "per second")
    axes[3].set_xlabel("s before the end")
    try:
        picture.savefig(path, dpi=120)
    except OSError as error:
        raise LlumctlError(
            f"cannot write {path}: {error.strerror}", f"ls -ld {path.parent}"
        ) from error


def _draw(axes: "Axes", ago_s: Sequence[float], lines: dict[str, Column], what: str) -> None:
    for name, values in lines.items():
        axes.plot(ago_s, [float("nan") if e is None else e for e in values], label=name)
    axes.set_ylabel(what)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", loc="upper left")


def _columns(report: HistoryReport, cost_per_hour: float) -> list[tuple[str, Column, _Say]]:
    """Each figure: its title, its values, and how a value is written."""
    cluster = report.cluster
    several = len(report.levels) > 1
    per_s, per_hour = cluster["tokens_per_s"], cluster["tokens_per_instance_hour"]
    costs = tuple(price_of_million(each, cost_per_hour) for each in per_hour)
    return [
        ("SERVE", cluster["num_serving"], _count),
        ("RUN", cluster["num_running_reqs"], _count),
        ("WAIT", cluster["num_waiting_reqs"], _count),
        ("LONGEST", cluster["longest_wait_s"], _time),
        ("KV", cluster["kv_held_share"], _share),
        ("WANTED", cluster["kv_wanted_share"], _share),
        ("NEW/s", _per_s(cluster["num_arrived"], report.span_s), _rate),
        ("TOK/s", per_s, _rate),
        ("TOK/INST-H", per_hour, _number),
        *([("COST/M", costs, _price)] if cost_per_hour else []),
        ("EVICT", cluster["num_evictions"], _count),
        ("MOVED", cluster["num_migrated"], _count),
        ("REPLAY", cluster["num_replayed"], _count),
        *(
            (f"TTFT99 {name}" if several else "TTFT99", level.ttft_p99_s, _time)
            for name, level in report.levels.items()
        ),
    ]


def _per_s(counts: Column, spans_s: Column) -> Column:
    return tuple(
        None if count is None or not span_s else count / span_s
        for count, span_s in zip(counts, spans_s, strict=True)
    )


def _curve(values: Iterable[float | None], glyphs: str) -> str:
    found = list(values)
    most = max(each for each in found if each is not None)
    least = min(0.0, *(each for each in found if each is not None))
    scale = (len(glyphs) - 1) / ((most - least) or 1.0)
    return "".join(" " if e is None else glyphs[round(scale * (e - least))] for e in found)


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _rate(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def _number(value: float | None) -> str:
    return "-" if value is None else counted(value)


def _price(value: float | None) -> str:
    return "-" if value is None else price(value)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f}%"


def _time(value: float | None) -> str:
    return "-" if value is None else latency(value)
