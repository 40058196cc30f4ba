"""What `make bench-cluster` runs next, what it keeps, and how that is compared."""

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from benchmarks.cluster import (
    RUNS,
    ClusterLoad,
    Collected,
    Wanted,
    health_table,
    latency_table,
    ratio_lines,
)
from benchmarks.same_trace import simulated

LOAD = ClusterLoad("M-M", 6.86, 100, 16)


def _run(policy: str, seed: int, live_s: float, simulated_s: float) -> dict[str, Any]:
    return {
        "policy": policy,
        "seed": seed,
        "live": {"ttft_s": {"p99": live_s}},
        "simulated": [
            {"ttft_s": {"p99": p99_s}} for p99_s in (0.5 * simulated_s, 1.5 * simulated_s)
        ],
    }


def test_runs_are_made_in_order_and_once(tmp_path: Path) -> None:
    collected = Collected(LOAD, tmp_path)
    made = []
    while (wanted := collected.missing()) is not None:
        collected.write(wanted, {})
        made.append(wanted)
    assert tuple(made) == RUNS


def test_a_repeated_run_replaces_the_earlier_one(tmp_path: Path) -> None:
    collected = Collected(LOAD, tmp_path)
    for num_moves in (1, 2):
        collected.write(Wanted("llumnix", 1), {"num_moves": num_moves})
    assert [run["num_moves"] for run in collected.runs()] == [2]


def test_runs_of_other_loads_are_not_mixed(tmp_path: Path) -> None:
    Collected(LOAD, tmp_path).write(Wanted("llumnix", 1), {})
    assert not Collected(ClusterLoad("M-M", 7.0, 100, 16), tmp_path).runs()


def test_runs_are_listed_by_policy_and_seed(tmp_path: Path) -> None:
    collected = Collected(LOAD, tmp_path)
    for wanted in (Wanted("llumnix", 2), Wanted("llumnix", 1), Wanted("infaas++", 2)):
        collected.write(wanted, {})
    listed = [(run["policy"], run["seed"]) for run in collected.runs()]
    assert listed == [("infaas++", 2), ("llumnix", 1), ("llumnix", 2)]


def test_policies_are_compared_over_the_seeds_that_both_have() -> None:
    runs = [
        _run("infaas++", 1, 60.0, 50.0),
        _run("infaas++", 2, 20.0, 30.0),
        _run("llumnix", 1, 20.0, 20.0),
        _run("llumnix", 2, 20.0, 20.0),
        _run("vllm-dp", 1, 120.0, 100.0),
        _run("vllm-dp", 3, 999.0, 999.0),
    ]
    assert ratio_lines(runs) == [
        "P99 TTFT of llumnix over that of infaas++: 0.50 live, 0.50 simulated (seeds 1, 2)",
        "P99 TTFT of vllm-dp over that of infaas++: 2.00 live, 2.00 simulated (seeds 1)",
    ]


@pytest.mark.parametrize("policy", sorted({wanted.policy for wanted in RUNS}))
def test_every_policy_has_settings_that_it_knows(policy: str) -> None:
    assert LOAD.policy(policy).name == policy


def _shown(table: Table) -> str:
    console = Console(width=200, record=True, file=StringIO())
    console.print(table)
    return console.export_text()


def test_a_live_run_stands_above_its_simulated_ones() -> None:
    trace = ClusterLoad("M-M", 6.86, 20, 2).trace(1)
    load = ClusterLoad("M-M", 6.86, 20, 2)
    found = simulated(load.setup(load.policy("infaas++")), trace)
    longer = found | {"duration_s": found["duration_s"] + 100}
    run = {"policy": "infaas++", "seed": 1, "live": found, "simulated": [found, longer]}
    lines = [line.split() for line in _shown(latency_table([run], "")).splitlines()]
    live, mean, lowest, highest = lines[3:7]
    assert live[:3] == ["infaas++,", "1", "live"]
    assert mean[0] == "sim", "the mean"
    assert lowest == ["lowest", *live[3:]]
    assert highest[1:-1] == live[3:-1]
    ends_s = [int(line[-1]) for line in (lowest, mean, highest)]
    assert ends_s[2] - ends_s[0] == 100
    assert ends_s[1] - ends_s[0] == 50


@pytest.mark.parametrize(("kept_time", "shown"), [(True, "yes"), (False, "NO")])
def test_a_machine_that_was_too_busy_shows(kept_time: bool, shown: str) -> None:
    live = {
        "speed": 2.0,
        "num_failed": 0,
        "num_wrong_tokens": 0,
        "num_failed_moves": 0,
        "emulation": {"time_ratio": 1.03, "worst_time_ratio": 1.04, "late_steps_ratio": 0.2},
        "kept_time": kept_time,
        "cores": {"engine": 0.5, "frontend": 0.25},
        "other_cores": 1.1,
        "bench": {"send_lag_p99_s": 0.004},
    }
    text = _shown(health_table([{"policy": "llumnix", "seed": 1, "live": live}]))
    assert shown in text.split()
    assert "0.75" in text
