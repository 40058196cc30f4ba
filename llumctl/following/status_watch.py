"""`llumctl status --watch`: the status again and again, in place on a terminal."""

import shutil
import sys
import time
from collections.abc import Callable

from controller.api.errors import UnreachableError
from controller.api.text.quantities import duration, time_of_day
from controller.api.wire.status import ClusterStatus
from llumctl import connect
from llumctl.text import output

# Escape sequences: home, erase the rest of the line, of the screen; clear, cut lines, wrap them.
_HOME, _END_OF_LINE, _END = "\x1b[H", "\x1b[K", "\x1b[J"
_CLEAR, _CUT, _WRAP = "\x1b[2J", "\x1b[?7l", "\x1b[?7h"


def watch(
    cluster: str,
    first: ClusterStatus,
    render: Callable[[ClusterStatus], str],
    *,
    every_s: float,
    timeout_s: float,
    lines_only: bool,
) -> None:
    """Shows the status until stdout's reader leaves; `lines_only`: only what `render` gives.

    A controller that does not answer is waited for: a terminal keeps its last status, with
    its age; elsewhere it is said once on stderr.
    """
    paint = _Screen() if not lines_only and output.can_redraw(sys.stdout) else None
    status, asked_s, trouble = first, time.monotonic(), ""
    seen_s = asked_s
    while not output.reader_left():
        if paint is not None:
            paint(f"{_head(trouble, time.monotonic() - seen_s)}\n{render(status)}")
        elif not trouble:
            output.emit(render(status) if lines_only else f"{_head()}\n{render(status)}\n")
        time.sleep(max(0.0, asked_s + every_s - time.monotonic()))
        asked_s = time.monotonic()
        try:
            with connect.client(cluster, timeout_s) as client:
                status = client.status()
            if trouble and paint is None:
                output.say("the controller answers again")
            trouble, seen_s = "", time.monotonic()
        except UnreachableError as error:
            if not trouble and paint is None:
                output.say(f"{error.message}; waiting for it")
            trouble = error.message


def _head(trouble: str = "", age_s: float = 0.0) -> str:
    clock = time_of_day(time.time())
    return f"{clock}  stale for {duration(age_s)}: {trouble}" if trouble else clock


class _Screen:
    """Writes over what it wrote before; what the terminal has no room for is left out."""

    def __init__(self) -> None:
        self._begun = False

    def __call__(self, text: str) -> None:
        height = shutil.get_terminal_size().lines
        lines = [line + _END_OF_LINE for line in text.splitlines()[: height - 1]]
        clear = "" if self._begun else _CLEAR
        self._begun = True
        output.emit(f"{_CUT}{_HOME}{clear}" + "\n".join(lines) + f"\n{_END}{_WRAP}", end="")
