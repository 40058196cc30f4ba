"""The processes that a benchmark starts: their CPU time, and how they end."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil

# CPU time: how much a server used, and how much other programs on the machine used meanwhile

QUIET_SAMPLE_S = 0.5


@dataclass(frozen=True, slots=True)
class CpuUse:
    """`parts_s`: seconds, by the role of a server's processes. `other_cores`: cores that other
    programs used, which is the noise of the measurement."""

    parts_s: dict[str, float]
    other_cores: float

    @property
    def total_s(self) -> float:
        return sum(self.parts_s.values())


class CpuMeter:
    """Measures from its creation on."""

    def __init__(self, processes: dict[int, str]) -> None:
        """`processes`: for each pid the role of the process."""
        self._parts = {
            psutil.Process(pid): part for pid, part in processes.items() if psutil.pid_exists(pid)
        }
        self._started_s = time.perf_counter()
        self._own_s = time.process_time()
        self._machine_s = _machine_s()
        self._before_s = {process: _process_s(process) for process in self._parts}

    def used(self) -> CpuUse:
        wall_s = time.perf_counter() - self._started_s
        parts_s: dict[str, float] = {}
        for process, part in self._parts.items():
            used_s = _process_s(process) - self._before_s[process]
            parts_s[part] = parts_s.get(part, 0.0) + used_s
        own_s = time.process_time() - self._own_s
        other_s = _machine_s() - self._machine_s - sum(parts_s.values()) - own_s
        return CpuUse(parts_s, max(0.0, other_s / wall_s))


def wait_until_quiet(max_other_cores: float, patience_s: float) -> None:
    """Returns when the machine does almost nothing, or when patience ends."""
    give_up_s = time.monotonic() + patience_s
    while time.monotonic() < give_up_s:
        before_s = _machine_s()
        time.sleep(QUIET_SAMPLE_S)
        if (_machine_s() - before_s) / QUIET_SAMPLE_S <= max_other_cores:
            return


def _machine_s() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


def _process_s(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.Error):
        times = process.cpu_times()
        return float(times.user + times.system)
    return 0.0


# The end of processes

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
    """Sends SIGTERM to the leader's group, then SIGKILL to the rest of its session."""
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
        leader.poll()  # otherwise it stays a zombie
        if done():
            return
        time.sleep(0.1)
