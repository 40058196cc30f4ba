"""Makes README's moving picture, docs/demo.svg, from the recording of `llumctl demo`. It is part of
`make demo-recording`.

The picture is an SVG file whose frames are shown in turn by CSS, so no viewer needs a script.
Frames share their colours and their equal rows, and spaces are left out.
"""

import asyncio
import lzma
import sys
import tempfile
from collections.abc import Iterator
from html import escape
from itertools import pairwise
from pathlib import Path

from rich.color import Color
from rich.style import Style
from rich.terminal_theme import DEFAULT_TERMINAL_THEME
from textual.strip import Strip

from controller.api.recording import RecordingReader
from llumctl.commands.demo import CAPTIONS, LENGTH_S, RECORDING
from tests.unit.tui.tui_support import dashboard, drawn, settle
from tui.app import Dashboard
from tui.replay import ReplaySource

PICTURE = Path(__file__).parents[3] / "docs" / "demo.svg"
SIZE = (110, 30)
MAX_BYTES = 1_500_000
FRAMES_PER_CAPTION, FRAME_S = 2, 1.8
CELL, LINE, MARGIN = 8.4, 18, 8
"""The size of a character, and the margin, in pixels."""
GROUND, INK = "#0c0c0c", "#c5c8c6"


class Drawing:
    """Frames as SVG. `rows` and `classes`: the names of the rows, and of the colours, that they
    use."""

    def __init__(self) -> None:
        self.frames: list[str] = []
        self.rows: dict[str, str] = {}
        self.classes: dict[str, str] = {}

    def add(self, strips: list[Strip]) -> None:
        found = ["".join(self._row(strip, y)) for y, strip in enumerate(strips)]
        names = [self.rows.setdefault(each, f"r{len(self.rows)}") for each in found if each]
        self.frames.append("".join(f'<use href="#{name}"/>' for name in names))

    def _row(self, strip: Strip, y: int) -> Iterator[str]:
        x = 0
        top = MARGIN + y * LINE
        for text, style, _ in strip:
            ink, ground = _colours(style)
            if ground != GROUND:
                left, width = MARGIN + x * CELL, len(text) * CELL
                yield (
                    f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{LINE}"'
                    f' class="{self._class(f"fill:{ground}")}"/>'
                )
            bold = ";font-weight:bold" if style is not None and style.bold else ""
            name = self._class(f"fill:{ink}{bold}")
            for begin, word in _words(text):
                yield (
                    f'<text x="{MARGIN + (x + begin) * CELL:.1f}" y="{top + 14}"'
                    f' textLength="{len(word) * CELL:.1f}" class="{name}">{escape(word)}</text>'
                )
            x += len(text)

    def _class(self, css: str) -> str:
        return self.classes.setdefault(css, f"c{len(self.classes)}")

    def text(self) -> str:
        width = 2 * MARGIN + SIZE[0] * CELL
        height = 2 * MARGIN + SIZE[1] * LINE
        total_s = len(self.frames) * FRAME_S
        css = "".join(f".{name}{{{found}}}" for found, name in self.classes.items())
        delays = "".join(
            f".f{place}{{animation-delay:{place * FRAME_S:.1f}s}}"
            for place in range(len(self.frames))
        )
        rows = "\n".join(f'<g id="{name}">{found}</g>' for found, name in self.rows.items())
        frames = "\n".join(
            f'<g class="f f{place}">{found}</g>' for place, found in enumerate(self.frames)
        )
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}">\n<style>'
            "text{font:14px Menlo,Consolas,DejaVu Sans Mono,monospace;white-space:pre}"
            f".f{{visibility:hidden;animation:f {total_s:.1f}s step-end infinite}}"
            f"@keyframes f{{0%{{visibility:visible}}{100 / len(self.frames):.4f}%"
            f"{{visibility:hidden}}}}{delays}{css}</style>\n"
            f"<defs>\n{rows}\n</defs>\n"
            f'<rect width="100%" height="100%" rx="6" fill="{GROUND}"/>\n{frames}\n</svg>\n'
        )


def _colours(style: Style | None) -> tuple[str, str]:
    """The colours of the characters and of what is behind them."""
    if style is None:
        return INK, GROUND
    found = _hex(style.color, INK), _hex(style.bgcolor, GROUND)
    return (found[1], found[0]) if style.reverse else found


def _hex(colour: Color | None, default: str) -> str:
    if colour is None or colour.is_default:
        return default
    return colour.get_truecolor(DEFAULT_TERMINAL_THEME).hex


def _words(text: str) -> Iterator[tuple[int, str]]:
    """The parts of a text between two spaces or more, each with its place."""
    begin = 0
    for part in text.split("  "):
        if word := part.strip():
            yield begin + len(part) - len(part.lstrip()), word
        begin += len(part) + 2


def moments() -> list[float]:
    """The moments of the recording that are shown: some for each caption."""
    found = []
    for begin_s, end_s in pairwise([*(at_s for at_s, _ in CAPTIONS), LENGTH_S]):
        step_s = (end_s - begin_s) / FRAMES_PER_CAPTION
        found += [begin_s + (place + 0.5) * step_s for place in range(FRAMES_PER_CAPTION)]
    return found


async def picture(path: Path) -> str:
    drawing = Drawing()
    with RecordingReader(path) as reader:
        clock = [0.0]
        source = ReplaySource(reader, clock=lambda: clock[0])
        async with dashboard(source, SIZE, captions=CAPTIONS) as (app, pilot):
            for moment_s in moments():
                clock[0] = moment_s
                await settle(app, pilot)
                await drawn(pilot)
                drawing.add(_strips(app))
    return drawing.text()


def _strips(app: Dashboard) -> list[Strip]:
    return app.screen._compositor.render_strips()


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "demo.jsonl"
        path.write_bytes(lzma.decompress(RECORDING.read_bytes()))
        text = asyncio.run(picture(path))
    PICTURE.write_text(text, "utf-8")
    size = PICTURE.stat().st_size
    sys.stdout.write(f"{PICTURE.name}: {size / 1024:.0f} KiB\n")
    return 0 if size <= MAX_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
