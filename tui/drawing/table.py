"""Tables as values: columns that fit a width, rows of toned cells."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from tui.drawing.format import Glyphs, Line, Span, Tone, encodable, fitted, num_cells

GAP = 2

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Column(Generic[Item]):
    """`cell(item, width)` says what stands in the column, in one tone or several. Columns with the
    highest `drop` go first where the width is short (0: never); one column may grow up to
    `max_width`."""

    name: str
    title: str
    width: int
    cell: Callable[[Item, int], Span | Line]
    right: bool = False
    drop: int = 0
    max_width: int = 0


@dataclass(frozen=True, slots=True)
class Placed(Generic[Item]):
    """A column at its place on the screen. `gap`: the spaces behind it, which have the tone of its
    text, as each change of tone costs time and bytes."""

    column: Column[Item]
    x: int
    width: int
    gap: int = GAP


def place(columns: Sequence[Column[Item]], width: int) -> tuple[Placed[Item], ...]:
    """The columns that fit, one margin to the left, GAP apart. The last one may be cut."""
    kept = list(columns)
    while len(kept) > 1 and _total(kept) > width:
        most = max(kept, key=lambda column: column.drop)
        if not most.drop:
            break
        kept.remove(most)
    spare = max(0, width - _total(kept))
    placed: list[Placed[Item]] = []
    x = 1
    for column in kept:
        extra = min(spare, max(0, column.max_width - column.width))
        spare -= extra
        room = min(column.width + extra, width - x)
        if room < 1:
            break
        placed.append(Placed(column, x, room))
        x += room + GAP
    if placed:
        placed[-1] = replace(placed[-1], gap=0)
    return tuple(placed)


def titles(placed: Sequence[Placed[Item]], glyphs: Glyphs) -> Line:
    return tuple(
        Span(fitted(p.column.title, p.width, glyphs, right=p.column.right), Tone.DIM)
        for p in placed
    )


def cells(
    placed: Sequence[Placed[Item]], item: Item, glyphs: Glyphs, note: tuple[str, Span] | None = None
) -> tuple[tuple[int, Span], ...]:
    """(x, text) of each piece of a cell, without a place between them. A note is (column, text): it
    takes the rest of the row."""
    shown: list[tuple[int, Span]] = []
    for p in placed:
        if note is not None and p.column.name == note[0]:
            room = placed[-1].x + placed[-1].width - p.x
            shown.append((p.x, _exact(note[1], room, glyphs)))
            break
        cell = p.column.cell(item, p.width)
        if isinstance(cell, Span):
            shown.append((p.x, _exact(cell, p.width, glyphs, right=p.column.right, gap=p.gap)))
        else:
            shown += _pieces(cell, p, glyphs)
    return tuple(shown)


def _pieces(cell: Line, placed: Placed[Item], glyphs: Glyphs) -> list[tuple[int, Span]]:
    """From the left; the last piece takes the room that is left."""
    pieces: list[tuple[int, Span]] = []
    x, end = placed.x, placed.x + placed.width
    for place, span in enumerate(cell):
        is_last = place == len(cell) - 1
        width = end - x if is_last else min(num_cells(span.text), end - x)
        pieces.append((x, _exact(span, width, glyphs, gap=placed.gap if is_last else 0)))
        x += width
    return pieces


def _exact(span: Span, width: int, glyphs: Glyphs, *, right: bool = False, gap: int = 0) -> Span:
    """Nearly all cells are plain ASCII and have room: those take the short way."""
    text, tone = span
    if text.isascii() and text.isprintable() and len(text) <= width:
        return Span((text.rjust(width) if right else text).ljust(width + gap), tone)
    return Span(fitted(encodable(text, glyphs), width, glyphs, right=right) + " " * gap, tone)


def _total(columns: Sequence[Column[Item]]) -> int:
    return 1 + sum(column.width for column in columns) + GAP * (len(columns) - 1)
