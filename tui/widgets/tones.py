"""Tones become styles here: a component class each, coloured by the theme."""

from itertools import groupby
from operator import itemgetter

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from tui.drawing.format import UNICODE, Line, Span, Tone, encodable, num_cells

COMPONENTS = {f"tone--{tone}" for tone in Tone} | {
    "tone--cursor",
    "tone--cursor-blurred",
    "tone--bar",
}
CSS = """
.tone--plain { }
.tone--strong { text-style: bold; color: $text-primary; }
.tone--dim { color: $text-muted; }
.tone--good { color: $text-success; }
.tone--warn { color: $text-warning; }
.tone--bad { color: $text-error; text-style: bold; }
.tone--cursor { background: $block-cursor-background; color: $block-cursor-foreground;
    text-style: $block-cursor-text-style; }
.tone--bar { background: $warning; color: $background; text-style: bold; }
.tone--cursor-blurred { background: $block-cursor-blurred-background; }
"""


class Toned(Widget):
    """A widget that is painted in tones. Its styles are put together once, and again when
    Textual says that they changed: they took a quarter of the time of a frame."""

    COMPONENT_CLASSES = COMPONENTS

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        self._styles: dict[tuple[Tone | None, str], Style] = {}

    def notify_style_update(self) -> None:
        self._styles.clear()
        super().notify_style_update()

    def strip_of(self, line: Line, over: str = "", *, fits: bool = False) -> Strip:
        """A line in the widget's width, neighbours of one style joined: each style costs some 20
        bytes on the way to the terminal. `over`: a component that lies on top of every tone (a
        cursor). `fits`: all of the line can be shown, and none of it is too wide."""
        width = self.outer_size.width
        if not fits:
            line = self._encodable(line)
        segments: list[Segment] = []
        for tone, pieces in groupby(line, key=itemgetter(1)):
            text = "".join([text for text, _ in pieces])
            segments.append(Segment(text, self.style_of(tone, over)))
        length = num_cells("".join([text for text, _ in line]))
        if length < width:
            segments.append(Segment(" " * (width - length), self.style_of(None, over)))
        strip = Strip(segments, max(length, width))
        return strip if length <= width else strip.adjust_cell_length(width)

    def _encodable(self, line: Line) -> Line:
        glyphs = getattr(self.app, "glyphs", UNICODE)
        return tuple(Span(encodable(text, glyphs), tone) for text, tone in line)

    def style_of(self, tone: Tone | None, over: str = "") -> Style:
        found = self._styles.get((tone, over))
        if found is None:
            found = self.rich_style
            for component in (f"tone--{tone}" if tone else "", over):
                if component:
                    found += self.get_component_rich_style(component, partial=True)
            self._styles[tone, over] = found
        return found
