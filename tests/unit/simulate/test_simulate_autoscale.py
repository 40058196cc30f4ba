"""`llumctl simulate --autoscale`: what it shows, and what it refuses; and faults as
people write them."""

import json
from pathlib import Path
from typing import Any

import pytest

from controller.api.errors import UsageError
from controller.sim.setup import Fault
from llumctl.app import run
from llumctl.lab.simulation_plan import parse_faults

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
    at_first = ["-p", "llumnix", "--autoscale", "1..6", "-n", "5"]
    assert as_json(capsys, "simulate", *BURSTS, *at_first)[0]["num_instances"] == 5
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


# Faults as people write them, and what is told of wrong ones


def test_a_list_or_a_file_with_comments(tmp_path: Path) -> None:
    found = (Fault(60.0, "drain", "i-3"), Fault(61.5, "slow-links", "i-1", 8.0))
    assert parse_faults("60:drain:i-3, 61.5:slow-links:i-1:8", 4) == found
    file = tmp_path / "faults"
    file.write_text("# one of four\n\n60:drain:i-3  # for good\n61.5:slow-links:i-1:8\n")
    assert parse_faults(str(file), 4) == found
    assert parse_faults("1:kill:i-99", None) == (Fault(1.0, "kill", "i-99"),)
    for text, told in (
        (b"1:kill:i-0\n\n2:drain:i-9\n", f"{file}:3: '2:drain:i-9'"),
        (b"# nothing yet\n", "holds no fault"),
        (b"\xff\xfe", "not UTF-8"),
    ):
        file.write_bytes(text)
        with pytest.raises(UsageError, match=told):
            parse_faults(str(file), 4)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("60:kill:i-3,70:kil:i-1", "number 2: '70:kil:i-1': .*did you mean kill"),
        ("60:kill", "SECONDS:KIND:INSTANCE"),
        ("inf:kill:i-0", "'inf' is not a time"),
        ("1:kill:i-4", "the instances are i-0 to i-3"),
        ("1:kill:i-0:2", "kill takes no factor"),
        ("1:slow-steps:i-0", "takes a factor"),
        ("1:slow-steps:i-0:0", "not a positive factor"),
        ("nowhere", "cannot read nowhere: No such file"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(text: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        parse_faults(text, 4)
