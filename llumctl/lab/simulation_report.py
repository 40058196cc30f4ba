"""Groups simulated runs, and shows them as JSON, as tables with a column for each policy, as bars
in a terminal, and as pictures."""

import itertools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from controller.api.errors import LlumctlError
from controller.api.text.quantities import per_instance_hour, price_of_million
from controller.sim.outcome import (
    SHARES,
    Curves,
    Figures,
    Interval,
    Summary,
    mean_of,
    ratio_of_means,
)
from controller.sim.run import Load, Ran
from llumctl import output
from llumctl.lab.simulation_plan import shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Figure = Callable[[Summary], float | None]


@dataclass(frozen=True, slots=True)
class Seeds:
    """Runs of one policy that differ only in their seed."""

    policy: str
    ran: Sequence[Ran]

    @property
    def summaries(self) -> list[Summary]:
        return [each.summary for each in self.ran]

    def values(self, figure: Figure) -> list[float]:
        """The figure of each run; empty if one of them does not have it."""
        found = [figure(summary) for summary in self.summaries]
        return [value for value in found if value is not None] if None not in found else []

    def mean(self, figure: Figure) -> Interval | None:
        values = self.values(figure)
        return mean_of(values) if values else None

    @property
    def steady(self) -> list[bool | None]:
        return [summary.steady for summary in self.summaries]

    @property
    def num_never_steady(self) -> int:
        return sum(each is False for each in self.steady)


@dataclass(frozen=True, slots=True)
class Group:
    """One load on one number of instances under several policies, in the order of the runs."""

    load: Load
    num_instances: int
    policies: Sequence[Seeds]

    @property
    def instances(self) -> str:
        """The number of instances, or its range: `16` or `1..16`."""
        setup = self.policies[0].ran[0].run.setup
        config = setup.policy.autoscale
        return (
            f"{setup.num_instances}"
            if config is None
            else f"{config.min_instances}..{config.max_instances}"
        )

    @property
    def rate(self) -> float:
        rates = [ran.rate for seeds in self.policies for ran in seeds.ran]
        return sum(rates) / len(rates)


def grouped(ran: Sequence[Ran]) -> list[Group]:
    groups: dict[tuple[Load, int, Hashable], dict[str, list[Ran]]] = {}
    for each in ran:
        setup = each.run.setup
        key = each.run.load, setup.num_instances, setup.policy.autoscale
        of_load = groups.setdefault(key, {})
        of_load.setdefault(setup.policy.name, []).append(each)
    return [
        Group(load, size, [Seeds(policy, seeds) for policy, seeds in of_load.items()])
        for (load, size, _), of_load in groups.items()
    ]


def latency(name: str, statistic: str, rank: int | None = None) -> Figure:
    """A latency such as `latency("ttft_s", "p99")`, of one rank or of all requests."""

    def figure(summary: Summary) -> float | None:
        figures = summary.all if rank is None else summary.by_rank.get(rank)
        spread = None if figures is None else getattr(figures, name)
        return None if spread is None else float(getattr(spread, statistic))

    return figure


def count(name: str, rank: int | None = None) -> Figure:
    """A figure that is a single number, such as `preemption_loss_s`."""

    def figure(summary: Summary) -> float | None:
        figures: Figures | None = summary.all if rank is None else summary.by_rank.get(rank)
        return None if figures is None else float(getattr(figures, name))

    return figure


def goodput(rank: int | None = None) -> Figure:
    """The goodput of the requests of a rank; of all without a rank."""

    def figure(summary: Summary) -> float | None:
        figures: Figures | None = summary.all if rank is None else summary.by_rank.get(rank)
        return None if figures is None else figures.goodput

    return figure


def tokens_per_instance_hour(summary: Summary) -> float | None:
    if summary.tokens_per_s is None:
        return None
    return per_instance_hour(summary.tokens_per_s, summary.mean_num_instances)


def cost_per_million(cost_per_hour: float) -> Figure:
    """What a million output tokens cost. `cost_per_hour`: of an instance; 0: not known."""
    return lambda summary: price_of_million(tokens_per_instance_hour(summary), cost_per_hour)


# -- JSON and tables --------------------------------------------------------------------

SPARK_WIDTH = 16
MIN_SEEDS = 3
"""With fewer seeds the interval of a ratio says nothing."""
LATENCIES = (
    ("ttft_s", ("mean", "p50", "p99", "max")),
    ("tpot_s", ("mean", "p99")),
    ("e2e_latency_s", ("mean", "p99")),
    ("longest_pause_s", ("p99", "max")),
)
COUNTS = (
    "preemption_loss_s",
    "num_evictions",
    "num_moves",
    "longest_overtaken_s",
    "most_overtaking",
)
RATIOS = (("ttft_s", "p99"), ("ttft_s", "mean"), ("tpot_s", "p99"), ("longest_pause_s", "p99"))


def as_json(ran: Ran, cost_per_hour: float = 0.0) -> dict[str, Any]:
    """A run as JSON. Equal runs give equal texts. Fields are only added. `cost_per_hour`: of an
    instance; 0: not known."""
    run, summary, setup = ran.run, ran.summary, ran.run.setup
    return {
        "workload": run.load.workload,
        "rate": ran.rate,
        "policy": setup.policy.name,
        "seed": run.seed,
        "num_instances": setup.num_instances,
        "profile": setup.profile.name,
        "mode": setup.mode,
        "options": _options(run.load),
        "settings": dict(run.settings),
        "autoscale": None if setup.policy.autoscale is None else asdict(setup.policy.autoscale),
        "faults": [asdict(fault) for fault in setup.faults],
        "warm_up": run.warm_up,
        "num_requests": ran.num_requests,
        "num_dropped": ran.num_dropped,
        "num_failed": summary.num_failed,
        "saturation_rate": ran.saturation_rate,
        "steady": summary.steady,
        **_figures(summary.all),
        "by_rank": {str(rank): _figures(each) for rank, each in summary.by_rank.items()},
        "num_failed_moves": summary.num_failed_moves,
        "downtime_s": None if summary.downtime_s is None else asdict(summary.downtime_s),
        "fragmentation": summary.fragmentation,
        "used_share": summary.used_share,
        "mean_num_waiting": summary.num_waiting,
        "mean_num_instances": summary.mean_num_instances,
        "tokens_per_s": summary.tokens_per_s,
        "tokens_per_instance_hour": tokens_per_instance_hour(summary),
        "cost_per_million_tokens": cost_per_million(cost_per_hour)(summary),
        "num_launched": summary.num_launched,
        "num_removed": summary.num_removed,
        "instances_over_time": _instances_over_time(ran),
        "duration_s": summary.duration_s,
        "num_steps": summary.num_steps,
    }


def _instances_over_time(ran: Ran) -> list[dict[str, float]] | None:
    """The number of instances over time; None if it is fixed."""
    if ran.run.setup.policy.autoscale is None:
        return None
    curves = ran.summary.curves
    return [
        {"time_s": time_s, "num_instances": number}
        for time_s, number in zip(curves.moments_s, curves.num_instances, strict=True)
    ]


def tables(ran: Sequence[Ran], *, blocks: bool, cost_per_hour: float = 0.0) -> str:
    """A table for each load and number of instances, with a row for each figure and a column for
    each policy."""
    return "\n\n".join(_table(group, blocks, cost_per_hour) for group in grouped(ran))


def never_steady(ran: Sequence[Ran]) -> list[str]:
    """A line for each policy and load with runs that did not reach a steady state."""
    return [
        f"{described(group)}: under {seeds.policy} {seeds.num_never_steady} of {len(seeds.ran)}"
        f" {'runs' if len(seeds.ran) > 1 else 'run'} reached no steady state: its figures depend on"
        " how many requests come"
        for group in grouped(ran)
        for seeds in group.policies
        if seeds.num_never_steady
    ]


def described(group: Group) -> str:
    return f"{shown(group.load.workload)} at {group.rate:.4g} requests/s on {group.instances}"


def number(value: float) -> str:
    """A number with four digits, or without decimals from 1,000 on."""
    if value == 0:
        return "0"
    size = abs(value)
    decimals = (
        0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 10 else 3 if size >= 1 else 4
    )
    return f"{value:.{decimals}f}"


def with_interval(found: Interval | None) -> str:
    """A mean with half the width of its interval: `1.32 ±0.21`; without it if there is none."""
    if found is None:
        return "-"
    if found.low is None:
        return number(found.mean)
    return f"{number(found.mean)} ±{_rough(found.mean - found.low)}"


def with_range(found: Interval) -> str:
    """A ratio with its interval: `1.74x (1.25 to 2.44)`; without it if there are too few seeds."""
    if found.low is None or found.high is None or found.num_values < MIN_SEEDS:
        return f"{found.mean:.3g}x"
    return f"{found.mean:.3g}x ({found.low:.3g} to {found.high:.3g})"


def _rough(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.2g}"


def _table(group: Group, blocks: bool, cost_per_hour: float) -> str:
    header = ["", *(seeds.policy for seeds in group.policies)]
    ranks = sorted({rank for each in group.policies for s in each.summaries for rank in s.by_rank})
    rows: list[list[str]] = []

    def add(name: str, cells: Sequence[str]) -> None:
        rows.append([name, *cells])

    for rank in (None, *ranks):
        place = "" if rank is None else f"rank {rank} "
        for name, statistics in LATENCIES:
            for statistic in statistics:
                figure = latency(name, statistic, rank)
                add(f"{place}{name} {statistic}", _cells(group, figure))
        for name in COUNTS:
            add(f"{place}{name}", _cells(group, count(name, rank)))
        if any(seeds.mean(goodput(rank)) is not None for seeds in group.policies):
            add(f"{place}goodput", _cells(group, goodput(rank)))
    add("fragmentation", [_share(each, "fragmentation") for each in group.policies])
    add("used_share", [_share(each, "used_share") for each in group.policies])
    downtimes = _cells(group, lambda s: None if s.downtime_s is None else s.downtime_s.p50)
    add("downtime_s p50", downtimes)
    if any(s.num_failed for each in group.policies for s in each.summaries):
        add("num_failed", _cells(group, lambda s: float(s.num_failed)))
    add("waiting requests", _cells(group, lambda s: s.num_waiting))
    if blocks:
        add("waiting over time", _sparklines(group, lambda curves: curves.num_waiting))
    if any(each.run.setup.policy.autoscale for s in group.policies for each in s.ran):
        add("instances", _cells(group, lambda s: s.mean_num_instances))
        add("launched", _cells(group, lambda s: float(s.num_launched)))
        if blocks:
            add("instances over time", _sparklines(group, lambda curves: curves.num_instances))
    add("tokens/s", _cells(group, lambda s: s.tokens_per_s))
    add("tokens/instance-hour", _cells(group, tokens_per_instance_hour))
    if cost_per_hour:
        add("cost of a million", _cells(group, cost_per_million(cost_per_hour)))
    add("steady", [steady(each.steady) for each in group.policies])
    parts = [_title(group), output.table(header, rows)]
    if ratios := _ratios(group):
        parts.append("\n".join(ratios))
    return "\n\n".join(parts)


def _title(group: Group) -> str:
    ran = group.policies[0].ran[0]
    setup, load = ran.run.setup, ran.run.load
    parts = [
        f"{shown(load.workload)} at {group.rate:.4g} requests/s",
        f"{group.instances} x {setup.profile.name}",
        setup.mode,
        f"{ran.num_requests} requests",
        *([f"{ran.num_dropped} too long, left out"] if ran.num_dropped else []),
        *(f"{name} {value}" for name, value in _options(load).items() if name != "num_requests"),
    ]
    num_seeds = len(group.policies[0].ran)
    if num_seeds > 1:
        parts.append(f"mean of {num_seeds} seeds ± 95% interval")
    return "  ".join(parts)


def _options(load: Load) -> dict[str, Any]:
    """Options that are not defaults, except for workload and rate, which are shown elsewhere."""
    default = Load(load.workload, load.rate)
    return {
        each.name: value
        for each in fields(load)
        if (value := getattr(load, each.name)) != getattr(default, each.name)
    }


def _figures(figures: Figures) -> dict[str, Any]:
    found = asdict(figures)
    found["num_counted"] = found.pop("num_requests")
    return found


def _cells(group: Group, figure: Figure) -> list[str]:
    return [with_interval(seeds.mean(figure)) for seeds in group.policies]


def _share(seeds: Seeds, name: str) -> str:
    found = seeds.mean(lambda summary: 100 * float(getattr(summary, name)))
    return "-" if found is None else f"{with_interval(found)} %"


def steady(told: Sequence[bool | None]) -> str:
    """A cell that says whether runs, which differ in their seed, reached a steady state."""
    if None in told and False not in told:
        return "too short to tell"
    if len(told) == 1:
        return "yes" if told[0] else "NO"
    return "yes" if all(told) else f"{sum(map(bool, told))} of {len(told)} runs"


def _sparklines(group: Group, curve: Callable[[Curves], Sequence[float]]) -> list[str]:
    """Curves as lines of block characters, all on one scale. If there are several seeds, their mean
    is shown."""
    means = [
        [
            sum(values) / len(values)
            for values in zip(*(curve(s.curves) for s in seeds.summaries), strict=True)
        ]
        for seeds in group.policies
    ]
    highest = max(itertools.chain(*means), default=0.0)
    return [sparkline(values, SPARK_WIDTH, highest) for values in means]


def _ratios(group: Group) -> list[str]:
    """The ratios of the other policies to the first one, as far as they can be computed."""
    first, *others = group.policies
    lines = []
    for other in others:
        parts = []
        for name, statistic in RATIOS:
            figure = latency(name, statistic)
            above, below = other.values(figure), first.values(figure)
            if not above or len(above) != len(below):
                continue
            found = ratio_of_means(above, below)
            if found is not None:
                parts.append(f"{name} {statistic} {with_range(found)}")
        if parts:
            lines.append(f"{other.policy} over {first.policy}: {', '.join(parts)}")
    return lines


# -- bars in a terminal: a block for each figure, a bar for each load and policy --------

BAR_FIGURES: tuple[tuple[str, Figure], ...] = (
    ("ttft_s p99", latency("ttft_s", "p99")),
    ("ttft_s mean", latency("ttft_s", "mean")),
    ("longest_pause_s p99", latency("longest_pause_s", "p99")),
    ("preemption_loss_s", count("preemption_loss_s")),
)
BAR_WIDTH = 40


def bar_chart(ran: Sequence[Ran]) -> str:
    """Bars for each figure, on a scale from 0 to the largest mean of that figure."""
    groups = grouped(ran)
    names = [
        f"{described(group)}  {seeds.policy}" if len(groups) > 1 else seeds.policy
        for group in groups
        for seeds in group.policies
    ]
    width = max(map(len, names))
    blocks = []
    for title, figure in BAR_FIGURES:
        means = [seeds.mean(figure) for group in groups for seeds in group.policies]
        highest = max((mean.mean for mean in means if mean is not None), default=0.0)
        lines = [title]
        for name, mean in zip(names, means, strict=True):
            if mean is not None:
                share = mean.mean / highest if highest > 0 else 0.0
                lines.append(f"  {name:<{width}}  {number(mean.mean):>8}  {bar(share, BAR_WIDTH)}")
        blocks.append("\n".join(line.rstrip() for line in lines))
    return "\n\n".join(blocks)


# -- block characters -------------------------------------------------------------------

LEVELS = "▁▂▃▄▅▆▇█"
EIGHTHS = " ▏▎▍▌▋▊▉█"


def sparkline(values: Sequence[float], width: int, highest: float) -> str:
    """The values over time in `width` columns, each of which shows its largest value. Empty if
    there are no values."""
    if not values or highest <= 0:
        return LEVELS[0] * min(width, len(values))
    num = min(width, len(values))
    edges = [len(values) * place // num for place in range(num + 1)]
    columns = (max(values[begin:end]) for begin, end in pairwise(edges))
    top = len(LEVELS) - 1
    return "".join(LEVELS[min(top, round(top * value / highest))] for value in columns)


def bar(share: float, width: int) -> str:
    """A bar that fills `share` (0 to 1) of `width` columns, exact to an eighth of a column."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    whole, rest = divmod(eighths, 8)
    return "█" * whole + (EIGHTHS[rest] if rest else "")


# -- pictures: tails and queues, or figures by rate or by instances -------------------------

PLOTTED: tuple[tuple[str, Figure], ...] = (
    ("TTFT P99 (s)", latency("ttft_s", "p99")),
    ("TTFT mean (s)", latency("ttft_s", "mean")),
    ("TPOT P99 (s)", latency("tpot_s", "p99")),
    ("preemption loss (s)", count("preemption_loss_s")),
)
PLOTTED_CURVES: tuple[tuple[str, Callable[[Curves], Sequence[float]]], ...] = (
    ("TTFT", lambda curves: curves.ttft_s),
    ("end-to-end latency", lambda curves: curves.e2e_latency_s),
    ("longest pause of a stream", lambda curves: curves.longest_pause_s),
)
LEAST_S = 1e-3
LEAST_SHARE = 1e-3
"""Smaller values are not drawn, as a logarithmic scale has no 0."""


def save_plot(path: Path, ran: Sequence[Ran]) -> None:
    """Writes a row of pictures for each workload, as PNG or SVG by the file's name. If there are
    several rates or numbers of instances, figures are drawn over these, else the tails of
    latencies.

    Raises:
        LlumctlError: the file cannot be written.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure as Picture

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
            row[0].set_title(f"{shown(workload)}: {PLOTTED[0][0]}", fontsize="medium")
        row[0].legend(fontsize="small")
    try:
        # Equal runs give equal files, so the file has no date and no random ids.
        with rc_context({"svg.hashsalt": "llumctl"}):
            metadata = {"Date": None} if path.suffix == ".svg" else None
            picture.savefig(path, dpi=120, metadata=metadata)
    except OSError as error:
        raise LlumctlError(
            f"cannot write {path}: {error.strerror}", f"ls -ld {path.parent}"
        ) from error


def _draw_distributions(row: "Sequence[Axes]", group: Group) -> None:
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

    beyond = np.maximum(1 - np.array(SHARES), LEAST_SHARE)
    for axes, (title, curve) in zip(row, PLOTTED_CURVES, strict=False):
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
    waiting = row[len(PLOTTED_CURVES)]
    for seeds in group.policies:
        moments_s = np.mean([each.curves.moments_s for each in seeds.summaries], axis=0)
        values = np.mean([each.curves.num_waiting for each in seeds.summaries], axis=0)
        waiting.plot(moments_s, values, label=seeds.policy)
    _label(waiting, "waiting requests", "s since the start", "requests")


def _draw_sweep(row: "Sequence[Axes]", groups: Sequence[Group]) -> None:
    """Draws means over seeds with their intervals, by rate, or by instances if there is one
    rate."""
    by_rate = len({group.load.rate for group in groups}) > 1
    place: Callable[[Group], float] = lambda group: (  # noqa: E731
        group.rate if by_rate else float(group.num_instances)
    )
    for axes, (title, figure) in zip(row, PLOTTED, strict=True):
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
    axes: "Axes", points: Sequence[tuple[float, Seeds]], figure: Figure, label: str
) -> None:
    found = [(x, mean) for x, seeds in points if (mean := seeds.mean(figure)) is not None]
    xs, means = [x for x, _ in found], [mean.mean for _, mean in found]
    (line,) = axes.plot(xs, means, "o-", markersize=3, label=label)
    bands = [(x, mean.low, mean.high) for x, mean in found if mean.low is not None]
    if bands:
        where, lows, highs = zip(*bands, strict=True)
        axes.fill_between(where, np.maximum(lows, 0), highs, color=line.get_color(), alpha=0.15)


def _label(axes: "Axes", title: str, x: str, y: str) -> None:
    axes.set_title(title, fontsize="medium")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.3)
