"""`llumctl simulate` from its flags to its exit code, its figures and its files."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from llumctl.app import run
from tests.unit.sim.runs import SMALL

pytestmark = pytest.mark.long

Captured = pytest.CaptureFixture[str]
LATENCIES = ("ttft_s", "tpot_s", "e2e_latency_s", "longest_pause_s")


@pytest.fixture
def profile(tmp_path: Path) -> str:
    file = tmp_path / "small.toml"
    values = {key: value for key, value in asdict(SMALL).items() if key != "name"}
    lines = (f"{key} = {json.dumps(value)}\n" for key, value in values.items())
    file.write_text("".join(lines))
    return str(file)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    file = tmp_path / "trace.jsonl"
    rows = [
        {"arrival_s": n / 4, "num_prompt_tokens": 40 + n % 50, "num_output_tokens": 20}
        for n in range(120)
    ]
    lines = [{"llumctl_recording": 1}, *rows]
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return file


def arguments(profile: str, *more: str) -> list[str]:
    """Few short requests on two small instances, simulated in this process."""
    load = ["-w", "40,20", "--rate", "4", "--requests", "60", "-n", "2", "--profile", profile]
    return ["simulate", *load, "--jobs", "1", *more]


def from_trace(profile: str, trace: Path, *more: str) -> list[str]:
    return ["simulate", "--from", str(trace), "--profile", profile, "--jobs", "1", *more]


def runs(captured: Captured, *more: str) -> Any:
    assert run([*more, "-o", "json"]) == 0
    return json.loads(captured.readouterr().out)


# -- figures --------------------------------------------------------------------------------


def test_json_is_a_list_of_runs_in_the_order_of_the_options(capsys: Captured, profile: str) -> None:
    options = arguments(profile, "--rate", "6", "--seeds", "2", "-p", "llumnix", "-p", "infaas++")
    found = runs(capsys, *options)
    assert [(each["rate"], each["policy"], each["seed"]) for each in found] == [
        (rate, policy, seed)
        for rate in (4.0, 6.0)
        for policy in ("llumnix", "infaas++")
        for seed in (1, 2)
    ]
    for each in found:
        assert (each["workload"], each["num_requests"], each["num_counted"]) == ("40,20", 60, 60)
        assert (each["num_instances"], each["mode"], each["num_failed"]) == (2, "chunked", 0)
        assert set(each) >= {"preemption_loss_s", "num_evictions", "num_moves", "steady"}
        for name in LATENCIES:
            assert set(each[name]) == {"mean", "p50", "p99", "max"}
            assert 0 < each[name]["p50"] <= each[name]["p99"] <= each[name]["max"]


def test_what_tokens_cost(capsys: Captured, profile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = arguments(profile, "-p", "llumnix", "--seeds", "1")
    (free,) = runs(capsys, *options)
    assert free["cost_per_million_tokens"] is None
    monkeypatch.setenv("LLUMCTL_CONSOLE_INSTANCE_COST_PER_HOUR", "3")
    (paid,) = runs(capsys, *options)
    per_hour = paid["tokens_per_instance_hour"]
    assert per_hour == pytest.approx(paid["tokens_per_s"] * 3600 / 2)
    assert paid["cost_per_million_tokens"] == pytest.approx(3e6 / per_hour)
    assert run([*options, "--target-ttft-p99", "60"]) == 0
    assert "COST/M" in capsys.readouterr().out
    assert run(options) == 0
    rows = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    assert ["cost", "of"] in rows
    assert "tokens/instance-hour" in [row[0] for row in rows if row]


def test_a_table_has_the_policies_side_by_side_and_bars_and_rows_of_ranks(
    capsys: Captured, profile: str
) -> None:
    assert run(arguments(profile, "--plot", "-", "--high-fraction", "0.3")) == 0
    title, table, ratios, bars, *_ = capsys.readouterr().out.rstrip().split("\n\n")
    assert title.startswith("40,20 at 4 requests/s  2 x small  chunked  60 requests")
    assert "mean of 3 seeds" in title
    header, *rows = [line.split() for line in table.splitlines()]
    assert header == ["llumnix+", "infaas++"]
    names = [" ".join(row[:2]) for row in rows]
    assert {"ttft_s p99", "longest_pause_s max", "rank 0", "rank 1"} <= set(names)
    assert [row[0] for row in rows][-1] == "steady"
    assert ratios.startswith("infaas++ over llumnix+: ttft_s p99 ")
    name, *lines = bars.splitlines()
    assert name == "ttft_s p99"
    assert [line.split()[0] for line in lines] == ["llumnix+", "infaas++"]
    assert "█" in lines[0]


def test_each_option_reaches_the_runs(capsys: Captured, profile: str) -> None:
    """Settings reach the policies that have them."""
    level, guard = "priority.high.target_load_tokens", "migration.guard"
    options = ["-p", "O1", "-p", "infaas++", "-p", "llumnix", "--seeds", "1"]
    options += ["--set", f"{guard}=off", "--set", f"{level}=300", "--high-fraction", "0.3"]
    options += ["--warm-up", "0.5", "--mode", "prefill-first"]
    found = runs(capsys, *arguments(profile, *options))
    assert [list(each["settings"]) for each in found] == [[], [guard], [guard, level]]
    assert {(each["num_counted"], each["mode"]) for each in found} == {(30, "prefill-first")}
    for each in found:
        assert set(each["by_rank"]) == {"0", "1"}
        assert sum(rank["num_counted"] for rank in each["by_rank"].values()) == 30
    killed = ["-p", "llumnix", "--faults", "5:kill:i-0", "--seeds", "1"]
    (each,) = runs(capsys, *arguments(profile, *killed))
    assert each["num_failed"] > 0
    fault = {"time_s": 5.0, "kind": "kill", "instance_id": "i-0", "factor": 1.0}
    assert each["faults"] == [fault]


def test_a_bar_on_a_terminal_and_none_in_a_pipe(
    capsys: Captured, profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(arguments(profile, "--seeds", "1", "-o", "json")) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("llumctl.output.is_terminal", lambda stream: stream is sys.stderr)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes it for a terminal too
    assert run(arguments(profile, "--seeds", "1", "-o", "json")) == 0
    captured = capsys.readouterr()
    assert "2/2 runs" in captured.err
    assert len(json.loads(captured.out)) == 2


# -- trace files and the smallest cluster -----------------------------------------------------


def test_seeds_that_draw_nothing_are_told(capsys: Captured, profile: str, trace: Path) -> None:
    """Beside a workload that they draw, which has its runs, and not where nobody asked for them."""
    options = from_trace(profile, trace, "-n", "2", "-p", "llumnix")
    assert run([*options, "--seeds", "3"]) == 0
    assert "trace.jsonl is simulated once, not with 3 seeds" in capsys.readouterr().err
    assert [each["rate"] for each in runs(capsys, *options)] == [pytest.approx(4.0)]
    drawn = runs(capsys, *options, "--cv", "2", "--seeds", "3")
    assert [each["seed"] for each in drawn] == [1, 2, 3]
    beside = arguments(profile, "-w", str(trace), "-p", "llumnix", "--seeds", "3", "-o", "json")
    assert run(beside) == 0
    captured = capsys.readouterr()
    seeds = [(Path(each["workload"]).name, each["seed"]) for each in json.loads(captured.out)]
    assert seeds == [("40,20", 1), ("40,20", 2), ("40,20", 3), ("trace.jsonl", 1)]
    assert run(arguments(profile, "--cv", "0", "-p", "llumnix", "--seeds", "3")) == 0
    assert "40,20 is simulated once" in capsys.readouterr().err


def test_the_smallest_cluster_that_meets_a_target(
    capsys: Captured, profile: str, trace: Path
) -> None:
    options = from_trace(profile, trace, "--instances", "1..4", "-p", "llumnix", "--rate", "25")
    found = runs(capsys, *options)
    p99_s = {each["num_instances"]: each["ttft_s"]["p99"] for each in found}
    assert p99_s[1] > p99_s[2] > p99_s[4]
    assert run([*options, "--target-tpot-p99", "0.001"]) == 1
    assert "4 instances do not meet the targets" in capsys.readouterr().out
    target = ["--target-ttft-p99", str((p99_s[1] + p99_s[2]) / 2)]
    answer = runs(capsys, *options, *target)
    assert answer["answers"][0]["smallest"] == 2
    assert answer["targets"] == {"ttft_p99_s": float(target[1]), "tpot_p99_s": None}
    assert answer["runs"] == found
    assert run([*options, *target]) == 0
    table, told = capsys.readouterr().out.strip().split("\n\n")
    assert [line.split()[-1] for line in table.splitlines()] == ["MEETS", "no", "yes", "yes", "yes"]
    assert told.endswith("under llumnix: 2 instances are enough")


# -- pictures -------------------------------------------------------------------------------


def test_pictures(profile: str, tmp_path: Path) -> None:
    def drawn(name: str, *more: str) -> bytes:
        file = tmp_path / name
        assert run(arguments(profile, "--seeds", "1", *more, "--plot", str(file))) == 0
        return file.read_bytes()

    assert drawn("run.png").startswith(b"\x89PNG")
    one, other = (drawn(name, "--rate", "6") for name in ("one.svg", "two.svg"))
    assert b"<svg" in one
    assert one == other


# -- what cannot be, or should not --------------------------------------------------------------


def test_overload_is_told_and_refused_if_strict(capsys: Captured, profile: str) -> None:
    options = arguments(profile, "--rate", "400", "--requests", "2000", "--seeds", "1")
    assert run([*options, "-p", "llumnix"]) == 0
    captured = capsys.readouterr()
    assert "40,20 at 400 requests/s: 2 instances saturate at about" in captured.err
    assert "40,20 at 4 requests/s" not in captured.err.split("under")[0]
    assert "NO" in captured.out
    assert "under llumnix 1 of 1 run reached no steady state" in captured.err
    assert run([*options, "--strict"]) == 2
    assert "saturate at about" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["knee", "-w", "M-M"], "OPTIONS: must follow llumctl simulate knee"),
        (["-p", "lumnix"], "--policy: unknown policy 'lumnix': did you mean 'llumnix'"),
        (["--profile", "a10"], "--profile: there is no profile 'a10'"),
        (["--set", "migration.max_moves"], "not of the form KEY=VALUE"),
        (["--set", "migration.max_move=1"], "did you mean migration.max_moves?"),
        (["-w", "M_M"], "--workload: there is no workload 'M_M'; did you mean M-M"),
        (["-p", "O1", "-p", "O2", "--faults", "1:kill:i-0"], "neither a prefix cache, nor faults"),
        (["--rate", "0"], "--rate: must be greater than 0"),
        (["--instances", "9..2"], "--instances: '9..2'"),
        (["--instances", "0"], "--instances: '0'"),
        (["--seeds", "0"], "--seeds: must be at least 1"),
        (["--plot", "run.pdf"], "must end in .png or .svg"),
        (["--plot", "nowhere/run.svg"], "there is no folder nowhere"),
        (["--target-ttft-p99", "0"], "--target-ttft-p99: must be greater than 0"),
        (["-w", "2000,20"], "request 0 (at"),
        (["--from", "x.csv"], "--from: not with --workload"),
    ],
)
def test_bad_input(capsys: Captured, profile: str, more: list[str], told: str) -> None:
    options = arguments(profile, *more)
    if more[0] == "--profile":
        options = ["simulate", "-w", "40,20", "--rate", "4", *more]
    assert run(options) == 2
    captured = capsys.readouterr()
    assert told in captured.err
    assert captured.out == ""


# -- the knee -------------------------------------------------------------------------------


def test_the_knee_of_a_workload(capsys: Captured, profile: str) -> None:
    """Of few requests it is above saturation, as they are over before they wait for so long."""
    options = ["simulate", "knee", "-w", "40,20", "-n", "2", "--profile", profile, "--jobs", "1"]
    options += ["--seeds", "1"]
    found = runs(capsys, *options, "--requests", "1500", "--target-ttft-p99", "2")
    assert 0.6 * found["saturation_rate"] < found["rate"] < 1.2 * found["saturation_rate"]
    around = [point["rate"] for point in found["points"]]
    assert min(around) < found["rate"] < max(around)
    assert run([*options, "--requests", "300", "--target-ttft-p99", "4"]) == 0
    captured = capsys.readouterr()
    assert "warning: the knee is above saturation by the estimate" in captured.err
    assert " requests/s" in captured.out
    assert "STEADY" in captured.out
