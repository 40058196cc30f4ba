"""A few lines of text: the header, an instance's facts."""

from collections.abc import Sequence
from itertools import zip_longest

from textual.geometry import Region
from textual.strip import Strip

from tui.drawing.format import Line
from tui.widgets.tones import Toned


class Lines(Toned):
    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        self._lines: list[Line] = []
        self._bar = False

    def show(self, lines: Sequence[Line], *, bar: bool = False) -> None:
        """Paints the lines that differ. `bar`: the first one stands out in the whole width."""
        if bar != self._bar:
            self._bar = bar
            self.refresh()
        before, self._lines = self._lines, list(lines)
        changed = [
            Region(0, y, self.outer_size.width, 1)
            for y, (old, new) in enumerate(zip_longest(before, self._lines))
            if old != new
        ]
        if changed and self.outer_size.width:
            self.refresh(*changed)

    def render_line(self, y: int) -> Strip:
        line = self._lines[y] if y < len(self._lines) else ()
        return self.strip_of(line, "tone--bar" if self._bar and y == 0 else "")
