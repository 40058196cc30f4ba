"""A program of the operator's: what it writes, and its end."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from tui import program_guard

MAX_LINES = 5000
MAX_LINE_BYTES = 1000
BATCH, PAUSE_S = 100, 0.01
"""After so many lines the program waits: one that writes all the time left no key to be heard."""
WAKE_S = 0.1
"""From one look at what is new to the next."""
GRACE_S = 2.0
"""Between the polite end and the other one."""


class Program:
    """In a session and a process group of its own, without a terminal. Whatever is left of the
    group ends with the program, and the program with `stop` or with this process, however that
    ends: a guard, which leads the group, sees to it (`program_guard`)."""

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        timeout_s: float,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """`wake` is called on any thread when there is more to show."""
        self.lines: deque[str] = deque(maxlen=MAX_LINES)
        self.num_lines = 0
        """How many there were, with those that are not kept."""
        self.outcome = ""
        """How it ended; empty while it runs."""
        self._arguments = list(arguments)
        self._environment = {**os.environ, **environment}
        self._timeout_s = timeout_s
        self._wake = wake
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = threading.Event()
        self._news = threading.Event()
        self._timed_out = False

    def start(self) -> None:
        ours, theirs = socket.socketpair()
        guard = [sys.executable, "-I", "-S", program_guard.__file__, str(theirs.fileno())]
        try:
            self._process = subprocess.Popen(
                [*guard, *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
                pass_fds=(theirs.fileno(),),
            )
        except (OSError, ValueError) as error:
            ours.close()
            self.outcome = f"could not be started: {error}"
            return
        finally:
            theirs.close()
        for work in (self._read, self._tell, partial(self._wait, ours)):
            threading.Thread(target=work, name="own", daemon=True).start()

    def stop(self) -> None:
        """Ends the whole group now."""
        if self._process is not None and not self._ended.is_set():
            self._signal(signal.SIGKILL)

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        with self._process.stdout as written:
            while line := written.readline(MAX_LINE_BYTES):
                self.lines.append(line.decode("utf-8", "replace").rstrip("\r\n"))
                self.num_lines += 1
                self._news.set()
                if self.num_lines % BATCH == 0:
                    time.sleep(PAUSE_S)
        self._wake()

    def _tell(self) -> None:
        while not self._ended.is_set():
            if self._news.wait(WAKE_S):
                self._news.clear()
                self._wake()
                time.sleep(WAKE_S)

    def _wait(self, guard: socket.socket) -> None:
        """The group is signalled before its leader is reaped: until then its number is its own.
        `guard` must be open meanwhile; the guard says there why it could start no program."""
        assert self._process is not None
        timer = threading.Timer(self._timeout_s, self._expire)
        timer.daemon = True
        timer.start()
        os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        timer.cancel()
        self._signal(signal.SIGKILL)
        self._ended.set()
        code = self._process.wait()
        with guard:
            told = guard.recv(MAX_LINE_BYTES).decode("utf-8", "replace")
        if told:
            self.outcome = f"could not be started: {told}"
        elif self._timed_out:
            self.outcome = f"ended after {self._timeout_s:g} s, which is its time-out"
        elif code < 0:
            self.outcome = f"ended by signal {-code}"
        else:
            self.outcome = f"exit status {code}"
        self._wake()

    def _expire(self) -> None:
        self._timed_out = True
        self._signal(signal.SIGTERM)
        if not self._ended.wait(GRACE_S):
            self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


async def in_terminal(arguments: Sequence[str], environment: Mapping[str, str]) -> str:
    """Runs it in the terminal of this process, to its end; why it failed, else empty. Ctrl-C is the
    program's meanwhile. The event loop goes on: what comes from the controller has to be taken, or
    a recording of it stops."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        process = await asyncio.create_subprocess_exec(
            *arguments, env={**os.environ, **environment}
        )
        code = await process.wait()
    except (OSError, ValueError) as error:
        return f"could not be started: {error}"
    finally:
        signal.signal(signal.SIGINT, before)
    return f"exit status {code}" if code else ""
