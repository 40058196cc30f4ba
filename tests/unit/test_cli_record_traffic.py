"""`llumctl record --traffic`: what is in its file, how it ends, and what it refuses."""

import json
import os
import re
import signal
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.api.errors import LlumctlError
from controller.api.wire import ErrorBody
from controller.api.wire.requests import RequestState
from controller.api.wire.stream import RequestTraffic, TrafficBatch
from controller.sim.workload.trace import TraceRequest
from controller.sim.workload.trace_files import read_trace
from llumctl.app import run
from llumctl.commands import record
from llumctl.commands.record import TrafficFile
from tests.unit.cli_process import ended, interrupted, llumctl
from tests.unit.cli_support import remember, stop
from tests.unit.fake_controller import FakeController, until

Captured = pytest.CaptureFixture[str]
STARTED_S = 1000.0
"""What the fake controller says first."""
KNOWN_FIELDS = {
    *("arrival_s", "num_prompt_tokens", "num_output_tokens", "rank", "outcome"),
    *("session", "prefix_hashes"),
}


@pytest.fixture
def controller() -> Iterator[FakeController]:
    with FakeController() as fake:
        remember(fake.url)
        yield fake


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "t.jsonl"


def request(arrival_s: float, num_output_tokens: int = 3, **fields: Any) -> RequestTraffic:
    known: dict[str, Any] = {
        "arrival_time_s": STARTED_S + arrival_s,
        "num_prompt_tokens": 40,
        "num_output_tokens": num_output_tokens,
        "rank": 0,
        "outcome": RequestState.FINISHED,
    }
    return RequestTraffic(**(known | fields))


def batch(*requests: RequestTraffic, **fields: Any) -> TrafficBatch:
    return TrafficBatch(**({"time_s": STARTED_S + 2, "requests": requests} | fields))


def rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


MANY = (
    batch(
        request(1.5, rank=1, session="00ff", prefix_hashes=f"{7:016x}{2**64 - 1:016x}"),
        request(0.5, 0, outcome=RequestState.FAILED),
        num_live=2,
    ),
    batch(
        request(1.75, 2, outcome=RequestState.ABORTED),
        request(-0.001, 0),
        num_lost=3,
        num_live=1,
    ),
)


def test_what_is_recorded_is_what_a_simulation_reads(
    controller: FakeController, file: Path, capsys: Captured
) -> None:
    controller.traffic = [batch(time_s=STARTED_S), *MANY, batch(time_s=STARTED_S + 8)]
    begun_s = time.monotonic()
    assert run(["record", "--traffic", str(file), "--duration", "0.3s"]) == 0
    assert 0.25 < time.monotonic() - begun_s < 10
    header, *requests, end = rows(file)
    assert header == {"llumctl_recording": 1, "prefix_hash_tokens": 16}
    assert all(set(each) <= KNOWN_FIELDS for each in requests)
    assert [each.get("outcome") for each in requests] == [None, "failed", "aborted", None]
    # The failed one had no output: a simulation cannot tell what it would have had.
    trace = read_trace(file)
    assert trace.prefix_hash_tokens == 16
    assert trace.requests == [
        TraceRequest(0.0, 40, 1),
        TraceRequest(1.5, 40, 3, 1, "00ff", (7, 2**64 - 1)),
        TraceRequest(1.75, 40, 2),
    ]
    counts = {"num_requests": 4, "num_lost": 3, "num_live": 0, "num_breaks": 0}
    assert end == {"end_s": end["end_s"], **counts}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        f"recorded 4 requests, 3 lost in {file}\nnext:  llumctl simulate --from {file}\n"
    )


def test_the_key_is_random_and_not_in_the_file(controller: FakeController, file: Path) -> None:
    keys = []
    for name in ("one", "other"):
        controller.traffic = [batch(time_s=STARTED_S), *MANY]
        assert run(["record", "--traffic", str(file.with_name(name)), "--duration", "0.1s"]) == 0
        (asked, body), controller.ordered = controller.ordered[-1], []
        assert (asked, body["prefix_hash_tokens"]) == ("POST /v1/traffic", 16)
        assert re.fullmatch("[0-9a-f]{64}", body["key"])
        assert body["key"] not in file.with_name(name).read_text()
        keys.append(body["key"])
    assert len(set(keys)) == 2


def test_nothing_came(controller: FakeController, file: Path, capsys: Captured) -> None:
    assert run(["record", "--traffic", str(file), "--duration", "0.1s"]) == 0
    assert controller.ordered
    assert capsys.readouterr().err == f"recorded 0 requests in {file}\n"
    assert len(rows(file)) == 2


@pytest.mark.process
def test_it_is_written_as_it_comes_and_ctrl_c_ends_it_well(
    controller: FakeController, file: Path
) -> None:
    with llumctl("record", "--traffic", str(file)) as process:
        until(lambda: file.exists() and len(rows(file)) == 1)
        controller.traffic = list(MANY)
        until(lambda: len(rows(file)) == 5)
        code, err = interrupted(process)
    assert code == 0
    assert "recorded 4 requests, 3 lost" in err
    assert rows(file)[-1]["num_requests"] == 4


@pytest.mark.process
def test_a_killed_recorder_leaves_a_recording(controller: FakeController, file: Path) -> None:
    with llumctl("record", "--traffic", str(file)) as process:
        controller.traffic = list(MANY)
        until(lambda: file.exists() and file.read_text().count("\n") == 5)
        process.send_signal(signal.SIGKILL)
        ended(process)
    assert len(read_trace(file).requests) == 3
    file.write_bytes(file.read_bytes()[:-7])
    assert len(read_trace(file).requests) == 2, "a cut line is not read"


@pytest.mark.process
def test_it_goes_on_after_a_break_with_the_same_key(controller: FakeController, file: Path) -> None:
    with llumctl("record", "--traffic", str(file)) as process:
        controller.traffic = [MANY[0]]
        until(lambda: file.exists() and len(rows(file)) == 3)
        controller.stop()
        controller.traffic = [MANY[1]]
        controller.start()
        until(lambda: len(rows(file)) == 5)
        code, err = interrupted(process)
    assert code == 0
    assert err.count("trying again") == err.count("the controller answers again") == 1
    assert rows(file)[-1]["num_breaks"] == 1
    assert len({body["key"] for _, body in controller.ordered}) == 1
    assert len(controller.ordered) == 2


@pytest.mark.process
def test_it_ends_well_with_its_cluster(controller: FakeController, file: Path) -> None:
    with llumctl("record", "--traffic", str(file)) as process:
        controller.traffic = list(MANY)
        until(lambda: file.exists() and len(rows(file)) == 5)
        stop("ana@head")
        controller.stop()
        code, err = ended(process)
    assert code == 0
    assert re.search(r"^cluster default was stopped at \d\d:\d\d:\d\d by ana@head$", err, re.M)
    assert rows(file)[-1]["num_requests"] == 4


def test_without_a_controller(capsys: Captured, file: Path) -> None:
    assert run(["record", "--traffic", str(file)]) == 3
    assert "cluster default is not running" in capsys.readouterr().err
    assert not file.exists()


def test_a_second_recording_is_refused(
    controller: FakeController, file: Path, capsys: Captured
) -> None:
    file.write_text("mine")
    body = ErrorBody(code="recorded_already", message="being recorded already", hint="look")
    controller.orders["POST /v1/traffic"] = lambda _: (409, body)
    assert run(["record", "--traffic", str(file), "--force"]) == 5
    assert "being recorded already" in capsys.readouterr().err
    assert file.read_text() == "mine", "there is nothing new to put in its place"


def test_only_force_replaces_a_file(
    controller: FakeController, file: Path, capsys: Captured
) -> None:
    file.write_text("mine")
    file.chmod(0o644)
    assert run(["record", "--traffic", str(file), "--duration", "0.1s"]) == 5
    assert capsys.readouterr().err.endswith(f"try:   llumctl record {file} --traffic --force\n")
    assert file.read_text() == "mine"
    assert controller.ordered == []
    assert run(["record", "--traffic", str(file), "--duration", "0.1s", "--force"]) == 0
    assert len(rows(file)) == 2
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("kind", ["folder", "pipe", "link"])
def test_force_replaces_nothing_but_files(
    controller: FakeController, file: Path, kind: str, capsys: Captured
) -> None:
    other = file.with_name("other")
    other.write_text("mine")
    makers = {"folder": file.mkdir, "pipe": lambda: os.mkfifo(file), "link": lambda: None}
    makers[kind]()
    if kind == "link":
        file.symlink_to(other)
    assert run(["record", "--traffic", str(file), "--duration", "0.1s", "--force"]) == 5
    assert "not a regular file, so it is not replaced" in capsys.readouterr().err
    assert other.read_text() == "mine"
    assert controller.ordered == []


@pytest.mark.usefixtures("controller")
def test_a_file_that_cannot_be_made(capsys: Captured) -> None:
    assert run(["record", "--traffic", "/dev/full/x", "--duration", "1s"]) == 1
    assert "cannot write the recording" in capsys.readouterr().err


def test_a_full_disk_leaves_whole_lines(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = TrafficFile(file, 16, STARTED_S, force=False)
    recording.add(MANY[0])
    whole, write = file.read_bytes(), os.write

    def full(descriptor: int, content: memoryview) -> int:
        if file.stat().st_size > len(whole):
            raise OSError(28, "No space left on device")
        return write(descriptor, content[:20])

    monkeypatch.setattr(record.os, "write", full)
    with pytest.raises(LlumctlError, match="No space left"):
        recording.add(MANY[1])
    assert file.read_bytes() == whole


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["x", "--duration", "soon"],
        ["x", "--duration", "0"],
        ["x", "y"],
        ["x", "--text"],
        ["x", "--refresh", "2"],
    ],
)
def test_usage_errors(arguments: list[str], capsys: Captured) -> None:
    assert run(["record", "--traffic", *arguments]) == 2
    assert capsys.readouterr().err.startswith("error: ")
