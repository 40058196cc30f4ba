"""The cluster's processes on this machine, how they are ended, and the signals that stop us.

Processes are found by the nonce in their environment, or by their session: a process that sets its
title, as Ray's agents do, overwrites its environment. While something runs that must be undone,
signals to stop become interrupts, and are ignored once it is being undone.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from controller.main.machine.ray_environment import NONCE_VARIABLE

STOPS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Session(NamedTuple):
    """The session that a process of ours was started in, and leads. The kernel gives its number to
    no other process while a member lives."""

    leader: int
    folder: Path
    """Its members' working folder, by which they are told from those of a stranger who got the
    number after all of ours had ended."""


def processes_of(nonce: str, session: Session | None = None) -> list[psutil.Process]:
    """Live processes of this user that carry the cluster's nonce or are in its session, except this
    one."""
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
            continue  # the process is gone, or another user's
    return found


def _is_in(process: psutil.Process, session: Session | None) -> bool:
    return (
        session is not None
        and os.getsid(process.pid) == session.leader
        and Path(process.cwd()).samefile(session.folder)
    )


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


def sweep(nonce: str, session: Session | None = None, deadline_s: float = 10.0) -> int:
    """Ends the processes of a nonce, and of a session, until none is left; returns their number.
    One round is not enough, as a process may start another while it is being ended."""
    ended: set[int] = set()
    give_up_s = time.monotonic() + deadline_s
    while (left := processes_of(nonce, session)) and time.monotonic() < give_up_s:
        end(left, patience_s=0.0 if ended else 1.0)
        ended.update(process.pid for process in left)
    return len(ended)


def _quietly(action: Callable[[], None]) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        action()


@contextlib.contextmanager
def stops_interrupt() -> Iterator[None]:
    """Lets SIGTERM, the terminal's hang-up and SIGQUIT raise KeyboardInterrupt, as Ctrl-C does.
    What is ignored stays so, as a hang-up under nohup."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    heard = [number for number in STOPS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in heard}
    try:
        yield
    finally:
        _restore(before)


@contextlib.contextmanager
def no_interrupts() -> Iterator[None]:
    """Ignores interrupts, so that an impatient third Ctrl-C leaves nothing half undone."""
    before = {n: signal.signal(n, signal.SIG_IGN) for n in (signal.SIGINT, *STOPS)}
    try:
        yield
    finally:
        _restore(before)


def _restore(before: Mapping[signal.Signals, Any]) -> None:
    for number, handler in before.items():
        signal.signal(number, handler)
