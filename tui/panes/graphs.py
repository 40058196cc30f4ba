"""Graphs of the cluster's last minutes: requests, KV memory, times to first token, and moves. Each
is drawn small, in a strip of the dashboard, or on the whole screen, with axes and a legend.

A curve shows whole slots of its time only, so that it moves by slots; the figures beside it are
those of the present.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import tzinfo
from statistics import fmean

from controller.api.text.quantities import latency, printable, time_of_day
from tui import drawing, plotting
from tui.drawing import Glyphs, Line, Span, Tone, fullness, num_cells, severity, width_of
from tui.past import PastPoint
from tui.plotting import Curve, Scale, Values
from tui.state import DashboardState

SPANS_S = (60.0, 300.0, 900.0)
STRIP_LINES = 6
"""The lines of the strip: the titles, and the plots."""
GAP = 1
_CURVES = (Tone.CURVE_1, Tone.CURVE_2, Tone.CURVE_3, Tone.CURVE_4)
_SMALL_LABELS, _LARGE_LABELS = 5, 7
_TICK_WIDTH = 14
"""How far the times below a plot are apart, at least."""
_TICKS_S = (5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0)
LONG_TTFT_S, SHORT_TTFT_S = 10.0, 0.1
"""The scale of times to first token has these at least."""


@dataclass(frozen=True, slots=True)
class _Told:
    """A curve, what its key means, and its figure now."""

    curve: Curve
    name: str
    figure: Span


@dataclass(frozen=True, slots=True)
class _Picture:
    """`words`: what stands before the keys of some curves in the strip; `short`: what stands there
    instead if there is too little room."""

    told: tuple[_Told, ...]
    scale: Scale
    words: Mapping[str, str] = field(default_factory=dict)
    short: str = ""
    limit: tuple[str, float] | None = None
    """A value at which a dotted line is drawn, and what it means."""


Slots = Sequence[Sequence[PastPoint]]
"""The points of each column of dots."""


@dataclass(frozen=True, slots=True)
class Graph:
    """`title`: of the whole screen."""

    title: str
    draw: Callable[[Slots, DashboardState], _Picture]


def _requests(slots: Slots, state: DashboardState) -> _Picture:
    names = _level_names(state)
    now = _now(state)
    told = []
    for place, name in enumerate(names):
        level = now.levels.get(name) if now is not None else None
        tones = _CURVES[2 * place % 4], _CURVES[(2 * place + 1) % 4]
        running = _means(slots, lambda each: each.levels[name].num_running, name)  # noqa: B023
        waiting = _means(slots, lambda each: each.levels[name].num_waiting, name)  # noqa: B023
        key = _key(name, names)
        told += [
            _Told(
                Curve(key.upper(), tones[0], running),
                f"{printable(name)} running",
                Span(drawing.number(level.num_running if level else None)),
            ),
            _Told(
                Curve(key.lower(), tones[1], waiting),
                f"{printable(name)} waiting",
                Span(drawing.number(level.num_waiting if level else None)),
            ),
        ]
    told = [*told[::2], *told[1::2]]
    words = {told[0].curve.key: "run", told[len(names)].curve.key: "wait"} if told else {}
    return _Picture(tuple(told), plotting.linear(_all_of(told), drawing.number, 4.0), words)


def _kv(slots: Slots, state: DashboardState) -> _Picture:
    now = _now(state)
    held, wanted = (now.kv_held, now.kv_wanted) if now is not None else (None, None)
    told = [
        _Told(
            Curve("#", Tone.CURVE_1, _means(slots, lambda each: each.kv_held)),
            "held",
            Span(_percent(held), fullness(held)),
        ),
        _Told(
            Curve("=", Tone.CURVE_2, _means(slots, lambda each: each.kv_wanted)),
            "wanted",
            Span(_percent(wanted), fullness(wanted)),
        ),
    ]
    scale = plotting.linear(_all_of(told), _percent, 1.0)
    return _Picture(tuple(told), scale, {"#": "KV held", "=": "wanted"}, "KV", ("full", 1.0))


def _ttft(slots: Slots, state: DashboardState) -> _Picture:
    names = _level_names(state)
    now, limit_s = _now(state), state.limits.alarm_ttft_p99_s
    told = []
    for place, name in enumerate(names):
        level = now.levels.get(name) if now is not None else None
        found_s = level.ttft_p99_s if level is not None else None
        # A percentile has no mean: the worst of each slot is shown.
        values = _by_slot(slots, max, lambda each: each.levels[name].ttft_p99_s, name)  # noqa: B023
        told.append(
            _Told(
                Curve(_key(name, names).upper(), _CURVES[2 * place % 4], values),
                printable(name),
                Span(latency(found_s), severity(found_s, limit_s)),
            )
        )
    scale = plotting.logarithmic(_all_of(told), _short_latency, SHORT_TTFT_S, LONG_TTFT_S)
    words = {told[0].curve.key: "P99 TTFT"} if told else {}
    return _Picture(tuple(told), scale, words, "TTFT", ("alarm", limit_s) if limit_s else None)


def _moves(slots: Slots, state: DashboardState) -> _Picture:
    told = []
    for key, tone, name, number_of in (
        ("m", Tone.CURVE_1, "moves", lambda each: each.num_moved),
        ("e", Tone.CURVE_2, "evictions", lambda each: each.num_evicted),
    ):
        figure = drawing.number(_of_last_minute(state, number_of))
        told.append(_Told(Curve(key, tone, _rates(slots, number_of)), name, Span(figure)))
    scale = plotting.linear(_all_of(told), drawing.number, 4.0)
    return _Picture(tuple(told), scale, {"m": "moves", "e": "evicted"})


GRAPHS: tuple[Graph, ...] = (
    Graph("Requests that run and wait", _requests),
    Graph("KV memory of all instances", _kv),
    Graph("P99 time to first token, of the last minute", _ttft),
    Graph("Moves and evictions a minute", _moves),
)


# Values of curves


def _level_names(state: DashboardState) -> list[str]:
    """The levels, the highest first."""
    levels = state.status.levels if state.status else ()
    return [each.name for each in sorted(levels, key=lambda each: -each.rank)]


def _key(name: str, names: Sequence[str]) -> str:
    """The first letter of the level, or its place if another one has the same letter."""
    same = [each for each in names if each[:1].lower() == name[:1].lower()]
    letter = printable(name[:1])
    return letter if len(same) == 1 and letter.isalpha() else str(names.index(name) + 1)


def _now(state: DashboardState) -> PastPoint | None:
    return state.past.points[-1] if state.past.points else None


def _by_slot(
    slots: Slots,
    together: Callable[[list[float]], float],
    value_of: Callable[[PastPoint], float | None],
    level: str = "",
) -> Values:
    """The value of each slot. `level`: only points that know this level count."""
    found: list[float | None] = []
    for slot in slots:
        values = [
            value
            for each in slot
            if not level or level in each.levels
            if (value := value_of(each)) is not None
        ]
        found.append(together(values) if values else None)
    return found


def _means(slots: Slots, value_of: Callable[[PastPoint], float | None], level: str = "") -> Values:
    return _by_slot(slots, fmean, value_of, level)


def _rates(slots: Slots, number_of: Callable[[PastPoint], float]) -> Values:
    """How many there are in a minute."""
    return [
        60.0 * sum(map(number_of, slot)) / sum(each.span_s for each in slot) if slot else None
        for slot in slots
    ]


def _of_last_minute(state: DashboardState, number_of: Callable[[PastPoint], float]) -> float | None:
    points = state.past.points
    if not points:
        return None
    end_s = points[-1].time_s
    return sum(number_of(each) for each in reversed(points) if each.time_s > end_s - 60.0)


def _all_of(told: Iterable[_Told]) -> list[float | None]:
    return [value for each in told for value in each.curve.values]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{drawing.percent(share)}%"


def _short_latency(seconds: float) -> str:
    """`100ms`, `1s`, `10s`, `17m`"""
    if seconds < 1.0:
        return f"{1000 * seconds:.0f}ms"
    return f"{seconds:.0f}s" if seconds < 600.0 else f"{seconds / 60:.0f}m"


def _slots(state: DashboardState, span_s: float, num: int) -> tuple[Slots, float]:
    """The points of each slot, and the time at which the last slot ends."""
    points = state.past.points
    if not points or num <= 0:
        return [()] * max(0, num), state.time_s
    slot_s = span_s / num
    end_s = math.floor(points[-1].time_s / slot_s) * slot_s
    spans = [(each.time_s - each.span_s, each.time_s) for each in points]
    return [points[first:last] for first, last in plotting.slots(spans, end_s, slot_s, num)], end_s


# The strip


def strip(state: DashboardState, span_s: float, width: int, glyphs: Glyphs) -> list[Line]:
    """All graphs, side by side."""
    room = (width - GAP * (len(GRAPHS) - 1)) // len(GRAPHS)
    found = [
        _small(each, state, span_s, room, glyphs, is_last=each is GRAPHS[-1]) for each in GRAPHS
    ]
    gap = Span(" " * GAP)
    lines: list[Line] = []
    for row in zip(*found, strict=True):
        line: list[Span] = []
        for each in row:
            line += [gap, *each] if line else list(each)
        lines.append(tuple(line))
    return lines


def _small(
    graph: Graph,
    state: DashboardState,
    span_s: float,
    width: int,
    glyphs: Glyphs,
    *,
    is_last: bool,
) -> list[Line]:
    room = max(0, width - _SMALL_LABELS - 1)
    slots, _ = _slots(state, span_s, plotting.num_columns(room, glyphs))
    picture = graph.draw(slots, state)
    minutes = f"{span_s / 60:.0f}m" if is_last else ""
    title = _ruled(_brief(picture, width - len(minutes) - 3), minutes, width, glyphs)
    height = STRIP_LINES - 1
    return [title, *_plot(picture, room, height, _SMALL_LABELS, glyphs)]


def _brief(picture: _Picture, width: int) -> Line:
    """`run H26 N107 wait h12 n11`: the keys with their figures, with as many words before them as
    have room."""
    for words, short in ((picture.words, ""), ({}, picture.short)):
        spans = [Span(f"{short} ", Tone.STRONG)] if short else []
        for each in picture.told:
            key = each.curve.key
            if key in words:
                spans.append(Span(f"{words[key]} ", Tone.STRONG))
            spans += [Span(key, each.curve.tone), each.figure, Span(" ")]
        if width_of(tuple(spans)) <= width:
            break
    return tuple(spans)


def _ruled(words: Line, end: str, width: int, glyphs: Glyphs) -> Line:
    """The words on a rule, with others at its end. What has no room is left out."""
    line: list[Span] = [Span(f"{glyphs.rule} "[:width], Tone.DIM)]
    room = max(0, width - 2)
    for each in words:
        if num_cells(each.text) > room:
            break
        line.append(each)
        room -= num_cells(each.text)
    behind = f" {end}" if end else ""
    if room < len(behind) + 1:
        behind = ""
    line.append(Span(f"{glyphs.rule * (room - len(behind))}{behind}", Tone.DIM))
    return tuple(line)


def _plot(
    picture: _Picture, width: int, height: int, label_width: int, glyphs: Glyphs
) -> list[Line]:
    """The plot, with its scale at the left."""
    curves = [each.curve for each in picture.told]
    limit = picture.limit[1] if picture.limit is not None else None
    rows = plotting.plot(curves, picture.scale, width, height, glyphs, limit)
    labels = plotting.labels(picture.scale, height)
    return [
        (Span(f"{label:>{label_width}} ", Tone.DIM), *row)
        for label, row in zip(labels, rows, strict=True)
    ]


# The whole screen


def title(graph: Graph, span_s: float) -> str:
    return f"{graph.title}, {span_s / 60:.0f} min"


def large(
    graph: Graph,
    state: DashboardState,
    span_s: float,
    width: int,
    height: int,
    glyphs: Glyphs,
    zone: tzinfo | None,
) -> list[Line]:
    """A graph in `height` lines: the legend, the plot with its scale, and times of day."""
    room = max(0, width - _LARGE_LABELS - 2)
    num = plotting.num_columns(room, glyphs)
    slots, end_s = _slots(state, span_s, num)
    picture = graph.draw(slots, state)
    legend = _legend(picture, width, glyphs)
    rows = _plot(picture, room, max(1, height - 3), _LARGE_LABELS, glyphs)
    axis, times = _time_axis(end_s, span_s, max(0, room - plotting.KEY_WIDTH), glyphs, zone)
    indent = Span(" " * (_LARGE_LABELS + 1))
    return [legend, *rows, (indent, axis), (indent, times)][:height]


def _legend(picture: _Picture, width: int, glyphs: Glyphs) -> Line:
    """What each key means, with its figure; in short if there is too little room."""
    found: list[Span] = []
    for each in picture.told:
        found += [Span(f"  {each.curve.key} {each.name} ", each.curve.tone), each.figure]
    if width_of(tuple(found)) > width:
        found = [Span("  "), *_brief(picture, width - 2)]
    if picture.limit is not None:
        word, value = picture.limit
        found.append(Span(f"  {glyphs.rule} {word} {picture.scale.label(value)}", Tone.DIM))
    return tuple(found)


def _time_axis(
    end_s: float, span_s: float, width: int, glyphs: Glyphs, zone: tzinfo | None
) -> tuple[Span, Span]:
    """A line with ticks at round times, and the times of day below them."""
    axis, times = [glyphs.rule] * width, [" "] * width
    least_s = span_s * _TICK_WIDTH / max(1, width)
    step_s = next((each for each in _TICKS_S if each >= least_s), span_s)
    begin_s = end_s - span_s
    for number in range(math.ceil(begin_s / step_s), math.floor(end_s / step_s) + 1):
        x = int((number * step_s - begin_s) / span_s * width)
        clock = time_of_day(number * step_s, zone)
        if len(clock) // 2 <= x <= width - len(clock) // 2:
            axis[x - 1] = "+"
            begin = x - 1 - len(clock) // 2
            times[max(0, begin) : begin + len(clock)] = clock[max(0, -begin) :]
    return Span("".join(axis), Tone.DIM), Span("".join(times)[:width], Tone.DIM)
