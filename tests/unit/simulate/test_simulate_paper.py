"""`llumctl simulate paper`: the paper's points, the experiments, the ratios, the command."""

import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from llumctl.app import run
from llumctl.lab import paper
from llumctl.lab.option_values import FigureName
from llumctl.lab.paper import (
    Case,
    Cell,
    Experiment,
    Row,
    compared,
    costs,
    crossing,
    figure,
    geometric_means,
    matched,
    matched_bursts,
    points,
    settings,
)

Captured = pytest.CaptureFixture[str]
FIGURE11 = ["simulate", "paper", "figure11"]
TINY = ["--requests", "40", "-n", "2", "--seeds", "2", "--jobs", "1"]


# -- the paper's numbers and experiments ------------------------------------------------------

# How many points a figure has, and a digest of them and of its experiment.
PAPER = {
    FigureName.FIGURE11: (560, "172aa11a3def"),
    FigureName.FIGURE12: (2, "4af680579096"),
    FigureName.FIGURE13: (96, "d04d6b007b02"),
    FigureName.FIGURE14: (154, "d09760b91e63"),
    FigureName.FIGURE15: (20, "1b31a8e54bf1"),
}


@pytest.mark.parametrize("name", FigureName)
def test_points_and_experiments_are_the_papers(name: FigureName) -> None:
    """The points were read off the paper's figures, and the loads are its own. A change of either
    is meant."""
    found = points(name)
    assert all(math.isfinite(value) and value > 0 for value in found.values())
    text = repr((list(found.items()), figure(name)))
    assert (len(found), hashlib.sha256(text.encode()).hexdigest()[:12]) == PAPER[name]


@pytest.mark.parametrize("name", [FigureName.FIGURE14, FigureName.FIGURE15])
def test_instances_are_added_as_the_authors_do(name: FigureName) -> None:
    experiment = figure(name)
    for run_ in paper.runs(paper.Asked(name, [1]), experiment, experiment.cases[:1]):
        config = run_.setup.policy.autoscale
        assert config is not None
        assert run_.setup.num_instances == 8
        blocks = 10 if name is FigureName.FIGURE14 else 5
        steps = config.up_below_steps, config.down_above_steps
        assert steps == (16.0 * blocks, 16.0 * (blocks + 50))
        assert (config.min_instances, config.max_instances, config.max_added) == (1, 16, 16)
        assert (config.up_persistence_s, config.down_persistence_s) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("points_of_curve", "expected"),
    [
        ([(10.0, 20.0), (12.0, 5.0), (14.0, 1.0)], 12.0),
        ([(14.0, 1.0), (12.0, 4.0), (10.0, 16.0)], 12.0 - 2 * 0.5 * math.log(5 / 4) / math.log(2)),
        ([(10.0, 4.0), (11.0, 20.0), (12.0, 5.0)], 12.0),  # it must stay below from there on
        ([(10.0, 4.0), (12.0, 3.0)], None),
        ([(10.0, 40.0), (12.0, 30.0)], None),
        ([], None),
    ],
)
def test_where_a_curve_crosses_5_s(
    points_of_curve: list[tuple[float, float]], expected: float | None
) -> None:
    found = crossing(points_of_curve, 5.0)
    assert found == (None if expected is None else pytest.approx(expected))


def test_by_its_points_the_paper_saves_less_at_5_s_than_its_text_says() -> None:
    """The 36 % of the text is 14.25 / 10.44 instances, at 4.6 s and 11.4 s."""
    experiment = figure(FigureName.FIGURE15)
    cost = costs(compared(experiment, experiment.cases, [], points(FigureName.FIGURE15)))
    found = {name: round(value or 0.0, 1) for name, value in cost.paper.items()}
    assert (found["infaas++"], found["llumnix"]) == (14.2, 11.2)
    assert cost.simulated == {"infaas++": None, "llumnix": None}


def test_matched_loads_are_shares_of_the_knee() -> None:
    experiment = matched({"M-M": 7.0, "L-L": 2.0}, (0.5, 1.0))
    loads = [("M-M", 3.5), ("M-M", 7.0), ("L-L", 1.0), ("L-L", 2.0)]
    assert [(case.workload, case.rate) for case in experiment.cases] == loads
    assert experiment.policies("M-M") == ["infaas++", "llumnix", "llumnix+"]
    bursts = matched_bursts(40.0, (0.5, 1.0))
    assert bursts.policies("S-S") == ["llumnix-base", "llumnix", "llumnix+"]
    assert [(case.x, case.cv, case.rate, case.requests) for case in bursts.cases] == [
        (cv, cv, rate, "S-S") for rate in (20.0, 40.0) for cv in (2.0, 4.0, 6.0, 8.0)
    ]


def test_thresholds_are_the_authors_and_ours_keeps_its_defaults() -> None:
    names = ("migration.source_below_steps", "migration.destination_above_steps")
    assert settings("llumnix", "L-L") == {"migration.guard": "off"}
    assert settings("llumnix", "S-L") == {"migration.guard": "off", **dict.fromkeys(names, "160")}
    for policy in ("infaas++", "round-robin", "llumnix+"):
        assert settings(policy, "M-M") == {}


# -- ratios -----------------------------------------------------------------------------------


def row(workload: str, above: Sequence[float], below: Sequence[float], paper: float | None) -> Row:
    cells = {
        "infaas++": Cell(above, paper),
        "llumnix": Cell(below, None if paper is None else 1.0),
    }
    return Row(Case(workload, 1.0, 1.0), None, "ttft_s p99", "infaas++", cells)


def test_a_geometric_mean_leaves_out_points_without_a_ratio_in_the_papers_mean_too() -> None:
    found = [
        row("M-M", [8.0], [1.0], 9.0),
        row("L-L", [2.0], [1.0], 4.0),
        row("S-L", [2.0], [0.0], 100.0),
        row("sharegpt", [50.0], [1.0], 50.0),
    ]
    made_up = Experiment("made up", "RATE", "infaas++", ["llumnix"], ["ttft_s p99"], [])
    (mean,) = geometric_means(made_up, found)
    assert (mean.traces, mean.num_points) == ("generated", 2)
    assert row("M-M", [], [], None).ratio("llumnix") is None
    assert mean.simulated.mean == pytest.approx(4.0)
    assert mean.paper == pytest.approx(6.0)


# -- the command ------------------------------------------------------------------------------


def as_json(captured: Captured, *arguments: str) -> Any:
    assert run([*arguments, *TINY, "-o", "json"]) == 0
    return json.loads(captured.readouterr().out)


def test_json_has_each_point_with_the_papers_and_all_runs(capsys: Captured) -> None:
    found = as_json(capsys, *FIGURE11, "--middle", "-w", "sharegpt", "-w", "L-L")
    assert (found["figure"], found["mode"]) == ("figure11", "prefill-first")
    by_metric = {(each["workload"], each["rate"], each["metric"]): each for each in found["points"]}
    assert {key[:2] for key in by_metric} == {("sharegpt", 7.5), ("L-L", 2.8)}
    policies = by_metric["sharegpt", 7.5, "ttft_s p99"]["policies"]
    assert policies["round-robin"]["paper"] == pytest.approx(79.905)
    ttfts = [each["ttft_s"]["p99"] for each in found["runs"][:2]]
    assert policies["infaas++"]["simulated"]["mean"] == pytest.approx(sum(ttfts) / 2)
    assert len(found["runs"]) == 2 * (3 + 2)


def test_figure_14_has_the_cost_in_instances(capsys: Captured) -> None:
    found = as_json(capsys, "simulate", "paper", "figure14", "--middle", "--mode", "chunked")
    by_metric = {(each["workload"], each["x"], each["metric"]): each for each in found["points"]}
    policies = by_metric["gamma", 4.0, "mean_num_instances"]["policies"]
    papers = {name: each["paper"] for name, each in policies.items()}
    assert papers == {"infaas++": 12.1, "llumnix": 11.01, "llumnix+": None}
    assert all(1 <= each["simulated"]["mean"] <= 2 for each in policies.values())
    assert {each["num_instances"] for each in found["runs"]} == {1}, "half of the most, at first"


@pytest.mark.long
def test_figure_15_shows_what_a_latency_costs(capsys: Captured) -> None:
    assert run(["simulate", "paper", "figure15", *TINY]) == 0
    title, *parts = capsys.readouterr().out.rstrip().split("\n\n")
    assert title.startswith("figure15  1..2 x a10-llama-7b  prefill-first  40 requests")
    assert parts[-2] == "instances at a prefill P99 of 5 s"
    assert [line.split()[0] for line in parts[-1].splitlines()[1:]] == ["infaas++", "llumnix"]
    thresholds = [line.split()[2] for line in parts[1].splitlines()[1:6]]
    assert thresholds == ["5", "25", "45", "65", "85"]


@pytest.mark.long
@pytest.mark.parametrize("name", ["figure11", "figure13"])
def test_matched_load_takes_the_knees_that_are_given(
    capsys: Captured, tmp_path: Path, name: str
) -> None:
    picture = tmp_path / "matched.svg"
    options = ["--matched", "--load", "0.5", "--load", "1", "--knee", "S-S=4"]
    options += ["-w", "S-S"] if name == "figure11" else []
    found = as_json(capsys, "simulate", "paper", name, *options, "--plot", str(picture))
    assert (found["mode"], found["knees"]) == ("chunked", {"S-S": 4.0})
    assert {each["rate"] for each in found["points"]} == {2.0, 4.0}
    assert {each["rank"] for each in found["points"]} == ({None} if name == "figure11" else {0, 1})
    assert picture.read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["figure11", "-w", "M-N"], "is not a trace of figure11"),
        (["figure12", "--matched"], "figure11 --matched"),
        (["figure11", "--load", "1"], "only with --matched"),
        (["figure11", "--matched", "--knee", "M-M"], "NAME=RATE"),
        (["figure11", "--matched", "--knee", "Q-Q=3", "-w", "M-M"], "a trace of figure11"),
        (["figure11", "--plot", "-"], "needs a file"),
    ],
)
def test_what_no_figure_has_is_a_usage_error(
    capsys: Captured, options: list[str], says: str
) -> None:
    assert run(["simulate", "paper", *options, *TINY]) == 2
    assert says in capsys.readouterr().err
