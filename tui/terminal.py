"""The terminal that the dashboard is drawn on: whether it is there, and how large it is."""

import asyncio
import select
import shutil
import signal
import sys
from collections.abc import Callable

from textual.geometry import Size

ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def is_gone() -> bool:
    """Whether the terminal hung up without ending this process, as a lost session's can."""
    stdin = sys.__stdin__
    if stdin is None:
        return False
    poll = select.poll()
    poll.register(stdin.fileno(), 0)
    return any(event & select.POLLHUP for _, event in poll.poll(0))


def end_with_it() -> None:
    """Ends the process as an unignored hang-up does: an exit would wait for its drawing."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.raise_signal(signal.SIGHUP)


def on_ending(leave: Callable[[int], None]) -> None:
    """Calls back on the event loop for each signal that ends a program, unless it is ignored. A
    handler of Python's own would run between any two lines of what draws."""
    loop = asyncio.get_running_loop()
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, leave, number)


def size() -> Size:
    """As Textual's driver asks for it."""
    return Size(*shutil.get_terminal_size())
