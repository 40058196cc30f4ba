"""docs/paper.md's tables, from what `llumctl simulate paper ... -o json` wrote.

Files of one figure may have a trace each. A table per metric and rank: means over seeds with half
of their 95% interval, each beside the paper's, and the baseline over ours. The geometric mean's
interval takes the traces' for independent, which they are: each has requests of its own.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from llumctl.simulate import report

TITLES = {
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
RANKS = {None: "", 0: "normal: ", 1: "high: "}
REAL = ("sharegpt", "burstgpt")

Point = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paper_tables",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", type=Path, nargs="+")
    found = [json.loads(file.read_text("utf-8")) for file in parser.parse_args().files]
    baseline, x_title = found[0]["baseline"], "CV" if found[0]["points"][0]["cv"] else ""
    points = [point for one in found for point in one["points"]]
    kinds = dict.fromkeys((point["rank"], point["metric"]) for point in points)
    order = list(TITLES)
    for rank, metric in sorted(kinds, key=lambda kind: (-(kind[0] or 0), order.index(kind[1]))):
        own = [point for point in points if (point["rank"], point["metric"]) == (rank, metric)]
        print("\n".join(_table(own, f"{RANKS[rank]}{TITLES[metric]}", baseline, x_title)), "\n")
    return 0


def _table(points: Sequence[Point], title: str, baseline: str, x_title: str) -> Iterator[str]:
    ours = list(points[0]["ratios"])
    policies = [baseline, *ours]
    has_paper = any(p["policies"][name]["paper"] for p in points for name in policies)
    header = [title]
    for policy in policies:
        header += [policy, "paper"] if has_paper else [policy]
    for policy in ours:
        header += [f"over {policy}", "paper"] if has_paper else [f"over {policy}"]
    yield _line(header)
    yield _line(["---"] * len(header))
    for point in points:
        line = [_place(point, x_title)]
        for policy in policies:
            cell = point["policies"][policy]
            line.append(_interval(cell["simulated"]))
            line += [_number(cell["paper"])] if has_paper else []
        for policy in ours:
            ratio = point["ratios"][policy]
            line.append(_ratio(ratio["simulated"]))
            line += [_times(ratio["paper"])] if has_paper else []
        yield _line(line)
    for kind in ("generated", "real"):
        alike = [p for p in points if (p["workload"] in REAL) == (kind == "real")]
        if len(alike) > 1:
            line = ["geometric mean" if x_title else f"geometric mean, {kind}"]
            line += [""] * (len(policies) * (2 if has_paper else 1))
            for policy in ours:
                ratios = [p["ratios"][policy] for p in alike]
                line.append(_ratio(_geometric_mean([r["simulated"] for r in ratios])))
                papers = [r["paper"] for r in ratios if r["paper"]]
                mean = math.exp(sum(map(math.log, papers)) / len(papers)) if papers else None
                line += [_times(mean)] if has_paper else []
            yield _line(line)


def _geometric_mean(ratios: Sequence[dict[str, float] | None]) -> dict[str, float] | None:
    """Of those that are known: nothing is no times less than something."""
    known = [ratio for ratio in ratios if ratio is not None and ratio["mean"] > 0]
    if len(known) < 2:
        return None
    log_mean = sum(math.log(ratio["mean"]) for ratio in known) / len(known)
    widths = [math.log(r["high"] / r["low"]) / 2 for r in known if r["low"] > 0]
    width = math.sqrt(sum(w * w for w in widths)) / len(known)
    low, high = math.exp(log_mean - width), math.exp(log_mean + width)
    return {"mean": math.exp(log_mean), "low": low, "high": high}


def _place(point: Point, x_title: str) -> str:
    if x_title:
        return f"{x_title} {point['x']:g}"
    return f"{point['workload']} {point['rate']:.3g}/s"


def _interval(found: dict[str, float] | None) -> str:
    if found is None:
        return "-"
    return f"{report.number(found['mean'])} ±{report.number((found['high'] - found['low']) / 2)}"


def _ratio(found: dict[str, float] | None) -> str:
    if found is None:
        return "-"
    return f"{found['mean']:.3g} ({found['low']:.3g} to {found['high']:.3g})"


def _number(value: float | None) -> str:
    return "-" if value is None else report.number(value)


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
