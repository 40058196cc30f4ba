"""What `llumctl top` needs before the dashboard is imported, which takes half a second: what the
screen shows meanwhile, the garbage collector kept from it, and the names of the themes.

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
FEW_S_WORTH = 20_000
"""New objects between two looks for cycles, a second of a busy cluster: by Python's 700 there were
90 looks a second."""
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l\x1b[H\x1b[2J", "\x1b[?25h\x1b[?1049l"


@contextlib.contextmanager
def first_frame(stream: TextIO, title: str, *, rule: str) -> Iterator[None]:
    """Shows the title on a screen of its own, over which the dashboard is drawn. If the dashboard
    comes to nothing, the screen from before is there again for the error."""
    size = shutil.get_terminal_size()
    try:  # from the first byte on: a signal may come right behind it
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
    """While modules are imported nothing is garbage: looking for some was a tenth of the start. The
    collector goes on with `settle_collector`, or with an error."""
    gc.disable()
    try:
        yield
    except BaseException:
        gc.enable()
        raise


def settle_collector() -> None:
    """From here on the collector looks at nothing that is there already, and seldom at the rest, so
    that it does not stop the dashboard between a status and its picture. What the modules and
    Textual hold lasts as long as the process, and going through it took 0.1 s each time, which a
    status had to wait. The rest is little, so that it is gone through often: with Python's 10 and
    10 there were up to 5 MiB of garbage after ten minutes."""
    gc.freeze()
    gc.set_threshold(FEW_S_WORTH, 3, 2)
    gc.enable()
