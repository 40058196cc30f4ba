"""The tables of docs/paper, from points and runs that are small enough to check by hand."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import paper_tables


def _interval(mean: float) -> dict[str, float]:
    return {"mean": mean, "low": mean / 2, "high": mean * 2, "num_values": 3}


def _point(workload: str, **over: Any) -> dict[str, Any]:
    cell = {"simulated": _interval(6.0), "paper": 12.0}
    point = {"workload": workload, "x": 2.0, "rate": 2.0, "lengths": "", "metric": "ttft_s p99"}
    point |= dict.fromkeys(("cv", "scale_from_blocks", "rank"))
    point |= {"policies": {"infaas++": cell, "llumnix": cell}}
    return point | {"ratios": {"llumnix": {"simulated": _interval(4.0), "paper": 3.0}}} | over


def _file(points: Sequence[dict[str, Any]], times: Sequence[float]) -> dict[str, Any]:
    """With runs of two seeds in which llumnix is so many times as good, by point."""
    place = {"rate": 2.0, "options": {}, "settings": {}}
    runs = [
        {"workload": point["workload"], "policy": policy, "seed": seed, **place}
        | {"ttft_s": dict.fromkeys(("mean", "p99", "max"), seconds * seed)}
        for point, ratio in zip(points, times, strict=True)
        for policy, seconds in (("infaas++", ratio), ("llumnix", 1.0))
        for seed in (1, 2)
    ]
    return {"figure": "figure11", "baseline": "infaas++", "points": list(points), "runs": runs}


def test_figures_have_a_line_for_each_point_and_policy_and_the_geometric_means() -> None:
    """A point without a ratio is left out of the means."""
    points = [_point(name) for name in ("M-M", "L-L", "sharegpt", "burstgpt")]
    unknown = {"llumnix": {"simulated": None, "paper": None}}
    points.append(_point("S-S", ratios=unknown))
    table = paper_tables.figures([_file(points, (2.0, 8.0, 4.0, 4.0, 100.0))])
    title = "prefill (TTFT) P99, s"
    assert table.lines[0] == [title, "M-M 2/s", "infaas++", "6.000", "4.500", "12.00", *[""] * 4]
    assert table.lines[1][2:] == ["llumnix", "6.000", "4.500", "12.00", "4", "2", "8", "3"]
    assert table.lines[9][6:] == [""] * 4
    assert [line[1:] for line in table.lines[10:]] == [
        [f"geometric mean, {kind}", "llumnix", "", "", "", "4", "4", "4", "3"]
        for kind in ("generated", "real", "all")
    ]
    assert table.csv().splitlines()[1] == f'"{title}",M-M 2/s,infaas++,6.000,4.500,12.00,,,,'


def test_committed_tables_are_the_planned_ones_with_the_columns_that_are_written() -> None:
    committed = sorted((Path(__file__).parents[3] / "docs" / "paper").glob("*.csv"))
    assert {path.stem for path in committed} == set(paper_tables.plan())
    for path in committed:
        header, *lines = csv.reader(path.read_text("utf-8").splitlines())
        if paper_tables.plan()[path.stem][0] == "figures":
            assert header == list(paper_tables.COLUMNS)
        assert {len(line) for line in lines} == {len(header)}, path.name
