"""What is on the screen before the dashboard is: importing all that draws it takes half a second.

It imports nothing of ours, and nothing that takes time.
"""

import contextlib
import shutil
from collections.abc import Iterator
from typing import TextIO

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l\x1b[H\x1b[2J", "\x1b[?25h\x1b[?1049l"


@contextlib.contextmanager
def shown(stream: TextIO, title: str, *, rule: str) -> Iterator[None]:
    """Shows it on a screen of its own, where the dashboard is drawn over it. If the dashboard comes
    to nothing, the screen from before is there again for the error."""
    size = shutil.get_terminal_size()
    stream.write(_ENTER + "\r\n".join(_lines(title, size.columns, size.lines, rule)))
    stream.flush()
    try:
        yield
    except BaseException:
        stream.write(_LEAVE)
        stream.flush()
        raise


def _lines(title: str, width: int, height: int, rule: str) -> list[str]:
    words = "".join(char for char in title if char.isprintable() and char.isascii())
    found = [f" {words}", "", f"{rule} Instances ".ljust(width, rule)]
    return [line[:width] for line in found[:height]]
