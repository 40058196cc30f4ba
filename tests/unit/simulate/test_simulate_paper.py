"""`llumctl simulate paper`: the paper's points, the experiments, the ratios, the command."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controller.sim.run import Run
from llumctl.app import run
from llumctl.lab import paper
from llumctl.lab.option_values import FigureName
from llumctl.lab.paper import (
    GENERATED,
    REAL,
    Case,
    Cell,
    Experiment,
    GeometricMean,
    Place,
    Row,
    compared,
    costs,
    crossing,
    figure,
    geometric_means,
    matched,
    matched_bursts,
    middle,
    points,
    settings,
)

Captured = pytest.CaptureFixture[str]
FIGURE11 = ["simulate", "paper", "figure11"]
TINY = ["--requests", "40", "-n", "2", "--seeds", "2", "--jobs", "1"]


# -- the paper's numbers ----------------------------------------------------------------------


def test_figure_11_has_seven_panels_of_each_trace() -> None:
    found = points(FigureName.FIGURE11)
    metrics = {place.metric for place in found}
    assert len(metrics) == 7
    for workload in (*GENERATED, *REAL):
        xs = {place.x for place in found if place.workload == workload}
        policies = {"infaas++", "llumnix"} | ({"round-robin"} if workload in REAL else set())
        assert len(xs) == 5
        expected = {
            Place(workload, x, None, policy, metric)
            for x in xs
            for policy in policies
            for metric in metrics
        }
        assert {place for place in found if place.workload == workload} == expected


def test_figure_13_has_both_ranks_at_each_cv() -> None:
    found = points(FigureName.FIGURE13)
    metrics = {place.metric for place in found}
    assert len(metrics) == 6
    assert set(found) == {
        Place("S-S", cv, rank, policy, metric)
        for cv in (2.0, 4.0, 6.0, 8.0)
        for rank in (0, 1)
        for policy in ("llumnix-base", "llumnix")
        for metric in metrics
    }


def test_figure_14_has_each_rate_and_each_cv() -> None:
    found = points(FigureName.FIGURE14)
    metrics = {place.metric for place in found}
    assert len(metrics) == 7
    places = [("poisson", 2.0 + n / 5) for n in range(6)] + [("gamma", n + 2.0) for n in range(5)]
    assert set(found) == {
        Place(arrivals, round(x, 1), None, policy, metric)
        for arrivals, x in places
        for policy in ("infaas++", "llumnix")
        for metric in metrics
    }


def test_figure_14s_points_have_the_savings_that_the_paper_names() -> None:
    found = points(FigureName.FIGURE14)

    def most(arrivals: str) -> float:
        return max(
            value / found[replace(place, policy="llumnix")]
            for place, value in found.items()
            if (place.workload, place.policy) == (arrivals, "infaas++")
            and place.metric == "mean_num_instances"
        )

    assert round(100 * (most("poisson") - 1)) == 16
    assert round(100 * (most("gamma") - 1)) == 18


def test_figure_15_goes_from_cheap_and_slow_to_dear_and_fast() -> None:
    found = points(FigureName.FIGURE15)
    for policy in ("infaas++", "llumnix"):
        for metric in ("mean_num_instances", "ttft_s p99"):
            values = [
                found[Place("gamma", t, None, policy, metric)]
                for t in (5.0, 25.0, 45.0, 65.0, 85.0)
            ]
            assert values == sorted(values, reverse=metric == "ttft_s p99")


def test_no_point_is_without_a_positive_value() -> None:
    for name in FigureName:
        assert points(name)
        assert all(math.isfinite(value) and value > 0 for value in points(name).values())


@pytest.mark.parametrize(("traces", "gain"), [("generated", 3.0), ("real", 2.8)])
def test_the_papers_points_have_the_gains_that_it_names(traces: str, gain: float) -> None:
    found = [
        mean
        for mean in of_the_paper(figure(FigureName.FIGURE11))
        if (mean.traces, mean.metric) == (traces, "ttft_s p99")
    ]
    assert [round(mean.simulated.mean, 1) for mean in found] == [gain]


def of_the_paper(experiment: Experiment) -> list[GeometricMean]:
    """As if the simulator had found what the paper shows."""
    shown = points(FigureName.FIGURE11)
    alike = [
        Row(
            row.case,
            row.rank,
            row.metric,
            row.baseline,
            {name: Cell([cell.paper or 0.0], cell.paper) for name, cell in row.cells.items()},
        )
        for row in compared(experiment, experiment.cases, [], shown)
    ]
    return geometric_means(experiment, alike)


# -- experiments ------------------------------------------------------------------------------


def test_the_middle_of_five_loads_is_the_third() -> None:
    rates = {case.workload: case.rate for case in middle(figure(FigureName.FIGURE11))}
    assert rates == {
        **{"sharegpt": 7.5, "burstgpt": 8.0, "S-S": 34.0, "M-M": 7.6},
        **{"L-L": 2.8, "S-L": 4.2, "L-S": 14.0},
    }


def test_figure_13_comes_in_bursts_with_a_tenth_of_high_priority() -> None:
    cases = figure(FigureName.FIGURE13).cases
    assert [(case.cv, case.rate, case.high_fraction) for case in cases] == [
        (cv, 26.0, 0.1) for cv in (2.0, 4.0, 6.0, 8.0)
    ]


def test_figure_14_scales_as_the_authors_do() -> None:
    cases = figure(FigureName.FIGURE14).cases
    assert [(case.workload, case.rate, case.cv) for case in cases] == [
        *(("poisson", rate, None) for rate in (2.0, 2.2, 2.4, 2.6, 2.8, 3.0)),
        *(("gamma", 2.0, cv) for cv in (2.0, 3.0, 4.0, 5.0, 6.0)),
    ]
    assert {case.requests for case in cases} == {"L-L"}
    for run_ in runs_of(FigureName.FIGURE14):
        config = run_.setup.policy.autoscale
        assert config is not None
        assert run_.setup.num_instances == 8
        assert (config.up_below_steps, config.down_above_steps) == (160.0, 960.0)
        assert (config.min_instances, config.max_instances, config.max_added) == (1, 16, 16)
        assert (config.check_interval_s, config.first_check_after_s) == (10.0, 100.0)
        assert (config.up_persistence_s, config.down_persistence_s) == (0.0, 0.0)


def runs_of(name: FigureName) -> list[Run]:
    experiment = figure(name)
    return paper.runs(paper.Asked(name, [1]), experiment, experiment.cases)


def test_figure_15_moves_the_range() -> None:
    cases = figure(FigureName.FIGURE15).cases
    assert {(case.requests, case.rate, case.cv) for case in cases} == {("L-L", 2.0, 2.0)}
    configs = [run_.setup.policy.autoscale for run_ in runs_of(FigureName.FIGURE15)]
    ranges = [(each.up_below_steps, each.down_above_steps) for each in configs if each]
    expected = [(16.0 * t, 16.0 * (t + 50)) for t in (5, 25, 45, 65, 85) for _ in range(2)]
    assert ranges == expected, "of infaas++ and of llumnix"


@pytest.mark.parametrize(
    ("points_of_curve", "expected"),
    [
        ([(10.0, 20.0), (12.0, 5.0), (14.0, 1.0)], 12.0),
        ([(14.0, 1.0), (12.0, 4.0), (10.0, 16.0)], 12.0 - 2 * 0.5 * math.log(5 / 4) / math.log(2)),
        ([(10.0, 4.0), (11.0, 20.0), (12.0, 5.0)], 12.0),  # it must stay below from there on
        ([(10.0, 4.0), (12.0, 3.0)], None),
        ([(10.0, 40.0), (12.0, 30.0)], None),
        ([(10.0, 5.0)], None),
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
    infaas, llumnix = cost.paper["infaas++"], cost.paper["llumnix"]
    assert infaas is not None
    assert llumnix is not None
    assert (round(infaas, 1), round(llumnix, 1)) == (14.2, 11.2)
    assert cost.simulated == {"infaas++": None, "llumnix": None}


def test_matched_loads_are_shares_of_the_knee() -> None:
    experiment = matched({"M-M": 7.0, "L-L": 2.0}, (0.5, 1.0))
    assert [(case.workload, case.rate) for case in experiment.cases] == [
        *(("M-M", 3.5), ("M-M", 7.0)),
        *(("L-L", 1.0), ("L-L", 2.0)),
    ]
    assert experiment.policies("M-M") == ["infaas++", "llumnix", "llumnix+"]


def test_bursts_at_matched_load_keep_the_figure_but_for_the_rate() -> None:
    experiment = matched_bursts(40.0, (0.5, 1.0))
    assert experiment.mode == "chunked"
    assert experiment.policies("S-S") == ["llumnix-base", "llumnix", "llumnix+"]
    assert [(case.x, case.cv, case.rate, case.requests) for case in experiment.cases] == [
        (cv, cv, rate, "S-S") for rate in (20.0, 40.0) for cv in (2.0, 4.0, 6.0, 8.0)
    ]
    assert {case.high_fraction for case in experiment.cases} == {0.1}


def test_thresholds_are_the_authors_and_ours_keeps_its_defaults() -> None:
    assert settings("llumnix", "L-L") == {"migration.guard": "off"}
    assert settings("llumnix", "S-L") == {
        "migration.guard": "off",
        "migration.source_below_steps": "160",
        "migration.destination_above_steps": "160",
    }
    for policy in ("infaas++", "round-robin", "llumnix+"):
        assert settings(policy, "M-M") == {}


# -- ratios -----------------------------------------------------------------------------------


def row(workload: str, above: Sequence[float], below: Sequence[float], paper: float | None) -> Row:
    cells = {
        "infaas++": Cell(above, paper),
        "llumnix": Cell(below, None if paper is None else 1.0),
    }
    return Row(Case(workload, 1.0, 1.0), None, "ttft_s p99", "infaas++", cells)


def experiment() -> Experiment:
    return Experiment("made up", "RATE", "infaas++", ["llumnix"], ["ttft_s p99"], [])


def test_a_ratio_is_that_of_the_means_over_seeds() -> None:
    found = row("M-M", [2.0, 6.0], [1.0, 1.0], 3.0)
    ratio = found.ratio("llumnix")
    assert ratio is not None
    assert ratio.mean == pytest.approx(4.0)
    assert found.paper_ratio("llumnix") == 3.0


def test_nothing_is_a_ratio_over_zero() -> None:
    assert row("M-M", [2.0, 6.0], [0.0, 0.0], None).ratio("llumnix") is None
    assert row("M-M", [], [], None).ratio("llumnix") is None
    assert row("M-M", [2.0], [1.0], None).paper_ratio("llumnix") is None


def test_a_geometric_mean_leaves_out_points_without_a_ratio_in_the_papers_mean_too() -> None:
    found = [
        row("M-M", [8.0], [1.0], 9.0),
        row("L-L", [2.0], [1.0], 4.0),
        row("S-L", [2.0], [0.0], 100.0),
        row("sharegpt", [50.0], [1.0], 50.0),
    ]
    (mean,) = geometric_means(experiment(), found)
    assert (mean.traces, mean.num_points) == ("generated", 2)
    assert mean.simulated.mean == pytest.approx(4.0)
    assert mean.paper == pytest.approx(6.0)


# -- the command ------------------------------------------------------------------------------


def as_json(captured: Captured, *arguments: str) -> Any:
    assert run([*arguments, *TINY, "-o", "json"]) == 0
    return json.loads(captured.readouterr().out)


def test_json_has_each_point_with_the_papers_and_all_runs(capsys: Captured) -> None:
    found = as_json(capsys, *FIGURE11, "--middle", "-w", "sharegpt", "-w", "L-L")
    assert (found["figure"], found["mode"]) == ("figure11", "prefill-first")
    assert {(each["workload"], each["rate"]) for each in found["points"]} == {
        ("sharegpt", 7.5),
        ("L-L", 2.8),
    }
    (point,) = [
        each
        for each in found["points"]
        if (each["workload"], each["metric"]) == ("sharegpt", "ttft_s p99")
    ]
    assert point["policies"]["round-robin"]["paper"] == pytest.approx(79.905)
    ttfts = [each["ttft_s"]["p99"] for each in found["runs"][:2]]
    assert point["policies"]["infaas++"]["simulated"]["mean"] == pytest.approx(sum(ttfts) / 2)
    assert len(found["runs"]) == 2 * (3 + 2)


def test_figure_13_shows_each_rank_beside_the_papers(capsys: Captured) -> None:
    assert run(["simulate", "paper", "figure13", "--middle", *TINY]) == 0
    title, name, table, *means = capsys.readouterr().out.rstrip().split("\n\n")
    assert title.startswith("figure13  2 x a10-llama-7b  prefill-first  40 requests")
    assert (name, means) == ("S-S", [])
    lines = table.splitlines()
    header = "CV llumnix-base paper llumnix paper llumnix-base/llumnix paper"
    assert lines[0].split() == header.split()
    assert sum(line.startswith("high ") for line in lines) == 6
    assert sum(line.startswith("normal ") for line in lines) == 6


def test_figure_12_compares_fragmentation(capsys: Captured) -> None:
    (point,) = as_json(capsys, "simulate", "paper", "figure12")["points"]
    assert (point["workload"], point["rate"], point["metric"]) == ("M-M", 7.5, "fragmentation")
    assert point["policies"]["infaas++"]["paper"] == 0.079


def test_figure_14_has_the_cost_in_instances(capsys: Captured) -> None:
    found = as_json(capsys, "simulate", "paper", "figure14", "--middle", "--mode", "chunked")
    assert {(each["workload"], each["x"]) for each in found["points"]} == {
        ("poisson", 2.4),
        ("gamma", 4.0),
    }
    (point,) = [
        each
        for each in found["points"]
        if (each["workload"], each["metric"]) == ("gamma", "mean_num_instances")
    ]
    policies = point["policies"]
    assert (policies["infaas++"]["paper"], policies["llumnix"]["paper"]) == (12.1, 11.01)
    assert policies["llumnix+"]["paper"] is None
    assert all(1 <= each["simulated"]["mean"] <= 2 for each in policies.values())
    assert {each["num_instances"] for each in found["runs"]} == {1}, "half of the most, at first"
    assert {each["autoscale"]["max_instances"] for each in found["runs"]} == {2}
    assert found["cost"] is None


def test_figure_15_shows_what_a_latency_costs(capsys: Captured) -> None:
    assert run(["simulate", "paper", "figure15", *TINY]) == 0
    title, *parts = capsys.readouterr().out.rstrip().split("\n\n")
    assert title.startswith("figure15  1..2 x a10-llama-7b  prefill-first  40 requests")
    assert parts[-2] == "instances at a prefill P99 of 5 s"
    assert [line.split()[0] for line in parts[-1].splitlines()[1:]] == ["infaas++", "llumnix"]
    thresholds = [line.split()[2] for line in parts[1].splitlines()[1:6]]
    assert thresholds == ["5", "25", "45", "65", "85"]


def test_matched_load_takes_the_knees_that_are_given(capsys: Captured, tmp_path: Path) -> None:
    picture = tmp_path / "matched.svg"
    options = ["--matched", "--load", "0.5", "--load", "1", "-w", "S-S", "--knee", "S-S=4"]
    found = as_json(capsys, *FIGURE11, *options, "--plot", str(picture))
    assert (found["figure"], found["mode"], found["knees"]) == ("matched", "chunked", {"S-S": 4.0})
    assert {each["rate"] for each in found["points"]} == {2.0, 4.0}
    assert {each["policy"] for each in found["runs"]} == {"infaas++", "llumnix", "llumnix+"}
    assert picture.read_text().startswith("<?xml")


def test_matched_bursts_are_shown_by_rank(capsys: Captured) -> None:
    options = ["--matched", "--load", "1", "--knee", "S-S=4"]
    found = as_json(capsys, "simulate", "paper", "figure13", *options)
    assert (found["figure"], found["mode"], found["knees"]) == ("matched", "chunked", {"S-S": 4.0})
    assert {each["rate"] for each in found["points"]} == {4.0}
    assert {each["rank"] for each in found["points"]} == {0, 1}
    assert {each["policy"] for each in found["runs"]} == {"llumnix-base", "llumnix", "llumnix+"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["figure11", "-w", "M-N"], "is not a trace of figure11"),
        (["figure12", "--matched"], "figure11 --matched"),
        (["figure13", "--matched", "--knee", "M-M=7"], "a trace of figure13"),
        (["figure11", "--load", "1"], "only with --matched"),
        (["figure11", "--matched", "--knee", "M-M"], "NAME=RATE"),
        (["figure11", "--matched", "--knee", "Q-Q=3", "-w", "M-M"], "a trace of figure11"),
        (["figure11", "--matched", "--knee", "M-M=-1"], "--knee"),
        (["figure11", "--plot", "-"], "needs a file"),
        (["figure99"], "figure99"),
    ],
)
def test_what_no_figure_has_is_a_usage_error(
    capsys: Captured, options: list[str], says: str
) -> None:
    assert run(["simulate", "paper", *options, *TINY]) == 2
    assert says in capsys.readouterr().err
