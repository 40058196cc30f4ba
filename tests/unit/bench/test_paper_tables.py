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


def test_a_point_without_a_ratio_is_left_out_of_the_geometric_mean() -> None:
    unknown = {"llumnix": {"simulated": None, "paper": None}}
    points = [_point(name, "ttft_s p99") for name in ("M-M", "L-L")]
    points.append(_point("S-S", "ttft_s p99", ratios=unknown))
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


def test_committed_tables_are_the_planned_ones_with_the_columns_that_are_written() -> None:
    committed = sorted((Path(__file__).parents[3] / "docs" / "paper").glob("*.csv"))
    assert {path.stem for path in committed} == set(paper_tables.plan())
    for path in committed:
        header, *lines = csv.reader(path.read_text("utf-8").splitlines())
        if paper_tables.plan()[path.stem][0] == "figures":
            assert header == list(paper_tables.COLUMNS)
        assert {len(line) for line in lines} == {len(header)}, path.name


@pytest.mark.long
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
