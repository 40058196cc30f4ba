"""`llumctl status --watch`: in a pipe, on a terminal, and when the controller is lost."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from controller.api.state import run_state
from controller.api.wire.status import ClusterState, InstanceState
from llumctl.app import run
from tests.unit.cli_process import LIMIT_S, interrupted, llumctl, reader_left
from tests.unit.cli_support import cluster, instance, remember
from tests.unit.fake_controller import FakeController

pytestmark = pytest.mark.process

Captured = pytest.CaptureFixture[str]
EVERY = ("--every", "0.05")


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeController]:
    for variable in ("LLUMCTL_CLUSTER_NAME", "LLUMCTL_CONFIG", "NO_COLOR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TERM", "xterm")
    with FakeController() as served:
        remember(served.url)
        yield served


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def block(process: subprocess.Popen[str]) -> list[str]:
    """Time, summary, nothing, header, an instance, nothing."""
    return [line(process).rstrip("\n") for _ in range(6)]


def test_in_a_pipe_a_block_for_each_look(fake: FakeController) -> None:
    with llumctl("status", "-w", *EVERY) as process:
        first = block(process)
        assert re.fullmatch(r"\d\d:\d\d:\d\d", first[0])
        assert first[1].startswith("cluster default  ready")
        assert first[4].startswith("i-0  active")
        fake.status = cluster(state=ClusterState.DEGRADED)
        while "degraded" not in (later := block(process))[1]:
            pass
        assert "\x1b" not in "".join(first + later)
        assert interrupted(process) == (130, "")


def test_jsonl_is_a_status_per_line(fake: FakeController) -> None:
    with llumctl("status", "-w", "-o", "jsonl", *EVERY) as process:
        for _ in range(3):
            status = json.loads(line(process))
            assert (status["schema_version"], status["cluster"]) == (1, "default")
            assert [item["id"] for item in status["instances"]] == ["i-0"]
        assert fake.asked == ["/v1/status"] * len(fake.asked)
        assert interrupted(process) == (130, "")


@pytest.mark.usefixtures("fake")
def test_a_reader_that_leaves_ends_it() -> None:
    with llumctl("status", "-w", *EVERY) as process:
        block(process)
        assert reader_left(process) == (0, "")


def test_a_controller_that_vanishes_is_said_and_waited_for(fake: FakeController) -> None:
    with llumctl("status", "-w", "-o", "jsonl", *EVERY) as process:
        assert process.stderr is not None
        assert json.loads(line(process))["state"] == "ready"
        fake.stop()
        assert process.stderr.readline().endswith("; waiting for it\n")
        fake.status = cluster(state=ClusterState.DEGRADED)
        fake.start()
        assert process.stderr.readline() == "the controller answers again\n"
        while json.loads(line(process))["state"] != "degraded":
            pass
        run_state.remove("default")
        assert process.stderr.readline() == "cluster default is not running; waiting for it\n"
        assert interrupted(process) == (130, "")


class Screen:
    """What a process writes to a terminal of 8 lines."""

    def __init__(self, *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "llumctl", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=subprocess.PIPE,
            env={**os.environ, "LINES": "8", "COLUMNS": "80"},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        os.close(theirs)
        self.written = ""

    def until(self, condition: Callable[[str], bool]) -> str:
        """Everything so far, as soon as it fulfils this."""
        deadline_s = time.monotonic() + LIMIT_S
        while not condition(self.written):
            assert time.monotonic() < deadline_s, self.written
            if select.select([self._ours], [], [], 0.1)[0]:
                self.written += os.read(self._ours, 65536).decode()
        return self.written

    def frames(self) -> list[str]:
        """Whole ones: what stands between going home and clearing the rest."""
        return re.findall(r"\x1b\[\?7l\x1b\[H(.*?)\x1b\[J\x1b\[\?7h", self.written, re.DOTALL)

    def end(self) -> tuple[int, str]:
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(LIMIT_S)
        assert self.process.stderr is not None
        stderr = self.process.stderr.read().decode()
        self.process.stderr.close()
        os.close(self._ours)
        return code, stderr


def test_on_a_terminal_it_paints_in_place_and_tells_how_stale_it_is(fake: FakeController) -> None:
    fake.status = cluster(*(instance(f"i-{n}") for n in range(9)))
    screen = Screen("status", "-w", *EVERY)
    screen.until(lambda _: len(screen.frames()) > 2)
    assert screen.written.count("\x1b[2J") == 1
    for frame in screen.frames():
        lines = frame.replace("\x1b[2J", "").split("\r\n")
        assert len(lines) == 8
        assert lines[-1] == ""
        assert all(text.endswith("\x1b[K") for text in lines[:-1])
        assert "i-2" in lines[-2]
    assert "\x1b[32mactive\x1b[0m" in screen.frames()[-1]
    fake.stop()
    screen.until(lambda _: "stale for" in screen.frames()[-1])  # a whole frame, not its head
    stale = screen.frames()[-1]
    assert re.search(r"\d\d:\d\d:\d\d  stale for \d+\.\ds: the controller at http", stale)
    assert "i-0" in stale
    fake.status = cluster(instance("i-7", InstanceState.DRAINING))
    fake.start()
    screen.until(lambda _: "i-7" in screen.frames()[-1])
    assert "stale" not in screen.frames()[-1]
    assert screen.end() == (130, "")


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (("--every", "5"), "--every: only with --watch", "llumctl status --watch --every 5"),
        (("-w", "--every", "0"), "--every: must be a positive number of seconds, not 0", ""),
        (("-w", "--every", "nan"), "--every: must be a positive number of seconds, not nan", ""),
        (("-w", "-o", "json"), "-o json: cannot be watched", "llumctl status --watch -o jsonl"),
        (("-w", "-o", "yaml"), "-o yaml: cannot be watched", ""),
        (("-w", "-o", "name"), "-o name: cannot be watched", ""),
        (("-w", "--check"), "--check: its result is the exit code", "llumctl status --wait=ready"),
    ],
)
def test_usage_errors(
    arguments: tuple[str, ...], message: str, hint: str, capsys: Captured
) -> None:
    assert run(["status", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"error: {message}")
    assert hint in captured.err


def test_nothing_to_watch(fake: FakeController, capsys: Captured) -> None:
    run_state.remove("default")
    assert run(["status", "-w"]) == 3
    assert capsys.readouterr().err == "error: cluster default is not running\ntry:   llumctl up\n"
    assert fake.asked == []
