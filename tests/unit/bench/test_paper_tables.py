"""The tables of docs/paper.md, from points and runs that are small enough to check by hand."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import paper_points, paper_runs, paper_tables


def _interval(mean: float) -> dict[str, float]:
    return {"mean": mean, "low": mean / 2, "high": mean * 2, "num_values": 3}


def _point(workload: str, metric: str, **over: Any) -> dict[str, Any]:
    cell = {"simulated": _interval(6.0), "paper": 12.0}
    return {
        "workload": workload,
        "x": 2.0,
        "rate": 2.0,
        "cv": None,
        "lengths": "",
        "scale_from_blocks": None,
        "rank": None,
        "metric": metric,
        "policies": {"infaas++": cell, "llumnix": cell},
        "ratios": {"llumnix": {"simulated": _interval(4.0), "paper": 3.0}},
        **over,
    }


def _run(policy: str, **over: Any) -> dict[str, Any]:
    figures = {"mean": 1.0, "p99": 2.0, "max": 3.0}
    return {
        "workload": "M-M",
        "rate": 2.0,
        "policy": policy,
        "seed": 1,
        "options": {},
        "settings": {},
        "ttft_s": figures,
        "tpot_s": figures,
        "longest_pause_s": figures,
        "preemption_loss_s": 0.5,
        "longest_overtaken_s": 4.0,
        "most_overtaking": 5,
        **over,
    }


def _with_ttft(policy: str, value: float, **over: Any) -> dict[str, Any]:
    return _run(policy, ttft_s=dict.fromkeys(("mean", "p99", "max"), value), **over)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("| ").split(" | ")]


def _file(*points: dict[str, Any], times: Sequence[float] = ()) -> dict[str, Any]:
    """With runs of two seeds in which llumnix is so many times as good, by point."""
    runs = [
        _with_ttft(policy, seconds * seed, seed=seed, workload=point["workload"])
        for point, ratio in zip(points, times, strict=False)
        for policy, seconds in (("infaas++", ratio), ("llumnix", 1.0))
        for seed in (1, 2)
    ]
    return {"figure": "figure11", "baseline": "infaas++", "points": list(points), "runs": runs}


def test_a_geometric_mean_is_of_the_ratios_of_the_runs() -> None:
    points = [_point(name, "ttft_s p99") for name in ("M-M", "L-L")]
    (table,) = paper_points.tables([_file(*points, times=(2.0, 8.0))])
    assert _cells(table[4])[-2:] == ["4 (4 to 4)", "3"]


def test_a_point_without_a_ratio_is_left_out_of_the_geometric_mean() -> None:
    unknown = {"llumnix": {"simulated": None, "paper": None}}
    points = [
        _point("M-M", "ttft_s p99"),
        _point("L-L", "ttft_s p99"),
        _point("S-S", "ttft_s p99", ratios=unknown),
    ]
    (table,) = paper_points.tables([_file(*points, times=(2.0, 8.0, 100.0))])
    assert _cells(table[4])[-2:] == ["-", "-"]
    assert _cells(table[5])[-2:] == ["4 (4 to 4)", "3"]


def test_a_table_has_generated_and_real_traces_and_all_of_them() -> None:
    points = [_point(name, "ttft_s p99") for name in ("M-M", "L-L", "sharegpt", "burstgpt")]
    (table,) = paper_points.tables([_file(*points, times=(2.0, 8.0, 4.0, 4.0))])
    assert _cells(table[0])[1:] == [
        "infaas++",
        "paper",
        "llumnix",
        "paper",
        "over llumnix",
        "paper",
    ]
    assert _cells(table[2])[:5] == ["M-M 2/s", "6.000 ±4.500", "12.00", "6.000 ±4.500", "12.00"]
    assert _cells(table[2])[5:] == ["4 (2 to 8)", "3"]
    assert [_cells(line)[0] for line in table[6:]] == [
        f"geometric mean, {kind}" for kind in ("generated", "real", "all")
    ]
    assert all(len(_cells(line)) == 7 for line in table)


def test_geometric_means_alone() -> None:
    points = [
        _point(name, metric)
        for metric in ("ttft_s p99", "ttft_s mean")
        for name in ("M-M", "L-L", "sharegpt", "burstgpt")
    ]
    table = paper_points.means([_file(*points, times=(2.0, 8.0, 16.0, 16.0))])
    assert _cells(table[0])[1:] == ["llumnix, generated", "llumnix, real", "llumnix, all"]
    assert [_cells(line)[0] for line in table[2:]] == [
        "prefill (TTFT) P99, s",
        "prefill mean, s",
    ]
    assert _cells(table[2])[1:] == ["4 (4 to 4)", "16 (16 to 16)", "8 (8 to 8)"]


def test_the_ranks_have_tables_of_their_own() -> None:
    points = [_point("M-M", "ttft_s p99", rank=rank) for rank in (0, 1)]
    file = _file(*points)
    titles = [_cells(table[0])[0] for table in paper_points.tables([file])]
    assert titles == ["high: prefill (TTFT) P99, s", "normal: prefill (TTFT) P99, s"]


def test_tables_without_the_papers_points() -> None:
    points = [_point("M-M", "ttft_s p99"), _point("M-M", "ttft_s mean")]
    (table,) = paper_points.tables([_file(*points)], ["ttft_s mean"], with_paper=False)
    assert _cells(table[0]) == ["prefill mean, s", "infaas++", "llumnix", "over llumnix"]


def test_what_the_points_of_auto_scaling_lack_comes_from_the_runs() -> None:
    place = {"lengths": "M-M", "scale_from_blocks": 10.0}
    runs = [
        _with_ttft(policy, seconds, seed=seed, settings={"autoscale.up_below_steps": "160"})
        for policy, seconds in (("infaas++", 8.0), ("llumnix", 2.0))
        for seed in (1, 2)
    ]
    file = {
        "figure": "figure14",
        "baseline": "infaas++",
        "points": [_point("poisson", "ttft_s p99", **place)],
        "runs": runs,
    }
    by_metric = {point["metric"]: point for point in paper_points.all_points(file)}
    assert set(by_metric) == {"ttft_s p99", "ttft_s max", "preemption_loss_s"}
    found = by_metric["ttft_s max"]
    assert found["policies"]["llumnix"]["simulated"]["mean"] == 2.0
    assert found["ratios"]["llumnix"]["simulated"]["mean"] == pytest.approx(4.0)


def test_instances_at_a_latency_are_read_off_the_curve() -> None:
    def points(x: float, instances: float, seconds: float) -> list[dict[str, Any]]:
        def cells(value: float) -> dict[str, Any]:
            cell = {"simulated": _interval(value), "paper": None}
            return {"infaas++": cell, "llumnix": {**cell, "simulated": _interval(value / 2)}}

        return [
            _point("gamma", metric, x=x, policies=cells(value))
            for metric, value in (
                ("mean_num_instances", instances),
                ("ttft_s p99", seconds),
                ("ttft_s mean", seconds),
                ("ttft_s max", seconds),
            )
        ]

    file = {
        "figure": "",
        "baseline": "infaas++",
        "points": [*points(5, 12.0, 50.0), *points(25, 14.0, 0.5)],
        "runs": [],
    }
    table = paper_points.cost([file])
    assert _cells(table[2])[:2] == ["prefill (TTFT) P99 of 5 s", "13.00"]


def test_round_robin_stands_in_a_table_of_its_own() -> None:
    point = _point("sharegpt", "ttft_s p99")
    point["policies"]["round-robin"] = {"simulated": _interval(6.0), "paper": 80.0}
    file = {"figure": "figure11", "baseline": "infaas++", "points": [point], "runs": []}
    assert "round-robin" not in next(paper_points.tables([file]))[0]
    table = paper_points.others([file])
    assert _cells(table[2]) == ["round-robin sharegpt 2/s", "6.000 ±4.500 (80.00)"]


def test_the_gap_to_the_bound() -> None:
    runs = [_with_ttft("infaas++", 10.0), _with_ttft("llumnix+", 4.0)]
    lines = paper_runs.bound([{"runs": runs}, [_with_ttft("O1", 2.0)]])
    assert _cells(lines[2])[:2] == ["M-M 2/s", "75 %"]
    # The loss is the same in all three: there is no gap to close.
    assert _cells(lines[2])[4] == "no gap (0.5000, O1 0.5000)"


def test_seeds_whose_maximum_is_above_that_of_llumnix_are_counted() -> None:
    runs = [_with_ttft("llumnix+", value, seed=seed) for seed, value in ((1, 2.0), (2, 9.0))]
    runs += [_with_ttft("llumnix", value, seed=seed) for seed, value in ((1, 3.0), (2, 8.0))]
    assert _cells(paper_runs.overtaken([{"runs": runs}])[2]) == [
        "M-M 2/s",
        "4.0",
        "5",
        "9.0",
        "8.0",
        "1 of 2",
    ]


def test_parts_are_told_as_times_the_whole() -> None:
    whole = [_with_ttft("llumnix+", 2.0), _with_ttft("llumnix+", 2.0)]
    without = [_with_ttft("llumnix+", 3.0), _with_ttft("llumnix+", 3.0)]
    table = paper_runs.parts({"all": whole, "room off": without})
    assert _cells(table[2])[:2] == ["all", "2.000 ±0"]
    assert _cells(table[3])[:2] == ["room off", "1.5 (1.5 to 1.5)"]


def test_policies_that_do_the_same_share_a_line() -> None:
    runs = [_run("llumnix-base"), _run("llumnix"), _with_ttft("llumnix+", 0.5)]
    table = paper_runs.policies([runs])
    assert [_cells(line)[0] for line in table[2:]] == ["`llumnix-base`, `llumnix`", "`llumnix+`"]


def test_the_command_reads_files_and_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def given(name: str, runs: Sequence[Any]) -> str:
        (tmp_path / name).write_text(json.dumps(runs), "utf-8")
        return f"{name} part={tmp_path / name}"

    files = [given("first", [_run("llumnix+")]), given("second", [_run("llumnix+")])]
    monkeypatch.setattr(sys, "argv", ["paper_tables", "parts", *files])
    assert paper_tables.main() == 0
    assert [_cells(line)[0] for line in capsys.readouterr().out.splitlines()[2:4]] == [
        "first part",
        "second part",
    ]
