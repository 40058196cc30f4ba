"""The tables of docs/paper, from points and runs that are small enough to check by hand."""

import csv
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from benchmarks import paper_tables
from benchmarks.paper_tables import Table
from llumctl.app import app


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


def _lines(table: Table, **where: str) -> list[dict[str, str]]:
    """By the columns' names, those lines that have these cells."""
    lines = [dict(zip(table.header, line, strict=True)) for line in table.lines]
    return [line for line in lines if where.items() <= line.items()]


def _file(*points: dict[str, Any], times: Sequence[float] = ()) -> dict[str, Any]:
    """With runs of two seeds in which llumnix is so many times as good, by point."""
    runs = [
        _with_ttft(policy, seconds * seed, seed=seed, workload=point["workload"])
        for point, ratio in zip(points, times, strict=False)
        for policy, seconds in (("infaas++", ratio), ("llumnix", 1.0))
        for seed in (1, 2)
    ]
    return {"figure": "figure11", "baseline": "infaas++", "points": list(points), "runs": runs}


def _ratio(line: dict[str, str]) -> list[str]:
    return [line[name] for name in ("ratio", "ratio_low", "ratio_high", "paper_ratio")]


def test_a_geometric_mean_is_of_the_ratios_of_the_runs() -> None:
    points = [_point(name, "ttft_s p99") for name in ("M-M", "L-L")]
    table = paper_tables.figures([_file(*points, times=(2.0, 8.0))])
    (line,) = _lines(table, point="geometric mean, generated")
    assert _ratio(line) == ["4", "4", "4", "3"]


def test_a_point_without_a_ratio_is_left_out_of_the_geometric_mean() -> None:
    unknown = {"llumnix": {"simulated": None, "paper": None}}
    points = [
        _point("M-M", "ttft_s p99"),
        _point("L-L", "ttft_s p99"),
        _point("S-S", "ttft_s p99", ratios=unknown),
    ]
    table = paper_tables.figures([_file(*points, times=(2.0, 8.0, 100.0))])
    (line,) = _lines(table, point="S-S 2/s", policy="llumnix")
    assert _ratio(line) == ["", "", "", ""]
    (line,) = _lines(table, point="geometric mean, generated")
    assert _ratio(line) == ["4", "4", "4", "3"]


def test_figures_have_a_line_for_each_point_and_policy_and_the_geometric_means() -> None:
    points = [_point(name, "ttft_s p99") for name in ("M-M", "L-L", "sharegpt", "burstgpt")]
    table = paper_tables.figures([_file(*points, times=(2.0, 8.0, 4.0, 4.0))])
    title = "prefill (TTFT) P99, s"
    assert table.lines[0] == [title, "M-M 2/s", "infaas++", "6.000", "4.500", "12.00", *[""] * 4]
    assert table.lines[1][2:] == ["llumnix", "6.000", "4.500", "12.00", "4", "2", "8", "3"]
    assert [line[1:6] for line in table.lines[8:]] == [
        [f"geometric mean, {kind}", "llumnix", "", "", ""] for kind in ("generated", "real", "all")
    ]
    assert table.csv().splitlines()[1] == f'"{title}",M-M 2/s,infaas++,6.000,4.500,12.00,,,,'


def test_geometric_means_alone() -> None:
    points = [
        _point(name, metric)
        for metric in ("ttft_s p99", "ttft_s mean")
        for name in ("M-M", "L-L", "sharegpt", "burstgpt")
    ]
    table = paper_tables.means([_file(*points, times=(2.0, 8.0, 16.0, 16.0))])
    assert table.header[1:] == ["llumnix, generated", "llumnix, real", "llumnix, all"]
    assert [line[0] for line in table.lines] == ["prefill (TTFT) P99, s", "prefill mean, s"]
    assert table.lines[0][1:] == ["4 (4 to 4)", "16 (16 to 16)", "8 (8 to 8)"]
    assert table.markdown().splitlines()[1] == "| --- | --- | --- | --- |"


def test_ranks_are_told_apart() -> None:
    points = [_point("M-M", "ttft_s p99", rank=rank) for rank in (0, 1)]
    titles = dict.fromkeys(line[0] for line in paper_tables.figures([_file(*points)]).lines)
    assert list(titles) == ["high: prefill (TTFT) P99, s", "normal: prefill (TTFT) P99, s"]


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
    by_metric = {point["metric"]: point for point in paper_tables.all_points(file)}
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
    table = paper_tables.cost([file])
    assert table.lines[0][:2] == ["prefill (TTFT) P99 of 5 s", "13.00"]


def test_round_robin_has_no_ratio() -> None:
    point = _point("sharegpt", "ttft_s p99")
    point["policies"]["round-robin"] = {"simulated": _interval(6.0), "paper": 80.0}
    file = {"figure": "figure11", "baseline": "infaas++", "points": [point], "runs": []}
    (line,) = _lines(paper_tables.figures([file]), policy="round-robin")
    assert (line["simulated"], line["paper"]) == ("6.000", "80.00")
    assert _ratio(line) == ["", "", "", ""]


def test_the_gap_to_the_bound() -> None:
    runs = [_with_ttft("infaas++", 10.0), _with_ttft("llumnix+", 4.0)]
    (line,) = paper_tables.bound([{"runs": runs}, [_with_ttft("O1", 2.0)]]).lines
    assert line[:2] == ["M-M 2/s", "75 %"]
    # The loss is the same in all three: there is no gap to close.
    assert line[4] == "no gap (0.5000, O1 0.5000)"


def test_seeds_whose_maximum_is_above_that_of_llumnix_are_counted() -> None:
    runs = [_with_ttft("llumnix+", value, seed=seed) for seed, value in ((1, 2.0), (2, 9.0))]
    runs += [_with_ttft("llumnix", value, seed=seed) for seed, value in ((1, 3.0), (2, 8.0))]
    assert paper_tables.overtaken([{"runs": runs}]).lines == [
        ["M-M 2/s", "4.0", "5", "9.0", "8.0", "1 of 2"]
    ]


def test_parts_are_told_as_times_the_whole() -> None:
    whole = [_with_ttft("llumnix+", 2.0), _with_ttft("llumnix+", 2.0)]
    without = [_with_ttft("llumnix+", 3.0), _with_ttft("llumnix+", 3.0)]
    other = [_with_ttft("llumnix+", 5.0, workload="S-L")]
    table = paper_tables.parts([("all", whole), ("room off", without), ("all", other)])
    mean, off = _lines(table, trace="M-M", metric="prefill mean, s")
    assert (mean["part"], mean["simulated"], mean["plus_minus"]) == ("all", "2.000", "0")
    assert (off["part"], off["ratio"], off["ratio_low"]) == ("room off", "1.5", "1.5")
    (mean,) = _lines(table, trace="S-L", metric="prefill mean, s")
    assert (mean["simulated"], mean["ratio"]) == ("5.000", "")


def test_policies_that_do_the_same_share_a_line() -> None:
    runs = [_run("llumnix-base"), _run("llumnix"), _with_ttft("llumnix+", 0.5)]
    table = paper_tables.policies([runs])
    assert [line[0] for line in table.lines] == ["`llumnix-base`, `llumnix`", "`llumnix+`"]


def test_the_command_reads_files_and_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def given(name: str, runs: Sequence[Any]) -> str:
        (tmp_path / name).write_text(json.dumps(runs), "utf-8")
        return f"{name} part={tmp_path / name}"

    files = [given("first", [_run("llumnix+")]), given("second", [_run("llumnix+")])]
    monkeypatch.setattr(sys, "argv", ["paper_tables", "parts", *files])
    assert paper_tables.main() == 0
    lines = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert list(dict.fromkeys(line["part"] for line in lines)) == ["first part", "second part"]


def test_without_arguments_all_tables_are_written_of_the_runs_that_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, runs = paper_tables.plan()["parts"]
    monkeypatch.setattr(paper_tables, "plan", lambda: {"parts": (kind, runs)})
    monkeypatch.setattr(paper_tables, "FOLDER", tmp_path / "docs")
    monkeypatch.setattr(paper_tables, "RUNS", tmp_path)
    for name in runs:
        file = f"{re.sub('[ :]+', '-', name)}.json"
        (tmp_path / file).write_text(json.dumps([_run("llumnix+", workload=name.split()[0])]))
    monkeypatch.setattr(sys, "argv", ["paper_tables"])
    assert paper_tables.main() == 0
    lines = list(csv.DictReader((tmp_path / "docs" / "parts.csv").read_text("utf-8").splitlines()))
    assert [f"{line['trace']} {line['part']}" for line in lines[::5]] == list(runs)


COMMITTED = sorted((Path(__file__).parents[3] / "docs" / "paper").glob("*.csv"))


def test_each_committed_table_is_planned() -> None:
    assert {path.stem for path in COMMITTED} == set(paper_tables.plan())


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_committed_tables_have_the_columns_that_are_written(path: Path) -> None:
    header, *lines = csv.reader(path.read_text("utf-8").splitlines())
    kind, _ = paper_tables.plan()[path.stem]
    if kind == "figures":
        assert header == list(paper_tables.COLUMNS)
    assert {len(line) for line in lines} == {len(header)}


def test_commands_of_the_plan_are_commands() -> None:
    """Their options exist: nothing is simulated."""
    for _, runs in paper_tables.plan().values():
        for given in runs.values():
            names = ["simulate", "paper"] if given[0] == "paper" else ["simulate"]
            command: Any = get_command(app)
            for name in names:
                command = command.commands[name]
            options = {name for option in command.params for name in option.opts}
            assert {word for word in given if word.startswith("-")} <= options
