"""Compares a screen with the picture of it that is kept; UPDATE_SNAPSHOTS=1 keeps the new one.

Textual draws differently in each release: it is pinned, and a new one means new pictures.
"""

import difflib
import os
import re
from pathlib import Path

from tui.app import Dashboard

FOLDER = Path(__file__).parent / "snapshots"
MAX_SHOWN = 30


def svg(app: Dashboard) -> str:
    """One element per line, without the id that Rich derives from the content: a change shows
    where it is."""
    text = app.export_screenshot(title="llumctl top", simplify=True)
    text = re.sub(r"terminal-\d+", "terminal", text)
    return re.sub(r">\s*<", ">\n<", text) + "\n"


def check(app: Dashboard, name: str) -> None:
    """Raises AssertionError with what differs; the new picture lies beside the old one."""
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
