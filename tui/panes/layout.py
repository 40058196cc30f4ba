"""Where the panes of the main screen go: pure, for any size of terminal."""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

WIDE = 110
TALL = 10
"""Below this many lines there is one pane only."""
MIN_FOR_ALARM = 6
MIN_LOWER = 5
EMPTY, EMPTY_WIDTH = 3, 28
"""The room of an empty pane: its title, its heads and a line that says so."""
MIN_BESIDE_MATRIX = 12
"""Lines that events keep below the matrix of moves."""


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
    queue heads, and on the right of both are events, below the matrix of moves if there is one."""

    header_lines: int
    alarm_lines: int
    scaling_lines: int
    boxes: dict[Pane, Box]
    tabs: bool
    """The lower panes share one place."""
    matrix: Box | None = None


def arrange(
    width: int,
    height: int,
    *,
    num_instances: int,
    held: bool = False,
    alarm: bool = False,
    scaling: bool = False,
    tab: Pane,
    zoomed: Pane | None = None,
    expanded: bool = False,
    focused: Pane = Pane.INSTANCES,
    empty: Collection[Pane] = (),
    matrix_lines: int = 0,
    replay: bool = False,
) -> Arrangement:
    """`held`: whether there is a queue at the controller. `tab`: the lower pane that shows where
    there is room for one. `scaling`: whether auto-scaling has a line. `expanded`: events take the
    whole width below and half of the height. `empty` panes leave their room to the others.
    `matrix_lines`: what the matrix of moves would take; it has room on a wall screen only.
    `replay`: its bar takes a line of the header at any width."""
    wide = width >= WIDE
    header_lines = 2 if (wide or replay) and height >= TALL else min(1, max(0, height - 2))
    alarm_lines = int(alarm and height >= MIN_FOR_ALARM)
    scaling_lines = int(scaling and height >= TALL)
    lines = (header_lines, alarm_lines, scaling_lines)
    room = max(1, height - sum(lines) - 1)
    if zoomed is None and height < TALL:
        zoomed = focused
    if zoomed is not None:
        return Arrangement(*lines, {zoomed: Box(width, room)}, tabs=not wide)
    side_by_side = wide and not expanded
    least_lower = EMPTY if not side_by_side and tab in empty else max(MIN_LOWER, room * 3 // 10)
    most_upper = room // 2 if expanded else room - least_lower
    upper = max(3, min(num_instances + 2, most_upper))
    boxes = {Pane.INSTANCES: Box(width, upper)}
    lower = room - upper
    if not side_by_side:
        boxes[Pane.EVENTS if expanded else tab] = Box(width, lower)
        return Arrangement(*lines, boxes, tabs=True)
    idle = {Pane.MIGRATIONS, Pane.QUEUE} & set(empty)
    left = EMPTY_WIDTH if len(idle) == 2 else width // 2 + 4
    above = lower // 2
    # At most a queue head for each instance, and the controller's.
    above = max(above, lower - max(1, num_instances + held) - 2)
    if len(idle) == 1 and lower > 2 * EMPTY:
        above = EMPTY if Pane.MIGRATIONS in idle else lower - EMPTY
    matrix = None
    if 0 < matrix_lines <= lower - MIN_BESIDE_MATRIX:
        matrix = Box(width - left - 1, matrix_lines, gap=1)
    boxes |= {
        Pane.MIGRATIONS: Box(left, above),
        Pane.QUEUE: Box(left, lower - above),
        Pane.EVENTS: Box(width - left - 1, lower - (matrix.height if matrix else 0), gap=1),
    }
    return Arrangement(*lines, boxes, tabs=False, matrix=matrix)
