"""The cluster's processes on this machine, found by the nonce in their environment."""

import contextlib
import time
from collections.abc import Callable

import psutil

from controller.main.machine.ray_environment import NONCE_VARIABLE


def processes_of(nonce: str) -> list[psutil.Process]:
    """Live processes of this user that carry the cluster's nonce, except this one."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != psutil.Process().pid and (
                process.environ().get(NONCE_VARIABLE) == nonce
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                found.append(process)
        except (psutil.Error, OSError):
            continue  # the process is gone, or another user's
    return found


def same_process(pid: int | None, started_s: float | None) -> psutil.Process | None:
    """The process `pid` if it started at `started_s`, and is no later process with that number."""
    if pid is None or started_s is None:
        return None
    try:
        process = psutil.Process(pid)
        if abs(process.create_time() - started_s) < 1.0 and (
            process.status() != psutil.STATUS_ZOMBIE
        ):
            return process
    except psutil.Error:
        pass
    return None


def end(processes: list[psutil.Process], patience_s: float) -> None:
    """SIGTERM, then SIGKILL after `patience_s`."""
    for process in processes:
        _quietly(process.terminate)
    _, alive = psutil.wait_procs(processes, timeout=patience_s)
    for process in alive:
        _quietly(process.kill)
    psutil.wait_procs(alive, timeout=5)


def sweep(nonce: str, deadline_s: float = 10.0) -> int:
    """Ends the processes with the nonce until none is left; returns their number. One round is not
    enough, as a process may start another while it is being ended."""
    ended: set[int] = set()
    give_up_s = time.monotonic() + deadline_s
    while (left := processes_of(nonce)) and time.monotonic() < give_up_s:
        end(left, patience_s=0.0 if ended else 1.0)
        ended.update(process.pid for process in left)
    return len(ended)


def _quietly(action: Callable[[], None]) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        action()
