"""Compares a screen with its stored picture; UPDATE_SNAPSHOTS=1 stores the new one.

Each release of Textual draws differently, so its version is pinned, and a new one needs new
pictures.
"""

import difflib
import os
import re
from pathlib import Path

from tui.app import Dashboard

FOLDER = Path(__file__).parent / "snapshots"
MAX_SHOWN = 30


def svg(app: Dashboard) -> str:
    """The picture with one element in each line, so that a difference shows its place, and without
    the id that Rich derives from the content."""
    text = app.export_screenshot(title="llumctl top", simplify=True)
    text = re.sub(r"terminal-\d+", "terminal", text)
    return re.sub(r">\s*<", ">\n<", text) + "\n"


def check(app: Dashboard, name: str) -> None:
    """Raises AssertionError with the differences, and writes the new picture beside the old one."""
    kept, new = FOLDER / f"{name}.svg", FOLDER / f"{name}.new.svg"
    found = svg(app)
    if os.environ.get("UPDATE_SNAPSHOTS") == "1":
        kept.write_text(found, encoding="utf-8")
    if kept.exists() and kept.read_text(encoding="utf-8") == found:
        new.unlink(missing_ok=True)
        return
    new.write_text(found, encoding="utf-8")
    before = kept.read_text(encoding="utf-8") if kept.exists() else ""
    changes = list(difflib.unified_diff(before.splitlines(), found.splitlines(), lineterm="", n=0))
    raise AssertionError(
        f"the screen differs from {kept.name} (compare {new}; UPDATE_SNAPSHOTS=1 keeps it):\n"
        + "\n".join(changes[2 : 2 + MAX_SHOWN])
    )
