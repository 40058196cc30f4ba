"""`llumctl simulate --autoscale`: what it shows, and what it refuses."""

import json
from typing import Any

import pytest

from llumctl.app import run

Captured = pytest.CaptureFixture[str]
BURSTS = ["-w", "L-L", "--requests", "60", "--rate", "1", "--cv", "3", "--seeds", "1", "-j", "1"]
SIMULATE = ["simulate", *BURSTS, "-p", "llumnix", "-p", "infaas++", "--autoscale", "1..6"]
QUICK = [
    *("--set", "autoscale.first_check_after_s=1", "--set", "autoscale.check_interval_s=2"),
    *("--set", "autoscale.down_persistence_s=0", "--set", "autoscale.up_persistence_s=0"),
]


def as_json(capsys: Captured, *arguments: str) -> Any:
    assert run([*arguments, "-o", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_each_run_has_its_cost_and_its_instances_over_time(capsys: Captured) -> None:
    """The saturation rate is that of the most instances."""
    (fixed,) = as_json(capsys, "simulate", *BURSTS, "-p", "llumnix", "-n", "6")
    assert (fixed["autoscale"], fixed["instances_over_time"]) == (None, None)
    assert (fixed["mean_num_instances"], fixed["num_launched"]) == (6.0, 0)
    for each in as_json(capsys, *SIMULATE, *QUICK, "--set", "autoscale.cold_start_s=7"):
        assert each["saturation_rate"] == fixed["saturation_rate"]
        assert each["num_instances"] == 3, "the middle of the range, at first"
        config = each["autoscale"]
        assert (config["min_instances"], config["max_instances"]) == (1, 6)
        assert (config["cold_start_s"], config["check_interval_s"]) == (7.0, 2.0)
        over_time = each["instances_over_time"]
        numbers = [moment["num_instances"] for moment in over_time]
        assert numbers[0] == 3
        assert 1 <= min(numbers) < max(numbers) <= 6
        assert min(numbers) < each["mean_num_instances"] < max(numbers)
        assert each["num_removed"] > 0
        assert over_time[0]["time_s"] < over_time[-1]["time_s"] < each["duration_s"]


def test_the_table_shows_instances_over_time_beside_waiting(capsys: Captured) -> None:
    assert run([*SIMULATE, *QUICK]) == 0
    shown = capsys.readouterr().out
    assert "  1..6 x a10-llama-7b  " in shown.splitlines()[0]
    rows = {line.split("  ")[0]: line.split()[-2:] for line in shown.splitlines()}
    assert {"instances", "launched", "instances over time", "waiting over time"} <= rows.keys()
    assert len(rows["instances over time"][0]) == len(rows["waiting over time"][0]) == 16
    assert rows["instances over time"] != rows["waiting over time"]
    assert run(["simulate", *BURSTS, "-n", "3"]) == 0
    assert "instances over time" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--autoscale", "4..2"], "--autoscale: '4..2' is not a range"),
        (["--autoscale", "0..2"], "is not a range"),
        (["--autoscale", "2..4", "-n", "8"], "--instances: with --autoscale"),
        (["--autoscale", "2..4", "--target-ttft-p99", "2"], "--autoscale: not with targets"),
        (["--autoscale", "2..4", "-p", "O1"], "nor auto-scaling"),
        (["--set", "autoscale.max_added=2"], "no policy here has a setting 'autoscale.max_added'"),
    ],
)
def test_what_is_refused(capsys: Captured, options: list[str], told: str) -> None:
    assert (
        run(["simulate", *BURSTS, *([] if "-p" in options else ["-p", "llumnix"]), *options]) == 2
    )
    assert told in capsys.readouterr().err
