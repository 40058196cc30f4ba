"""Draws series of values as curves in cells of text: two by four dots of Braille in a cell or, on
an ASCII terminal, the key of a series. Also has their scales. All functions are pure.

A curve has its key, a character, behind its last value, so that curves can be told apart without
colours. Keys at the same height stand side by side. docs/decisions/0071-graphs-in-the-console.md
says why this is no library.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import itemgetter

from tui.drawing import ASCII, Glyphs, Line, Span, Tone

DOTS_ACROSS, DOTS_DOWN = 2, 4
"""The dots of a cell of Braille."""
_BRAILLE = 0x2800
_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""The bit of each dot of a cell, by its column and its row."""
KEY_WIDTH = 4
"""So many curves may end at the same height: with two levels, their running and waiting
requests."""
_LEAST_LOG = 1e-6
"""A logarithmic scale has no smaller values."""

ROUND = (1.0, 1.2, 1.6, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0)
"""A fourth of each is a short number, too."""

Values = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Curve:
    """`key`: one character. `values`: one for each column of dots, the newest last; None where
    nothing is known."""

    key: str
    tone: Tone
    values: Values


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps a value to a height between 0 and 1. `ticks`: values that get a label; `label` puts a
    value into words."""

    low: float
    high: float
    ticks: tuple[float, ...]
    label: Callable[[float], str]
    is_log: bool = False

    def height(self, value: float) -> float:
        low, high = self.low, self.high
        if self.is_log:
            low, high, value = math.log(low), math.log(high), math.log(max(value, low))
        return max(0.0, min(1.0, (value - low) / (high - low)))


def linear(values: Iterable[float | None], label: Callable[[float], str], least: float) -> Scale:
    """From 0 to a round number above all values, which is at least `least`."""
    largest = max((each for each in values if each is not None), default=0.0)
    high = _rounded_up(max(largest, least))
    return Scale(0.0, high, tuple(high * quarter / 4 for quarter in range(5)), label)


def logarithmic(
    values: Iterable[float | None], label: Callable[[float], str], low: float, high: float
) -> Scale:
    """Whole powers of ten, from `low` to `high` and as far as the values reach. A scale with one
    step for each power tells 64 from 2,000, and 0.2 s from 30 s."""
    known = [each for each in values if each is not None and each > _LEAST_LOG]
    first = math.floor(math.log10(min([low, *known])) + 1e-9)
    last = math.ceil(math.log10(max([high, *known])) - 1e-9)
    ticks = tuple(10.0**power for power in range(first, last + 1))
    return Scale(ticks[0], ticks[-1], ticks, label, is_log=True)


def _rounded_up(value: float) -> float:
    """The next number of ROUND times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(each * power for each in ROUND if each * power >= value - 1e-9)


def num_columns(width: int, glyphs: Glyphs) -> int:
    """How many values there is room for in a plot of this width."""
    return max(0, width - KEY_WIDTH) * (1 if glyphs is ASCII else DOTS_ACROSS)


def plot(
    curves: Sequence[Curve],
    scale: Scale,
    width: int,
    height: int,
    glyphs: Glyphs,
    limit: float | None = None,
) -> list[Line]:
    """The curves in `height` lines of `width` cells. The first curve lies on top. `limit`: a value
    at which a dotted line is drawn."""
    room = max(0, width - KEY_WIDTH)
    cells: list[list[tuple[Tone, str]]] = [[(Tone.DIM, " ")] * width for _ in range(height)]
    if limit is not None and scale.low <= limit <= scale.high:
        y = _row(scale.height(limit), height)
        cells[y][:room] = [(Tone.DIM, glyphs.rule if x % 2 == 0 else " ") for x in range(room)]
    draw = _in_ascii if glyphs is ASCII else _in_braille
    for curve in reversed(curves):
        draw(cells, curve, scale, room, height)
    num_taken = [0] * height
    """How many keys stand on each line."""
    for curve in curves:
        last = next((each for each in reversed(curve.values[-8:]) if each is not None), None)
        if last is None or room <= 0:
            continue
        y = _row(scale.height(last), height)
        if num_taken[y] < KEY_WIDTH:
            cells[y][room + num_taken[y]] = curve.tone, curve.key
            num_taken[y] += 1
    return [_joined(row) for row in cells]


def _row(share: float, height: int) -> int:
    """The line for this height, from the top."""
    return min(height - 1, int((1.0 - share) * height))


def _in_ascii(
    cells: list[list[tuple[Tone, str]]], curve: Curve, scale: Scale, room: int, height: int
) -> None:
    for x, value in enumerate(curve.values[:room]):
        if value is not None:
            cells[_row(scale.height(value), height)][x] = curve.tone, curve.key


def _in_braille(
    cells: list[list[tuple[Tone, str]]], curve: Curve, scale: Scale, room: int, height: int
) -> None:
    bits: dict[tuple[int, int], int] = {}
    for x, first, last in _strokes(curve.values[: room * DOTS_ACROSS], scale, height * DOTS_DOWN):
        column = _BITS[x % DOTS_ACROSS]
        for y in range(first, last + 1):
            place = y // DOTS_DOWN, x // DOTS_ACROSS
            bits[place] = bits.get(place, 0) | column[y % DOTS_DOWN]
    for (y, x), dots in bits.items():
        under = ord(cells[y][x][1])
        if under >= _BRAILLE:
            dots |= under - _BRAILLE
        cells[y][x] = curve.tone, chr(_BRAILLE + dots)


def _strokes(values: Values, scale: Scale, num_dots: int) -> Iterator[tuple[int, int, int]]:
    """For each column its dots, from the first to the last row: those of its value and those that
    join it to the value before."""
    before: int | None = None
    for x, value in enumerate(values):
        if value is None:
            before = None
            continue
        y = min(num_dots - 1, int((1.0 - scale.height(value)) * num_dots))
        if before is None or abs(before - y) <= 1:
            yield x, y, y
        else:
            yield (x, y, before - 1) if y < before else (x, before + 1, y)
        before = y


def _joined(row: Sequence[tuple[Tone, str]]) -> Line:
    return tuple(
        Span("".join([text for _, text in alike]), tone)
        for tone, alike in groupby(row, key=itemgetter(0))
    )


def labels(scale: Scale, height: int) -> list[str]:
    """For each line the label of its tick, or an empty text. If there are more ticks than lines,
    the lowest and the highest have labels first."""
    found = [""] * height
    ticks = scale.ticks
    for tick in (ticks[-1], ticks[0], *ticks[1:-1]):
        place = _row(scale.height(tick), height)
        near = found[max(0, place - 1) : place + 2]
        if not any(near):
            found[place] = scale.label(tick)
    return found


def slots(
    spans: Sequence[tuple[float, float]], end_s: float, slot_s: float, num: int
) -> list[tuple[int, int]]:
    """For each of `num` slots of `slot_s` up to `end_s`: the first of the spans (their begins and
    ends, in order) that lies in it, and the end of those. A span that is longer than a slot lies in
    several."""
    found: list[tuple[int, int]] = []
    first = last = 0
    for begin_s, stop_s in pairwise(end_s + slot_s * (place - num) for place in range(num + 1)):
        while first < len(spans) and spans[first][1] <= begin_s + 1e-6:
            first += 1
        last = max(last, first)
        while last < len(spans) and spans[last][0] < stop_s - 1e-6:
            last += 1
        found.append((first, last))
    return found
