"""Tones become styles here: a component class each, coloured by the theme."""

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from tui.drawing.format import UNICODE, Line, Tone, encodable

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


def style_of(widget: Widget, tone: Tone) -> Style:
    return widget.get_component_rich_style(f"tone--{tone}", partial=True)


def strip_of(widget: Widget, line: Line, over: Style | None = None) -> Strip:
    """A line in the widget's width, neighbours of one style joined: each style costs some 20 bytes
    on the way to the terminal. `over` lies on top of every tone (a cursor)."""
    base = widget.rich_style
    glyphs = getattr(widget.app, "glyphs", UNICODE)
    segments = [
        Segment(encodable(span.text, glyphs), base + style_of(widget, span.tone) + over)
        for span in line
    ]
    width = widget.size.width
    return Strip(segments).adjust_cell_length(width, base + over).simplify()
