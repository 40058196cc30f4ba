"""Draws the plots of docs/paper.md from the points in docs/paper/*.csv: `make paper-plots`.

The CSV files are written by `make paper-tables`, from simulated runs. A figure has the points of
the Llumnix paper beside them, dashed, where the paper has any.
"""

import csv
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams.update(
    {
        "svg.hashsalt": "llumctl",
        "svg.fonttype": "none",
        "font.size": 8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
    }
)

import matplotlib.pyplot as plt  # noqa: E402 - after the backend

FOLDER = Path(__file__).parents[1] / "docs/paper"
COLOURS = {
    "infaas++": "#888888",
    "llumnix-base": "#888888",
    "llumnix": "#0b7a75",
    "llumnix+": "#d1495b",
}
TTFT = "prefill (TTFT) P99, s"
INSTANCES = "mean number of instances"


class Point(NamedTuple):
    """`low` and `high`: of the ratio's interval of 95%."""

    at: str
    simulated: float
    paper: float | None
    ratio: float | None
    low: float | None
    high: float | None
    paper_ratio: float | None


def points(file: str, metric: str, policy: str) -> list[Point]:
    """Without the geometric means."""
    with (FOLDER / f"{file}.csv").open(encoding="utf-8") as lines:
        rows = [each for each in csv.DictReader(lines) if each["metric"] == metric]
    return [
        Point(
            each["point"],
            float(each["simulated"]),
            *(
                float(each[name]) if each[name] else None
                for name in ("paper", "ratio", "ratio_low", "ratio_high", "paper_ratio")
            ),
        )
        for each in rows
        if each["policy"] == policy and not each["point"].startswith("geometric")
    ]


def number(text: str) -> float:
    """The last number of a point's name: `M-M 7.5/s`, `CV 4`."""
    return float(re.findall(r"[\d.]+", text)[-1])


def figure11() -> Any:
    """P99 TTFT over the rate, a panel for each trace."""
    traces = list(dict.fromkeys(each.at.split()[0] for each in points("figure11", TTFT, "llumnix")))
    figure, panels = plt.subplots(2, 4, figsize=(9, 4.2), constrained_layout=True)
    for panel, trace in zip(panels.flat, traces, strict=False):
        for policy in ("infaas++", "llumnix"):
            there = [
                each for each in points("figure11", TTFT, policy) if each.at.split()[0] == trace
            ]
            rates = [number(each.at) for each in there]
            panel.plot(rates, [each.simulated for each in there], "o-", ms=3, color=COLOURS[policy])
            panel.plot(rates, _paper(there), "--", color=COLOURS[policy], alpha=0.6)
        panel.set(title=trace, yscale="log")
    for panel in panels[:, 0]:
        panel.set_ylabel("P99 TTFT, s")
    legend = panels.flat[-1]
    legend.axis("off")
    for policy in ("infaas++", "llumnix"):
        legend.plot([], [], "o-", ms=3, color=COLOURS[policy], label=f"{policy}, simulated")
        legend.plot([], [], "--", color=COLOURS[policy], alpha=0.6, label=f"{policy}, paper")
    legend.legend(loc="center")
    figure.supxlabel("requests per second")
    return figure


def _paper(there: Sequence[Point]) -> list[float]:
    return [float("nan") if each.paper is None else each.paper for each in there]


def matched() -> Any:
    """The gain in P99 TTFT at the knee, with its interval."""
    figure, panel = plt.subplots(figsize=(7, 3), constrained_layout=True)
    for index, policy in enumerate(("llumnix", "llumnix+")):
        there = points("matched-1.0", TTFT, policy)
        _gains(panel, [each + 0.3 * index for each in range(len(there))], there, policy)
    panel.set(ylabel="gain in P99 TTFT over infaas++", yscale="log")
    panel.set_xticks([each + 0.15 for each in range(len(there))], [each.at for each in there])
    _marked(panel)
    return figure


def _gains(panel: Any, at: Sequence[float], there: Sequence[Point], policy: str) -> None:
    ratios = [each.ratio or 1.0 for each in there]
    below = [ratio - (each.low or ratio) for ratio, each in zip(ratios, there, strict=True)]
    above = [(each.high or ratio) - ratio for ratio, each in zip(ratios, there, strict=True)]
    panel.errorbar(
        at,
        ratios,
        yerr=[below, above],
        fmt="o",
        ms=4,
        capsize=2,
        color=COLOURS[policy],
        label=policy,
    )


def _marked(panel: Any) -> None:
    """A line at no gain, and numbers instead of powers."""
    panel.axhline(1, color="black", lw=0.6)
    panel.set_yticks([0.5, 1, 2, 5, 10], ["0.5", "1", "2", "5", "10"])
    panel.minorticks_off()
    panel.legend()


def figure13() -> Any:
    """The gain in the mean time of a request at the knee, by the burstiness."""
    figure, panels = plt.subplots(1, 2, figsize=(7, 3), sharey=True, constrained_layout=True)
    for panel, kind in zip(panels, ("high", "normal"), strict=True):
        metric = f"{kind}: request mean, s"
        for index, policy in enumerate(("llumnix", "llumnix+")):
            there = points("figure13-matched", metric, policy)
            _gains(panel, [number(each.at) + 0.2 * index for each in there], there, policy)
        of_paper = points("figure13", metric, "llumnix")
        panel.plot(
            [number(each.at) for each in of_paper],
            [each.paper_ratio for each in of_paper],
            "--",
            color=COLOURS["llumnix"],
            alpha=0.6,
            label="llumnix, paper",
        )
        panel.axhline(1, color="black", lw=0.6)
        panel.set(title=f"{kind} requests", xlabel="CV of the gaps between arrivals")
    panels[0].set_ylabel("gain in the mean time of a request")
    panels[0].legend()
    return figure


def figure14() -> Any:
    """Instances over the load of a cluster that scales itself."""
    figure, panels = plt.subplots(1, 2, figsize=(7, 3), sharey=True, constrained_layout=True)
    for panel, kind, label in zip(
        panels, ("Poisson", "Gamma"), ("requests per second", "CV of the gaps at 2/s"), strict=True
    ):
        for policy in ("infaas++", "llumnix"):
            there = [p for p in points("figure14", INSTANCES, policy) if p.at.startswith(kind)]
            at, colour = [number(each.at) for each in there], COLOURS[policy]
            panel.plot(at, [p.simulated for p in there], "o-", ms=3, color=colour, label=policy)
            panel.plot(at, _paper(there), "--", color=colour, alpha=0.6, label=f"{policy}, paper")
        panel.set(title=f"{kind} arrivals", xlabel=label)
    panels[0].set_ylabel("mean number of instances")
    panels[0].legend()
    return figure


def figure15() -> Any:
    """P99 TTFT over the instances that it costs."""
    figure, panel = plt.subplots(figsize=(5, 3), constrained_layout=True)
    for policy in ("infaas++", "llumnix"):
        cost = points("figure15", INSTANCES, policy)
        ttft = points("figure15", TTFT, policy)
        colour = COLOURS[policy]
        panel.plot(
            [p.simulated for p in cost],
            [p.simulated for p in ttft],
            "o-",
            ms=3,
            color=colour,
            label=policy,
        )
        panel.plot(
            _paper(cost), _paper(ttft), "--", color=colour, alpha=0.6, label=f"{policy}, paper"
        )
    panel.set(xlabel="mean number of instances", ylabel="P99 TTFT, s", yscale="log")
    panel.legend()
    return figure


PLOTS: dict[str, Callable[[], Any]] = {
    "figure11": figure11,
    "matched": matched,
    "figure13": figure13,
    "figure14": figure14,
    "figure15": figure15,
}


def main() -> None:
    for name, plot in PLOTS.items():
        figure = plot()
        figure.savefig(FOLDER / f"{name}.svg", metadata={"Date": None})
        plt.close(figure)


if __name__ == "__main__":
    main()
