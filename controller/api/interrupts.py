"""The signals that stop a command: how they interrupt it, and how they leave it alone while it
cleans up.

This module imports the standard library only, because every command needs it before it starts.
"""

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

STOPS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
AGAIN_S = 0.01
"""When Python has dropped an interrupt, the interrupt is raised again after this time."""


@contextlib.contextmanager
def stops_interrupt() -> Iterator[None]:
    """Lets SIGTERM, SIGQUIT and the terminal's hang-up raise KeyboardInterrupt, as Ctrl-C does. A
    signal that is already ignored, such as a hang-up under nohup, stays ignored."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    heard = [number for number in STOPS if signal.getsignal(number) is not signal.SIG_IGN]
    with _handled(interrupt, heard), interrupts_arrive():
        yield


@contextlib.contextmanager
def no_interrupts() -> Iterator[None]:
    """Ignores interrupts, including those that would be raised again, so that an impatient user's
    third Ctrl-C does not stop the undoing halfway."""
    with _handled(signal.SIG_IGN, (signal.SIGINT, signal.SIGALRM, *STOPS)):
        yield


@contextlib.contextmanager
def interrupts_arrive() -> Iterator[None]:
    """Raises an interrupt again that Python has dropped.

    The handler of a signal runs wherever the main thread is. If that is a destructor or the
    callback of a weak reference, Python prints what the handler raises and goes on as if no signal
    had come."""
    dropped: list[BaseException] = []

    def raise_again(*_: object) -> None:
        if dropped:
            raise dropped.pop()

    def note(unraisable: Any) -> None:
        error = unraisable.exc_value
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and isinstance(error, KeyboardInterrupt | SystemExit):
            dropped[:] = [error]
            signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
        else:
            others(unraisable)

    others, sys.unraisablehook = sys.unraisablehook, note
    with _handled(raise_again, [signal.SIGALRM]):
        try:
            yield
        finally:
            sys.unraisablehook = others
            signal.setitimer(signal.ITIMER_REAL, 0.0)


@contextlib.contextmanager
def _handled(
    handler: Callable[..., None] | signal.Handlers, numbers: Iterable[signal.Signals]
) -> Iterator[None]:
    """Gives the signals this handler for a time."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
