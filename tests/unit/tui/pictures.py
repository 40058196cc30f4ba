"""Takes new pictures of the dashboard for the documents, from the made-up incidents: the screens in
docs/incidents.md, and docs/dashboard.png of docs/console.md. `make pictures` also takes those of
the tests. (The README's moving picture is made by `demo_picture.py`.)

A headless browser (Chromium, with the font Fira Code) paints the PNG, as viewers of SVG files place
the columns of a terminal differently. Without a browser the PNG is kept, and the exit code is 1.
"""

import argparse
import asyncio
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import incidents
from tests.unit.tui import chromium
from tests.unit.tui.tui_support import FakeSource, dashboard, drawn, settle

DOCS = Path(__file__).parents[3] / "docs"
PICTURE, PICTURED = DOCS / "dashboard.png", "slow-link"
SIZE = (120, 36)
OTHER_SIZES = ((80, 24), (200, 50))
_SCREEN = re.compile(r"(<!-- screen: ([a-z-]+) -->\n```\n)(.*?)(```\n)", re.DOTALL)


def main() -> int:
    argparse.ArgumentParser(description=__doc__).parse_args()
    page = DOCS / "incidents.md"
    text = page.read_text("utf-8")
    screens: dict[str, str] = {}
    is_painted = False
    for name in incidents.INCIDENTS:
        screens[name], svg = asyncio.run(picture(name, SIZE))
        if name == PICTURED:
            is_painted = paint(svg, PICTURE)
    text = _SCREEN.sub(lambda found: found[1] + screens[found[2]] + found[4], text)
    page.write_text(text, "utf-8")
    (DOCS / "incidents-by-size.md").write_text(_other_sizes(), "utf-8")
    return 0 if is_painted else 1


def _other_sizes() -> str:
    """The page with the same screens on a small and on a large terminal."""
    parts = [
        "# The incidents on a small and on a large screen\n\nThe [twelve incidents](incidents.md)"
        " at the same moments, in terminals of 80x24 and of 200x50. `make pictures` writes this"
        " page.\n"
    ]
    for name in incidents.INCIDENTS:
        parts.append(f"## {name.replace('-', ' ').capitalize()}\n")
        for size in OTHER_SIZES:
            screen, _ = asyncio.run(picture(name, size))
            parts.append(f"{size[0]}x{size[1]}:\n\n```\n{screen}```\n")
    return "\n".join(parts)


def paint(svg: str, path: Path) -> bool:
    """Paints the PNG. Returns False if there is no browser."""
    browser = chromium.binary()
    if browser is None:
        sys.stderr.write(f"no browser, so {path.name} is kept: install one of {chromium.NAMES}\n")
        return False
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    assert size is not None, "an SVG of Rich says its size"
    width, height = (round(float(each) + 0.5) for each in size.groups())
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "screen.svg"
        source.write_text(svg, "utf-8")
        subprocess.run(
            [
                browser,
                *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
                "--host-resolver-rules=MAP * ~NOTFOUND",  # the fonts are this machine's
                f"--user-data-dir={folder}/profile",
                f"--window-size={width},{height}",
                f"--screenshot={path}",
                str(source),
            ],
            check=True,
            capture_output=True,
            timeout=120,
        )
    return True


async def picture(name: str, size: tuple[int, int]) -> tuple[str, str]:
    """The screen at the moment at which it shows what happened, as text and as an SVG."""
    source = FakeSource()
    async with dashboard(source, size) as (app, pilot):
        source.feed(incidents.frames(name, incidents.SHOWN_S))
        source.clock_s += 0.4
        await settle(app, pilot)
        lines = [line.rstrip() for line in (await drawn(pilot)).splitlines()]
        svg = app.export_screenshot(title="llumctl top", simplify=True)
        return "\n".join(_without_gap(lines)) + "\n", re.sub(r"terminal-\d+", "terminal", svg)


def _without_gap(lines: list[str]) -> list[str]:
    """The lines with only one of the empty lines below the lower panes."""
    return [line for place, line in enumerate(lines) if line or (place and lines[place - 1])]


if __name__ == "__main__":
    sys.exit(main())
