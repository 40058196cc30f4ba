"""`llumctl` as a process of its own: for signals and pipes."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

LIMIT_S = 30


@contextmanager
def llumctl(*arguments: str, stdout: int = subprocess.PIPE) -> Iterator[subprocess.Popen[str]]:
    """In this process's environment; ended with the block if it has not ended by then."""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "llumctl", *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_hear_interrupts,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(LIMIT_S)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def interrupted(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Ctrl-C: the exit code, and what was on stderr."""
    process.send_signal(signal.SIGINT)
    return ended(process)


def reader_left(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Closes its stdout: the exit code, and what was on stderr."""
    assert process.stdout is not None
    process.stdout.close()
    return ended(process)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    assert process.stderr is not None
    code = process.wait(LIMIT_S)
    return code, process.stderr.read()


def _hear_interrupts() -> None:
    """A shell's background jobs are started deaf to Ctrl-C, and so would be their children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
