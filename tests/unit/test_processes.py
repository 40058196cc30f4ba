"""Processes of a cluster are found by their mark, and only they are ended."""

import contextlib
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from controller.main.machine.processes import Session, end, processes_of, same_process, sweep
from controller.main.machine.ray_environment import NONCE_VARIABLE

pytestmark = pytest.mark.process

Start = Callable[..., subprocess.Popen[bytes]]
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
IDLE = "print(flush=True); import time; time.sleep(60)"


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[bytes]] = []

    def make(nonce: str | None, before: str = "") -> subprocess.Popen[bytes]:
        mark = {NONCE_VARIABLE: nonce} if nonce is not None else {}
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", before + IDLE],
            env=os.environ | mark,
            stdout=subprocess.PIPE,
        )
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()  # it has got as far as `before`
        return process

    yield make
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def nonce() -> str:
    return secrets.token_hex(8)


def test_only_the_marked_are_found(
    start: Start, nonce: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    marked, other, unmarked = start(nonce), start(nonce + "x"), start(None)
    assert [p.pid for p in processes_of(nonce)] == [marked.pid]
    assert sweep(nonce) == 1
    assert not psutil.pid_exists(marked.pid)
    assert processes_of(nonce) == []
    assert other.poll() is None
    assert unmarked.poll() is None
    monkeypatch.setenv(NONCE_VARIABLE, nonce)
    probe = (
        "import sys; from controller.main.machine.processes import processes_of;"
        "sys.exit(len(processes_of(sys.argv[1])))"
    )
    arguments = [sys.executable, "-c", probe, nonce]
    assert subprocess.run(arguments).returncode == 0, "the caller itself is spared"


def test_a_process_that_ignores_sigterm_is_killed(start: Start, nonce: str) -> None:
    stubborn, gone = start(nonce, STUBBORN), start(nonce)
    processes = [psutil.Process(gone.pid), psutil.Process(stubborn.pid)]
    gone.kill()
    gone.wait()
    end(processes, patience_s=0.1)
    assert not psutil.pid_exists(stubborn.pid)


def test_the_same_process_is_known_by_pid_and_start(start: Start) -> None:
    child = start(None)
    started_s = psutil.Process(child.pid).create_time()
    same = same_process(child.pid, started_s)
    assert same is not None
    assert same.pid == child.pid
    assert same_process(child.pid, started_s - 3600) is None, "its number was another's then"
    assert same_process(None, started_s) is None
    assert same_process(child.pid, None) is None
    child.kill()
    assert child.stdout is not None
    child.stdout.read()  # until its end: it is a zombie, or about to be one
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert same_process(child.pid, started_s) is None, "a zombie is dead"
    child.wait()
    assert same_process(child.pid, started_s) is None


def test_members_of_a_session_are_found_without_their_mark(
    start: Start, nonce: str, tmp_path: Path
) -> None:
    """Ray's agents are such processes: they overwrite their environment, and outlive the head."""
    child = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {IDLE!r}],"
    child += " env={}, stdout=subprocess.DEVNULL).pid, flush=True)"
    head = subprocess.Popen(
        [sys.executable, "-c", child], cwd=tmp_path, stdout=subprocess.PIPE, start_new_session=True
    )
    stranger = start(None)
    agent = psutil.Process(int(head.communicate()[0]))
    try:
        assert processes_of(nonce) == []
        assert processes_of(nonce, Session(head.pid, tmp_path.parent)) == [], "another's session"
        assert processes_of(nonce, Session(head.pid, tmp_path)) == [agent]
        assert sweep(nonce, Session(head.pid, tmp_path)) == 1
        assert not agent.is_running() or agent.status() == psutil.STATUS_ZOMBIE
        assert stranger.poll() is None
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            agent.kill()
