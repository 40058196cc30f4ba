"""`llumctl bench` from its flags to its exit code, its figures and its files."""

import asyncio
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from controller.api.state import run_state
from controller.api.wire.status import LevelStatus
from llumctl.app import run
from tests.unit.bench.bench_server import MODEL, Behaviour, FakeServer
from tests.unit.cli_support import cluster, remember
from tests.unit.fake_controller import FakeController
from tools.synthetic_cluster import instance

Captured = pytest.CaptureFixture[str]
PNG = b"\x89PNG\r\n\x1a\n"


def small(url: str, *more: str) -> list[str]:
    return ["bench", "--url", url, "--rate", "200", "--requests", "20", "--lengths", "6,9", *more]


def test_table(capsys: Captured) -> None:
    with FakeServer().in_thread() as server:
        assert run(small(server.url, "--verify", "tokens", "--priority", "high=0.5")) == 0
    summary, table, _ = capsys.readouterr().out.split("\n\n")
    assert "requests 20 right of 20 sent  0 failed" in summary
    assert "0 lost  0 doubled  0 wrong (by tokens)" in summary
    _, *rows = [line.split() for line in table.splitlines()]
    counts = {(row[0], row[1]): int(row[2]) for row in rows}
    assert (counts["ttft_s", "all"], counts["itl_s", "all"]) == (20, 160)
    assert counts["ttft_s", "high"] + counts["ttft_s", "normal"] == 20


@pytest.mark.long
def test_json_records_and_plot(capsys: Captured, tmp_path: Path) -> None:
    report_file, records_file, plot = (tmp_path / name for name in ("r.json", "r.jsonl", "r.png"))
    options = ["--json", str(report_file), "--records", str(records_file), "--plot", str(plot)]
    behave = lambda num: Behaviour(status=503 if num == 3 else 200)  # noqa: E731
    with FakeServer(behave=behave).in_thread() as server:
        assert run(small(server.url, *options, "-o", "json", "--seed", "4")) == 1
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert json.loads(report_file.read_text()) == report
    assert report["schema_version"] == 1
    parameters = {"seed": 4, "lengths": "6,9", "verify": "counts"}
    assert parameters.items() <= report["parameters"].items()
    assert (report["num_sent"], report["num_right"], report["num_failed"]) == (20, 19, 1)
    assert report["failures"] == {"http-503": 1}
    assert report["latencies"]["all"]["ttft_s"]["count"] == 19
    assert "http-503" in captured.err
    records = [json.loads(line) for line in records_file.read_text().splitlines()]
    assert [record["index"] for record in records] == list(range(20))
    assert [record["outcome"] for record in records].count("http-503") == 1
    right = next(record for record in records if record["outcome"] == "right")
    assert 0 < right["ttft_s"] <= right["e2e_latency_s"]
    assert plot.read_bytes().startswith(PNG)


def test_a_cluster(capsys: Captured) -> None:
    """Emulated engines: every token is verified; levels are the cluster's."""
    levels = (LevelStatus(name="vip", rank=5), LevelStatus(name="plain", rank=0))
    status = cluster(instance(num_evictions=4), instance("i-1", num_evictions=1)).model_copy(
        update={"engine": "emulated", "levels": levels}
    )
    with FakeServer().in_thread() as server, FakeController(status=status) as fake:
        state = remember(fake.url)
        run_state.save(dataclasses.replace(state, endpoint_url=server.url))
        options = ["--rate", "200", "--requests", "10", "--lengths", "6,9", "-o", "json"]
        assert run(["bench", *options, "--priority", "vip=1"]) == 0
        assert {body["priority"] for body in server.bodies} == {-5}
        assert run(["bench", *options, "--priority", "vpi=1"]) == 2
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert report["parameters"]["verify"] == "tokens"
    assert {"engine": "emulated", "num_instances": 2}.items() <= report["target"].items()
    assert report["num_evictions"] == 0
    assert captured.err.endswith("try:   llumctl bench --priority vip=0.1\n")


def test_an_endpoint_with_a_key(capsys: Captured, tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.write_text("\nsesame normal,high\nother\n")
    key_file.chmod(0o600)
    with FakeServer(api_key="sesame").in_thread() as server:
        assert run(small(server.url)) == 5
        assert run(small(server.url, "--api-key-file", str(key_file))) == 0
    assert "try:   llumctl bench --api-key-file FILE\n" in capsys.readouterr().err


def test_a_key_file_that_is_not_used(capsys: Captured, tmp_path: Path) -> None:
    """Nobody is asked before."""
    for content, mode, why in (
        (b"sesame\n", 0o640, "is open to other users (mode 0640)"),
        (b"sesame\n", 0o604, "is open to other users (mode 0604)"),
        (b" \n", 0o600, "is empty"),
        (b"\xff", 0o600, "not"),
        (b"a\x07b\n", 0o600, "holds no key"),
    ):
        key_file = tmp_path / "key"
        key_file.write_bytes(content)
        key_file.chmod(mode)
        assert run(["bench", "--url", "http://127.0.0.1:1", "--api-key-file", str(key_file)]) == 2
        err = capsys.readouterr().err
        assert err.startswith("error: --api-key-file: ")
        assert why in err
        assert "sesame" not in err


@pytest.mark.process
def test_interruption_reports_what_there_is(tmp_path: Path) -> None:
    never = asyncio.Event()
    behave = lambda num: Behaviour(wait_before_first=never if num else None)  # noqa: E731
    with FakeServer(behave=behave).in_thread() as server:
        process = subprocess.Popen(
            [sys.executable, "-m", "llumctl", *small(server.url), "--requests", "5000"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "XDG_STATE_HOME": str(tmp_path)},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        give_up_s = time.monotonic() + 60
        while len(server.bodies) < 3 and time.monotonic() < give_up_s:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "right of" in out
    assert "0 failed" in out
    assert "cut off" in out


def test_bad_input(capsys: Captured) -> None:
    for options, why in (
        (["--duration", "0"], "--duration: must be greater than 0, not 0"),
        (["--warmup", "-1"], "--warmup: must be at least 0, not -1"),
        (["--requests", "0"], "--requests: must be at least 1, not 0"),
        (["--trace", "/nonexistent.csv"], "--trace: cannot read /nonexistent.csv: No such file"),
        (["--trace", "x.csv", "--rate", "3"], "--rate: not with --trace"),
        (["--scale-rate", "2"], "--scale-rate: there is no trace"),
        (["--trace", "x.csv", "--scale-rate", "0"], "--scale-rate: must be greater than 0"),
        (["--json", "/nonexistent/x"], "--json: there is no folder /nonexistent"),
        (["--url", "127.0.0.1:8000"], "--url: '127.0.0.1:8000' is not of the form"),
        (["--url", "http://h", "--cluster", "c"], "--url: a cluster has an endpoint of its own"),
    ):
        assert run(["bench", *options]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("error: ")
        assert why in captured.err
        assert "\ntry:   " in captured.err


def test_nobody_to_send_to(capsys: Captured) -> None:
    assert run(["bench"]) == 3
    assert run(["bench", "--url", "http://127.0.0.1:1"]) == 3
    assert "cannot be reached" in capsys.readouterr().err
    with FakeServer().in_thread() as server:
        assert run(small(server.url, "--model", "other")) == 2
    assert f"it serves {MODEL}" in capsys.readouterr().err
