"""Turns values into toned text: figures, curves of one line, wrapped words, shares of a whole as
cells, tables whose columns fit a width, and facts with labels. All functions are pure."""

import math
import textwrap
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

from rich.cells import cell_len, chop_cells, set_cell_size

from tui.state import TREND_S, Sample


class Tone(StrEnum):
    """What a piece of text means. The words say it, and so does the colour that a theme gives the
    tone."""

    PLAIN = "plain"
    STRONG = "strong"
    DIM = "dim"
    GOOD = "good"
    WARN = "warn"
    BAD = "bad"
    CURVE_1 = "curve-1"
    CURVE_2 = "curve-2"
    CURVE_3 = "curve-3"
    CURVE_4 = "curve-4"
    """The curves of a graph. No figure is good or bad in these tones."""

    __hash__ = str.__hash__
    """A fast hash. The hash of an Enum is a slow function written in Python, and the style of each
    piece of a line is looked up by its tone."""


AMBER_SHARE = 0.5
"""A figure stands out from this share of its limit on."""


def severity(value: float | None, limit: float) -> Tone:
    """The tone of a figure that has a limit: plain while it is well below, then WARN, and BAD from
    the limit on. A limit of 0 is switched off."""
    if value is None or not limit or value < AMBER_SHARE * limit:
        return Tone.PLAIN
    return Tone.BAD if value >= limit else Tone.WARN


NEARLY_FULL, FULL = 0.9, 0.98


def fullness(share: float | None) -> Tone:
    """The tone of a share of memory that is held."""
    if share is None or share < NEARLY_FULL:
        return Tone.PLAIN
    return Tone.BAD if share >= FULL else Tone.WARN


class Span(NamedTuple):
    """A piece of text in one tone. A screen of 60 lines has a thousand pieces, and each is compared
    with the piece before it. Comparing two takes 46 ns; with frozen dataclasses it took 196 ns.
    Making one takes equally long either way."""

    text: str
    tone: Tone = Tone.PLAIN


Line = tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The characters that the terminal can show. `trend`: the glyphs of a curve, from low to high.
    `bar`: the first cells of a bar, by how much of a cell is full; the last one is a full cell.
    `beyond`: a cell of what is wanted in addition. `free`: a cell of what is free."""

    rule: str
    ellipsis: str
    bullet: str
    trend: str
    bar: str
    beyond: str
    free: str


UNICODE = Glyphs(
    rule="─", ellipsis="…", bullet="●", trend="▁▂▃▄▅▆▇█", bar="▏▎▍▌▋▊▉█", beyond="▒", free="·"
)
ASCII = Glyphs(rule="-", ellipsis="~", bullet="*", trend="_.,:-=+#", bar="#", beyond="=", free=".")


def encodable(text: str, glyphs: Glyphs) -> str:
    """The text with a question mark for each character that an ASCII terminal cannot show, and
    without control characters. All text is drawn through this function: no word from a recording or
    a controller may control the terminal."""
    if not text.isprintable():
        text = "".join(
            char if char.isprintable() else " " * (unicodedata.category(char)[0] == "Z")
            for char in text
        )
    if glyphs is not ASCII:
        return text
    return unicodedata.normalize("NFC", text).encode("ascii", "replace").decode()


def fitted(text: str, width: int, glyphs: Glyphs, *, right: bool = False) -> str:
    """The text in exactly `width` columns: padded, or cut with an ellipsis."""
    length = num_cells(text)
    if length > width:
        return set_cell_size(text, width - 1) + glyphs.ellipsis if width > 0 else ""
    space = " " * (width - length)
    return space + text if right else text + space


def num_cells(text: str) -> int:
    """How many columns the text takes."""
    return len(text) if text.isascii() and text.isprintable() else cell_len(text)


def wrapped(text: str, width: int, *, first: str = "", later: str = "") -> list[str]:
    """The text in lines of at most `width` columns, cut between words where that is possible;
    `first` and `later` stand before the first line and the others."""
    if text.isascii():
        return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=later)
    lines, line, begun = [], first, False
    for word in text.split():
        for place, piece in enumerate(chop_cells(word, max(2, width - len(later)))):
            space = " " * (begun and not place)
            if begun and (place or num_cells(line + space + piece) > width):
                lines.append(line)
                line, space = later, ""
            line += space + piece
            begun = True
    return [*lines, line] if begun else []


def width_of(line: Line) -> int:
    return sum([num_cells(text) for text, _ in line])


def key_line(pairs: Sequence[tuple[str, str]], width: int) -> Line:
    """` Enter detail  / filter  ...`: as many pairs as have room, and the last two in any case."""
    kept = list(pairs)
    while len(kept) > 2 and width_of(_key_spans(kept)) > width:
        del kept[-3]
    return _key_spans(kept)


def _key_spans(pairs: Sequence[tuple[str, str]]) -> Line:
    spans: list[Span] = []
    for key, word in pairs:
        spans += [Span(f" {key}", Tone.STRONG), Span(f" {word} ", Tone.DIM)]
    return tuple(spans)


def number(value: float | None) -> str:
    """A whole number of at most seven characters: 751, -196, 12345, 1.2M."""
    if value is None or math.isnan(value):
        return "-"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if abs(value) < 999_999.5:
        return f"{value:.0f}".replace("-0", "0") if abs(value) < 0.5 else f"{value:.0f}"
    for size, letter in ((1e6, "M"), (1e9, "G"), (1e12, "T")):
        if abs(value) < 999.95 * size:
            return f"{value / size:.1f}{letter}"
    return f"{value:.0e}"


def percent(ratio: float | None) -> str:
    if ratio is None or math.isnan(ratio):
        return "-"
    return "inf" if math.isinf(ratio) else f"{100 * ratio:.0f}" if ratio < 9.995 else ">999"


def bar(
    used: float | None, wanted: float | None, width: int, glyphs: Glyphs
) -> tuple[str, str, str]:
    """A bar in three parts: the share that is held, what is wanted beyond that, and spaces. `used`
    and `wanted` are shares of the whole; `wanted` includes what is held. The end of what is held is
    drawn as exactly as the glyphs allow: in eighths of a cell."""
    if used is None:
        return "", "", " " * width
    parts = len(glyphs.bar)
    num = _cells(used, width * parts)
    held = glyphs.bar[-1] * (num // parts) + glyphs.bar[num % parts - 1 : num % parts]
    more = 0 if wanted is None else max(0, _cells(wanted, width) - len(held))
    return held, glyphs.beyond * more, " " * (width - len(held) - more)


TREND_STEPS = (0, 16, 48, 128, 384, 1024, 3072)
"""The curve is one glyph higher above each of these numbers of decode steps. The numbers are the
same in all rows and at all times, so that rows can be compared; they lie closest together where
memory is short."""


STEP_TIMES = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64)
"""The curve of step times is one glyph higher above each of these times, in seconds."""


def trend(samples: Sequence[Sample], time_s: float, width: int, glyphs: Glyphs) -> str:
    """A curve of the freeness in the last minute before `time_s`, in `width` slots, the newest on
    the right."""
    values = [(at_s, steps) for at_s, steps, _ in samples]
    return _slotted(values, time_s, width, glyphs, TREND_STEPS)


def step_trend(samples: Sequence[Sample], time_s: float, width: int, glyphs: Glyphs) -> str:
    """A curve of the step times in the last minute, drawn as `trend` draws freeness."""
    values = [(at_s, step_time_s) for at_s, _, step_time_s in samples]
    return _slotted(values, time_s, width, glyphs, STEP_TIMES)


def _slotted(
    values: Iterable[tuple[float, float | None]],
    time_s: float,
    width: int,
    glyphs: Glyphs,
    limits: Sequence[float],
) -> str:
    """The values by slot. Slots begin at multiples of their length, so that a curve moves by whole
    slots."""
    slot_s = TREND_S / max(1, width)
    first = time_s // slot_s - width + 1
    slots: dict[float, float] = {}
    for at_s, value in values:
        if value is not None:
            slots[at_s // slot_s - first] = value
    glyph_of = glyphs.trend
    found = [" "] * width
    for place, value in slots.items():
        if 0 <= place < width:
            found[int(place)] = glyph_of[bisect_left(limits, value)]
    return "".join(found)


def _cells(share: float, width: int) -> int:
    if math.isnan(share):
        return 0
    return width if math.isinf(share) else max(0, min(width, round(share * width)))


GAP = 2

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Column(Generic[Item]):
    """A column of a table. `cell(item, width)` returns the text in the column, in one tone or
    several. If the width is too small, the columns with the highest `drop` are left out first, and
    columns with a `drop` of 0 never. A column may grow up to `max_width`; a `curve`, which only
    shows more time then, grows after all texts."""

    name: str
    title: str
    width: int
    cell: Callable[[Item, int], Span | Line]
    right: bool = False
    drop: int = 0
    max_width: int = 0
    curve: bool = False


@dataclass(frozen=True, slots=True)
class Placed(Generic[Item]):
    """A column at its place on the screen. `gap`: the number of spaces behind it. The spaces have
    the tone of the text before them, because each change of tone costs time and bytes."""

    column: Column[Item]
    x: int
    width: int
    gap: int = GAP


def place(columns: Sequence[Column[Item]], width: int) -> tuple[Placed[Item], ...]:
    """The columns that fit into the width, with a margin at the left and GAP between them. The last
    one may be cut."""
    kept = fitting(columns, width - 1, lambda each: each.width, lambda each: each.drop)
    widths = [column.width for column in kept]
    spare = max(0, width - 1 - _side_by_side(widths))
    for curves in (False, True):
        for place, column in enumerate(kept):
            if column.curve is curves:
                extra = min(spare, max(0, column.max_width - column.width))
                widths[place] += extra
                spare -= extra
    placed: list[Placed[Item]] = []
    x = 1
    for column, wanted in zip(kept, widths, strict=True):
        room = min(wanted, width - x)
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
    """The pieces of a cell, each as its x and its text, without gaps between them. A note is
    (column, text): its text takes the rest of the row from that column on."""
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
    """The pieces of a cell from the left; the last piece takes the remaining room."""
    pieces: list[tuple[int, Span]] = []
    x, end = placed.x, placed.x + placed.width
    for place, span in enumerate(cell):
        is_last = place == len(cell) - 1
        width = end - x if is_last else min(num_cells(span.text), end - x)
        pieces.append((x, _exact(span, width, glyphs, gap=placed.gap if is_last else 0)))
        x += width
    return pieces


def _exact(span: Span, width: int, glyphs: Glyphs, *, right: bool = False, gap: int = 0) -> Span:
    """The text in exactly `width` columns, followed by the gap. Nearly all cells are plain ASCII
    and fit, so these are simply padded."""
    text, tone = span
    if text.isascii() and text.isprintable() and len(text) <= width:
        return Span((text.rjust(width) if right else text).ljust(width + gap), tone)
    return Span(fitted(encodable(text, glyphs), width, glyphs, right=right) + " " * gap, tone)


Part = TypeVar("Part")


def fitting(
    parts: Sequence[Part],
    room: int,
    width_of: Callable[[Part], int],
    drop_of: Callable[[Part], int],
) -> list[Part]:
    """The parts that fit side by side, with GAP between them. The parts with the highest `drop` are
    left out first, parts with a `drop` of 0 never. A narrow part that was left out comes back if
    there is room for it once a wide one is out. One part stays in any case."""
    widths = [width_of(part) for part in parts]
    kept = list(range(len(parts)))
    out: list[int] = []
    while len(kept) > 1 and _side_by_side(widths[each] for each in kept) > room:
        most = max(kept, key=lambda each: drop_of(parts[each]))
        if not drop_of(parts[most]):
            break
        kept.remove(most)
        out.append(most)
    for each in reversed(out):
        if _side_by_side(widths[other] for other in (*kept, each)) <= room:
            kept.append(each)
    return [parts[each] for each in sorted(kept)]


def _side_by_side(widths: Iterable[int]) -> int:
    found = list(widths)
    return sum(found) + GAP * (len(found) - 1)


def apportion(sizes: Sequence[float], width: int) -> list[int]:
    """How many of `width` cells each part gets: in proportion to its size, and at least one if it
    is not empty and there are enough cells. All cells are given out."""
    total = sum(sizes)
    if total <= 0 or width <= 0:
        return [0] * len(sizes)
    ideal = [size * width / total for size in sizes]
    least = 1 if sum(size > 0 for size in sizes) <= width else 0
    cells = [max(int(wanted), least * (wanted > 0)) for wanted in ideal]
    places = range(len(sizes))
    while sum(cells) > width:
        most = max((p for p in places if cells[p] > least), key=lambda p: cells[p] - ideal[p])
        cells[most] -= 1
    while sum(cells) < width:
        cells[max(places, key=lambda p: ideal[p] - cells[p])] += 1
    return cells


LABEL_WIDTH = 11
MIN_COLUMN_WIDTH = 38

Fact = tuple[str, Span]
"""A label, and the figure next to it."""


def labelled(label: str, *spans: Span) -> Line:
    """A line of its own below the columns of facts: a label, and its text."""
    return (Span(f" {label:<{LABEL_WIDTH}} ", Tone.DIM), *spans)


def fact_lines(found: list[Fact], width: int, glyphs: Glyphs) -> list[Line]:
    """Facts in as many columns as fit, filled downwards, so that related facts stand below each
    other."""
    count = max(1, width // MIN_COLUMN_WIDTH)
    room = width // count - LABEL_WIDTH - 3
    height = -(-len(found) // count)
    lines: list[Line] = []
    for y in range(height):
        spans: list[Span] = []
        for label, figure in found[y::height]:
            spans.append(Span(f" {label:<{LABEL_WIDTH}} ", Tone.DIM))
            spans.append(Span(fitted(figure.text, room, glyphs) + " ", figure.tone))
        lines.append(tuple(spans))
    return lines
