"""`llumctl record`, with and without `--traffic`: what is in its file, how it ends, what it
refuses."""

import json
import os
import re
import signal
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.api.errors import LlumctlError
from controller.api.recording import RecordingReader
from controller.api.wire import ErrorBody
from controller.api.wire.requests import RequestState
from controller.api.wire.stream import EventFrame, Frame, RequestTraffic, StatusFrame, TrafficBatch
from controller.sim.workload.trace import TraceRequest
from controller.sim.workload.trace_files import read_trace
from llumctl.app import run
from llumctl.commands import record
from llumctl.commands.record import TrafficFile
from tests.unit.cli_process import ended, interrupted, llumctl
from tests.unit.cli_support import Cli, remember, stop
from tests.unit.fake_controller import FakeController, event, meanwhile, until

Captured = pytest.CaptureFixture[str]
STARTED_S = 1000.0
"""What the fake controller says first."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "r.jsonl"


def was_stopped(fake: FakeController) -> None:
    stop("ana@head")
    fake.stop()


STOPPED = re.compile(r"^cluster default was stopped at \d\d:\d\d:\d\d by ana@head$", re.M)


# -- statuses and events, for replays -----------------------------------------------------


def frames(file: Path) -> list[Frame]:
    with RecordingReader(file) as reader:
        return list(reader)


def test_recording_for_a_while(
    fake: FakeController, file: Path, capsys: Captured, cli: Cli
) -> None:
    assert run(["record", str(file), "--duration", "0.3s", "--refresh", "0.1"]) == 0
    found = frames(file)
    statuses = [frame for frame in found if isinstance(frame, StatusFrame)]
    assert statuses[0].status == fake.status
    told = f"recorded {len(found)} frames in {file}\nnext:  llumctl top --replay {file}\n"
    assert capsys.readouterr() == ("", told)
    assert "never overwritten" in cli("record", str(file), "--duration", "1s", code=5).err
    assert frames(file) == found


@pytest.mark.process
def test_it_goes_on_after_a_break_and_ends_with_the_cluster(
    fake: FakeController, file: Path
) -> None:
    """It used to wait for ever, and for another cluster of that name."""
    fake.events = [event("admitted")]
    with llumctl("record", str(file), "--refresh", "0.1") as process:
        until(lambda: file.exists() and '"status"' in file.read_text())
        fake.stop()
        fake.start()
        fake.until_asked("/v1/watch", 2)
        num_before = len(file.read_text())
        until(lambda: len(file.read_text()) > num_before)
        fake.events.append(event("evicted"))
        until(lambda: '"kind":"evicted"' in file.read_text())
        was_stopped(fake)
        code, err = ended(process)
    assert code == 0
    assert err.count("trying again") == err.count("the controller answers again") == 1
    assert STOPPED.search(err)
    assert err.endswith(
        f"recorded {len(frames(file))} frames in {file}\nnext:  llumctl top --replay {file}\n"
    )
    events = [frame.event.kind for frame in frames(file) if isinstance(frame, EventFrame)]
    assert events == ["evicted"]


@pytest.mark.process
def test_without_a_frame_there_is_no_file(file: Path, cli: Cli) -> None:
    class Silent(FakeController):
        def _frames(self, query: dict[str, list[str]]) -> Iterator[StatusFrame]:  # noqa: ARG002
            self.stopping.wait()
            yield from ()

    with Silent() as fake:
        remember(fake.url)
        with llumctl("record", str(file)) as process:
            fake.until_asked("/v1/watch")
            until(file.exists)
            assert interrupted(process) == (130, "")
        assert not file.exists()
        assert (
            "sent nothing within 0.1" in cli("record", str(file), "--duration", "0.1", code=124).err
        )
        assert not file.exists()


@pytest.mark.usefixtures("fake")
def test_a_file_that_cannot_be_made(cli: Cli) -> None:
    for options in ([], ["--traffic"]):
        told = cli("record", "/dev/full/x", "--duration", "1s", *options, code=1).err
        assert "cannot write the recording" in told


# -- requests, for simulations ------------------------------------------------------------


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


def recorded(file: Path, *options: str) -> int:
    return run(["record", "--traffic", str(file), "--duration", "0.1s", *options])


HASHES = f"{7:016x}{2**64 - 1:016x}"
MANY = (
    batch(
        request(1.5, rank=1, session="00ff", prefix_hashes=HASHES),
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
    fake: FakeController, file: Path, capsys: Captured
) -> None:
    fake.traffic = [batch(time_s=STARTED_S), *MANY, batch(time_s=STARTED_S + 8)]

    def happen() -> None:
        until(lambda: not fake.traffic)
        was_stopped(fake)

    with meanwhile(happen):
        assert run(["record", "--traffic", str(file)]) == 0
    header, *requests, end = rows(file)
    assert header == {"llumctl_recording": 1, "prefix_hash_tokens": 16}
    known = {"arrival_s", "num_prompt_tokens", "num_output_tokens", "rank", "outcome"}
    assert all(set(each) <= known | {"session", "prefix_hashes"} for each in requests)
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
    told = f"recorded 4 requests, 3 lost in {file}\nnext:  llumctl simulate --from {file}\n"
    assert capsys.readouterr().err.endswith(told)


def test_the_key_is_random_and_not_in_the_file(
    fake: FakeController, file: Path, capsys: Captured
) -> None:
    for name in ("one", "other"):
        assert recorded(file.with_name(name)) == 0
        assert capsys.readouterr().err == f"recorded 0 requests in {file.with_name(name)}\n"
        key = fake.bodies("/v1/traffic")[-1]["key"]
        assert re.fullmatch("[0-9a-f]{64}", key)
        assert key not in file.with_name(name).read_text()
    assert len({body["key"] for body in fake.bodies()}) == 2


@pytest.mark.process
def test_traffic_is_written_as_it_comes_over_a_break_until_it_is_interrupted(
    fake: FakeController, file: Path
) -> None:
    with llumctl("record", "--traffic", str(file)) as process:
        fake.traffic = [MANY[0]]
        until(lambda: file.exists() and len(rows(file)) == 3)
        fake.stop()
        fake.traffic = [MANY[1]]
        fake.start()
        until(lambda: len(rows(file)) == 5)
        code, err = interrupted(process)
    assert code == 0
    assert err.count("trying again") == err.count("the controller answers again") == 1
    assert "recorded 4 requests, 3 lost" in err
    assert (rows(file)[-1]["num_requests"], rows(file)[-1]["num_breaks"]) == (4, 1)
    first, second = fake.bodies()
    assert first["key"] == second["key"]


@pytest.mark.process
def test_a_killed_recorder_leaves_a_recording(fake: FakeController, file: Path) -> None:
    with llumctl("record", "--traffic", str(file)) as process:
        fake.traffic = list(MANY)
        until(lambda: file.exists() and file.read_text().count("\n") == 5)
        process.send_signal(signal.SIGKILL)
        ended(process)
    assert len(read_trace(file).requests) == 3
    file.write_bytes(file.read_bytes()[:-7])
    assert len(read_trace(file).requests) == 2, "a cut line is not read"


def test_without_a_controller_nothing_is_recorded(file: Path, cli: Cli) -> None:
    assert "default is not running" in cli("record", "--traffic", str(file), code=3).err
    assert not file.exists()


def test_a_second_recording_is_refused(fake: FakeController, file: Path, capsys: Captured) -> None:
    file.write_text("mine")
    body = ErrorBody(code="recorded_already", message="being recorded already", hint="look")
    fake.orders["POST /v1/traffic"] = lambda _: (409, body)
    assert recorded(file, "--force") == 5
    assert "being recorded already" in capsys.readouterr().err
    assert file.read_text() == "mine", "there is nothing new to put in its place"


def test_only_force_replaces_a_file(fake: FakeController, file: Path, capsys: Captured) -> None:
    file.write_text("mine")
    file.chmod(0o644)
    assert recorded(file) == 5
    assert capsys.readouterr().err.endswith(f"try:   llumctl record {file} --traffic --force\n")
    assert file.read_text() == "mine"
    assert fake.ordered == []
    assert recorded(file, "--force") == 0
    assert len(rows(file)) == 2
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("kind", ["folder", "pipe", "link"])
def test_force_replaces_nothing_but_files(
    fake: FakeController, file: Path, kind: str, capsys: Captured
) -> None:
    other = file.with_name("other")
    other.write_text("mine")
    makers = {"folder": Path.mkdir, "pipe": os.mkfifo, "link": lambda at: at.symlink_to(other)}
    makers[kind](file)
    assert recorded(file, "--force") == 5
    assert "not a regular file, so it is not replaced" in capsys.readouterr().err
    assert other.read_text() == "mine"
    assert fake.ordered == []


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
