"""`llumctl` on its own terminal: keys go in, the screen comes out; with resize and hang-up."""

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

LIMIT_S = 30.0
_ESCAPES = re.compile(r"\x1b\[[0-9;?<>=]*[a-zA-Z]")


class Terminal:
    """A process whose stdin, stdout and stderr are a terminal. `text`: everything that it drew;
    `chunks`: the same in pieces, each with the time at which it came (time.perf_counter)."""

    def __init__(
        self, arguments: tuple[str, ...], size: tuple[int, int], env: Mapping[str, str]
    ) -> None:
        self._master, slave = pty.openpty()
        self.resize(*size)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "llumctl", *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=_own_terminal,
            env={**env, "TERM": "xterm-256color", "COLUMNS": "", "LINES": ""},
        )
        os.close(slave)
        self._drawn = bytearray()
        self.chunks: list[tuple[float, bytes]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def raw(self) -> str:
        return self._drawn.decode("utf-8", "replace")

    @property
    def text(self) -> str:
        """What was drawn, without colours and cursor movements."""
        return _ESCAPES.sub("", self.raw)

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def modes(self) -> list[object]:
        """The terminal's modes: whether it echoes, reads lines, and so on."""
        return termios.tcgetattr(self._master)

    def until(self, *texts: str, after: int = 0) -> int:
        """Waits until each text was drawn behind the place `after`; returns the place where all of
        them are drawn."""
        deadline_s = time.monotonic() + LIMIT_S
        while missing := [text for text in texts if text not in self.text[after:]]:
            assert self.process.poll() is None, f"it ended: {self.text[-2000:]}"
            assert time.monotonic() < deadline_s, f"{missing} not in {self.text[-3000:]}"
            time.sleep(0.02)
        return len(self.text)

    def exit_code(self, limit_s: float = LIMIT_S) -> int:
        """Waits until the process has ended and all that it drew was read; returns its exit
        code."""
        code = self.process.wait(limit_s)
        self._reader.join(limit_s)
        return code

    def quit_s(self, key: str = "q") -> float:
        """Seconds from the key to the end of the process."""
        begun_s = time.monotonic()
        self.press(key)
        self.process.wait(LIMIT_S)
        return time.monotonic() - begun_s

    def hang_up(self) -> None:
        master, self._master = self._master, -1
        os.close(master)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(LIMIT_S)
        self._reader.join(LIMIT_S)
        if self._master >= 0:
            self.hang_up()

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while self._master >= 0:
                ready, _, _ = select.select([self._master], [], [], 0.1)
                if ready:
                    data = os.read(self._master, 65536)
                    if not data:
                        return
                    self.chunks.append((time.perf_counter(), data))
                    self._drawn += data


@contextmanager
def terminal(
    *arguments: str, size: tuple[int, int] = (120, 36), env: Mapping[str, str] | None = None
) -> Iterator[Terminal]:
    """Starts `llumctl`; it is ended after the block if it still runs. `env`: None for this
    process's."""
    found = Terminal(arguments, size, os.environ if env is None else env)
    try:
        yield found
    finally:
        found.close()


def _own_terminal() -> None:
    """Makes the terminal the controlling one, so that hang-ups and Ctrl-C arrive as on a real
    one. A shell's background jobs ignore Ctrl-C, and so would their children."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
