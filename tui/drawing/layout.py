"""Where the panes of the main screen go: pure, for any size of terminal."""

from dataclasses import dataclass
from enum import StrEnum

WIDE = 110
TALL = 10
"""Below this many lines there is one pane only."""
MIN_FOR_ALARM = 6
MIN_LOWER = 5


class Pane(StrEnum):
    INSTANCES = "instances"
    MIGRATIONS = "migrations"
    QUEUE = "queue"
    EVENTS = "events"


@dataclass(frozen=True, slots=True)
class Box:
    """`gap`: empty columns on its left."""

    width: int
    height: int
    gap: int = 0


@dataclass(frozen=True, slots=True)
class Arrangement:
    """What is visible; panes that are not in `boxes` are hidden. Side by side, moves are above
    queue heads, and events are on the right of both."""

    header_lines: int
    alarm_lines: int
    boxes: dict[Pane, Box]
    tabs: bool
    """The lower panes share one place."""


def arrange(
    width: int,
    height: int,
    *,
    num_instances: int,
    alarm: bool = False,
    tab: Pane,
    zoomed: Pane | None = None,
    expanded: bool = False,
    focused: Pane = Pane.INSTANCES,
) -> Arrangement:
    """`tab`: the lower pane that shows where there is room for one. `expanded`: events take the
    whole width below and half of the height."""
    wide = width >= WIDE
    header_lines = 2 if wide and height >= TALL else min(1, max(0, height - 2))
    alarm_lines = int(alarm and height >= MIN_FOR_ALARM)
    room = max(1, height - header_lines - alarm_lines - 1)
    if zoomed is None and height < TALL:
        zoomed = focused
    if zoomed is not None:
        return Arrangement(header_lines, alarm_lines, {zoomed: Box(width, room)}, tabs=not wide)
    side_by_side = wide and not expanded
    most_upper = room // 2 if expanded else room - max(MIN_LOWER, room * 3 // 10)
    upper = max(3, min(num_instances + 2, most_upper))
    boxes = {Pane.INSTANCES: Box(width, upper)}
    lower = room - upper
    if side_by_side:
        left = width // 2 + 4
        above = lower // 2
        boxes |= {
            Pane.MIGRATIONS: Box(left, above),
            Pane.QUEUE: Box(left, lower - above),
            Pane.EVENTS: Box(width - left - 1, lower, gap=1),
        }
    else:
        boxes[Pane.EVENTS if expanded else tab] = Box(width, lower)
    return Arrangement(header_lines, alarm_lines, boxes, tabs=not side_by_side)
