"""Whether a screen can be drawn."""

from typing import Any

from textual.screen import Screen


def can_draw(screen: Screen[Any]) -> bool:
    """Whether a screen's widgets are there: they come after the screen, and go one by one while
    statuses, sizes and the focus still change."""
    return screen.is_mounted and screen.display and bool(screen.size.width)
