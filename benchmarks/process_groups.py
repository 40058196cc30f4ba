"""Processes that a benchmark starts, and how they end."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from types import FrameType

import psutil

TERM_PATIENCE_S = 20.0
KILL_PATIENCE_S = 5.0


def session_members(session_id: int) -> list[psutil.Process]:
    """Live processes of a session, whatever group they have moved to."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):
            if os.getsid(process.pid) == session_id and is_alive(process):
                found.append(process)
    return found


def is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def end_session(leader: subprocess.Popen[bytes]) -> None:
    """SIGTERM to the leader's group, SIGKILL to what is left of its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader.pid, signal.SIGTERM)
    _wait_until(lambda: not session_members(leader.pid), TERM_PATIENCE_S, leader)
    for process in session_members(leader.pid):
        with contextlib.suppress(psutil.Error):
            process.kill()
    _wait_until(lambda: not session_members(leader.pid), KILL_PATIENCE_S, leader)
    if left := session_members(leader.pid):
        print(f"still there: {[process.pid for process in left]}", file=sys.stderr)


def _wait_until(
    done: Callable[[], bool], patience_s: float, leader: subprocess.Popen[bytes]
) -> None:
    give_up_s = time.monotonic() + patience_s
    while time.monotonic() < give_up_s:
        leader.poll()  # else it stays a zombie
        if done():
            return
        time.sleep(0.1)


@contextlib.contextmanager
def signals_interrupt() -> Iterator[None]:
    """SIGTERM and SIGHUP do what Ctrl-C does."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handlers(interrupt, (signal.SIGTERM, signal.SIGHUP)):
        yield


@contextlib.contextmanager
def no_interrupts() -> Iterator[None]:
    """An impatient second Ctrl-C must not leave a server behind."""

    def ignore(_number: int, _frame: FrameType | None) -> None:
        print("cleaning up", file=sys.stderr)

    with _handlers(ignore, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)):
        yield


@contextlib.contextmanager
def _handlers(
    handler: Callable[[int, FrameType | None], None], numbers: Iterable[signal.Signals]
) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
