"""Takes the pictures of the dashboard in the documents anew, from the made-up incidents: the
screens in docs/incidents.md and README's docs/dashboard.svg. `make pictures` takes those of the
tests too.
"""

import asyncio
import re
import sys
from pathlib import Path

from benchmarks import incidents
from tests.unit.tui.tui_support import FakeSource, dashboard, drawn, settle

DOCS = Path(__file__).parents[1] / "docs"
README_PICTURE, README_INCIDENT = DOCS / "dashboard.svg", "slow-link"
SIZE = (120, 36)
_SCREEN = re.compile(r"(<!-- screen: ([a-z-]+) -->\n```\n)(.*?)(```\n)", re.DOTALL)


def main() -> int:
    page = DOCS / "incidents.md"
    text = page.read_text("utf-8")
    screens: dict[str, str] = {}
    for name in incidents.INCIDENTS:
        screens[name], svg = asyncio.run(picture(name))
        if name == README_INCIDENT:
            README_PICTURE.write_text(svg, "utf-8")
    text = _SCREEN.sub(lambda found: found[1] + screens[found[2]] + found[4], text)
    page.write_text(text, "utf-8")
    return 0


async def picture(name: str) -> tuple[str, str]:
    """The screen once it tells what happened: its lines down to the last row, and as an SVG."""
    source = FakeSource()
    async with dashboard(source, SIZE) as (app, pilot):
        source.feed(incidents.frames(name, incidents.SHOWN_S))
        source.clock_s += 0.4
        await settle(app, pilot)
        lines = [line.rstrip() for line in (await drawn(pilot)).splitlines()]
        svg = app.export_screenshot(title="llumctl top", simplify=True)
        return "\n".join(_without_gap(lines)) + "\n", re.sub(r"terminal-\d+", "terminal", svg)


def _without_gap(lines: list[str]) -> list[str]:
    """Without the empty lines below the lower panes, down to one."""
    return [line for place, line in enumerate(lines) if line or (place and lines[place - 1])]


if __name__ == "__main__":
    sys.exit(main())
