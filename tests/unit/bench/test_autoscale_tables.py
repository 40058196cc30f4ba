"""What `make bench-autoscale` shows: live runs, simulated ones beside them, and what is saved."""

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.autoscale import (
    SCALED,
    Scene,
    Tide,
    draw,
    figures_table,
    health_table,
    saving_lines,
    simulate,
)

TIDE = Tide(600.0, low_rate=0.2, high_rate=2.4, burst_rate=6.0)
SCENE = Scene(TIDE, "M-M", seed=1, least=1, most=4, speed=6.0)


def shown(table: object) -> str:
    console = Console(file=StringIO(), width=250)
    console.print(table)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def live(run: str, cost: float, p99_s: float, **more: Any) -> dict[str, Any]:
    return {
        "run": run,
        "policy": "llumnix",
        "speed": 6.0,
        "mean_num_instances": cost,
        "numbers": [1, 5, 2],
        "times_s": [0.0, 10.0, 700.0],
        "num_requests": 77,
        "num_failed": 0,
        "num_wrong_tokens": 0,
        "ttft_s": {"mean": 1.0, "p99": p99_s, "max": 2 * p99_s},
        "tpot_s": {"p99": 0.05},
        "num_slow": [0, 1, 0],
        "num_added": 4,
        "num_removed": 3,
        "num_kept": 1,
        "kept_time": True,
        "emulation": {"time_ratio": 1.001, "worst_time_ratio": 1.01, "late_steps_ratio": 0.04},
        "cores": {"all": 1.2, "instances": 0.5, "client": 0.1},
        "client_lag_p99_s": 0.004,
        **more,
    }


@pytest.fixture(scope="module")
def simulated() -> dict[str, list[dict[str, Any]]]:
    runs = ((SCALED, "llumnix"), (SCALED, "infaas++"), ("fixed-4", "llumnix"))
    return {
        f"{run}, {policy}": [simulate(SCENE, run, policy, number) for number in range(2)]
        for run, policy in runs
    }


def test_the_same_runs_in_virtual_time(simulated: dict[str, list[dict[str, Any]]]) -> None:
    scaled, fixed = simulated["autoscale, llumnix"][0], simulated["fixed-4, llumnix"][0]
    assert fixed["mean_num_instances"] == 4
    assert 1 < scaled["mean_num_instances"] < 4
    assert scaled["most"] <= 4
    assert scaled["num_added"] >= 1
    assert scaled["num_requests"] == fixed["num_requests"] == len(SCENE.trace.requests)
    assert scaled["num_failed"] == 0


def test_each_live_run_stands_above_its_simulated_ones(
    simulated: dict[str, list[dict[str, Any]]],
) -> None:
    runs = [live(SCALED, 2.0, 3.0), live("fixed-3", 3.0, 4.0)]
    rows = [line.split() for line in shown(figures_table(runs, simulated)).splitlines()]
    kinds = [next((w for w in row if w in ("live", "simulated")), "") for row in rows if row]
    assert [kind for kind in kinds if kind] == ["live", "simulated", "live", *["simulated"] * 2]
    assert any(row[:2] == ["fixed-3,", "llumnix"] for row in rows), "one of --run is shown too"


def test_what_is_saved_beside_each_fixed_cluster(
    simulated: dict[str, list[dict[str, Any]]],
) -> None:
    lines = saving_lines([live(SCALED, 2.0, 3.0), live("fixed-4", 4.0, 6.0)], simulated)
    first = "live: autoscale, llumnix beside fixed-4, llumnix: cost -50%, P99 TTFT 0.50 of it"
    assert lines[0] == first
    pairs = [line.split(": ")[1] for line in lines if line.startswith("simulated")]
    assert sorted(pairs) == [
        "autoscale, infaas++ beside fixed-4, llumnix",
        "autoscale, llumnix beside autoscale, infaas++",
        "autoscale, llumnix beside fixed-4, llumnix",
    ]


def test_a_run_that_did_not_keep_its_time_shows() -> None:
    assert "NO" in shown(health_table([live("fixed-4", 4.0, 6.0, kept_time=False)]))
    assert "NO" not in shown(health_table([live("fixed-4", 4.0, 6.0)]))
    unknown = live("fixed-4", 4.0, 6.0, kept_time=None, emulation=None)
    assert "yes" not in shown(health_table([unknown]))


def test_the_picture_ends_with_the_load(tmp_path: Path) -> None:
    path = draw(tmp_path / "instances.svg", [live(SCALED, 2.0, 3.0)], TIDE)
    assert "<svg" in path.read_text()
