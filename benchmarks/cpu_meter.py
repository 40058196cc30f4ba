"""CPU time: what a server used, and what everybody else on the machine did meanwhile."""

import contextlib
import time
from dataclasses import dataclass

import psutil

QUIET_SAMPLE_S = 0.5


@dataclass(frozen=True, slots=True)
class CpuUse:
    """`parts_s`: seconds by the part that a server's processes play. `other_cores`: cores
    that neither they nor this process used: the noise of the measurement."""

    parts_s: dict[str, float]
    other_cores: float

    @property
    def total_s(self) -> float:
        return sum(self.parts_s.values())


class CpuMeter:
    """From its making on."""

    def __init__(self, processes: dict[int, str]) -> None:
        """`processes`: pid -> the part it plays."""
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
    """Return when the machine does almost nothing, or when patience ends."""
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
