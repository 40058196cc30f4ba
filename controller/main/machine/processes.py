"""The cluster's processes on this machine, and how they are ended.

Processes are found by the nonce in their environment, or by their session: a process that sets its
title, such as Ray's agents, overwrites its environment."""

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil

from controller.main.machine.ray_environment import NONCE_VARIABLE


class Session(NamedTuple):
    """A session that was made for a process of ours, which leads it. The kernel gives the session's
    number to no other process while the session has a member."""

    leader: int
    folder: Path
    """The working folder of the session's members. If all our processes have ended, another session
    may get the same number, but it has another folder."""


def processes_of(nonce: str, session: Session | None = None) -> list[psutil.Process]:
    """Live processes of this user that have the cluster's nonce or are in its session. The calling
    process is not included."""
    found = []
    for process in psutil.process_iter():
        try:
            if (
                process.pid != psutil.Process().pid
                and (process.environ().get(NONCE_VARIABLE) == nonce or _is_in(process, session))
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                found.append(process)
        except (psutil.Error, OSError):
            continue  # the process has ended, or belongs to another user
    return found


def _is_in(process: psutil.Process, session: Session | None) -> bool:
    return (
        session is not None
        and os.getsid(process.pid) == session.leader
        and Path(process.cwd()).samefile(session.folder)
    )


def same_process(pid: int | None, started_s: float | None) -> psutil.Process | None:
    """The process `pid`, if it started at `started_s`; otherwise it is a later process with the
    same number."""
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
    """Ends processes by SIGTERM, and processes that still run after `patience_s` by SIGKILL."""
    for process in processes:
        _quietly(process.terminate)
    _, alive = psutil.wait_procs(processes, timeout=patience_s)
    for process in alive:
        _quietly(process.kill)
    psutil.wait_procs(alive, timeout=5)


def sweep(nonce: str, session: Session | None = None, deadline_s: float = 10.0) -> int:
    """Ends the processes with this nonce and of this session until none is left. Returns their
    number. This may take several rounds, because a process may start another one while it is being
    ended."""
    ended: set[int] = set()
    give_up_s = time.monotonic() + deadline_s
    while (left := processes_of(nonce, session)) and time.monotonic() < give_up_s:
        end(left, patience_s=0.0 if ended else 1.0)
        ended.update(process.pid for process in left)
    return len(ended)


def _quietly(action: Callable[[], None]) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        action()
