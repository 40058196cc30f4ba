"""Signals that stop a program while something runs that must be undone."""

import contextlib
import signal
from collections.abc import Iterator, Mapping
from typing import Any

STOPS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


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
