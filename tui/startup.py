"""What `llumctl top` does before and while the dashboard is imported, which takes half a second.

It shows a first frame, keeps the garbage collector from running, and has the names of the themes.
It imports nothing of ours, and nothing that takes time.
"""

import contextlib
import gc
import shutil
from collections.abc import Iterator
from typing import TextIO

DEFAULT_THEME = "default"
LIGHT = "light"
DEUTERANOPIA = "deuteranopia"
MONOCHROME = "monochrome"
THEME_NAMES = (DEFAULT_THEME, LIGHT, DEUTERANOPIA, MONOCHROME)
NUM_NEW_OBJECTS = 20_000
"""How many new objects there are between two searches for garbage; a busy cluster makes as many in
a second. With Python's default of 700 the collector ran 90 times a second."""
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l\x1b[H\x1b[2J", "\x1b[?25h\x1b[?1049l"


@contextlib.contextmanager
def first_frame(stream: TextIO, title: str, *, rule: str) -> Iterator[None]:
    """Shows the title on the terminal's alternate screen, on which the dashboard is drawn later. If
    the dashboard fails to start, the screen from before is shown again, for the error."""
    size = shutil.get_terminal_size()
    try:  # it begins before the first byte, since a signal may come right after that
        stream.write(_ENTER + "\r\n".join(_lines(title, size.columns, size.lines, rule)))
        stream.flush()
        yield
    except BaseException:
        stream.write(_LEAVE)
        stream.flush()
        raise


def _lines(title: str, width: int, height: int, rule: str) -> list[str]:
    words = "".join(char for char in title if char.isprintable() and char.isascii())
    found = [f" {words}", "", f"{rule} Instances ".ljust(width, rule)]
    return [line[:width] for line in found[:height]]


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Stops the garbage collector while modules are imported: nothing is garbage then, and the
    search for garbage took a tenth of the start. `settle_collector`, or an error, starts the
    collector again."""
    gc.disable()
    try:
        yield
    except BaseException:
        gc.enable()
        raise


def settle_collector() -> None:
    """Makes the collector ignore all objects that exist already, and look at new ones only seldom,
    so that it does not stop the dashboard between a status and its picture.

    The objects of the modules and of Textual live as long as the process. Going through them took
    0.1 s each time, and a status had to wait for that. The later generations are small, so they are
    collected often: with Python's thresholds of 10 and 10 there were up to 5 MiB of garbage after
    ten minutes.
    """
    gc.freeze()
    gc.set_threshold(NUM_NEW_OBJECTS, 3, 2)
    gc.enable()
