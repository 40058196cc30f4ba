"""The heat of the cluster: a cell for each instance, grouped by node, with a figure, and with a
tone that says how bad the figure is. Where there is no room for figures, a cell is a glyph: the
higher, the worse."""

from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from controller.api.settings.settings import ConsoleTable
from controller.api.text.quantities import latency, printable
from controller.api.text.status_words import in_need
from controller.api.wire.status import InstanceState, InstanceStatus
from tui import drawing
from tui.drawing import Glyphs, Line, Span, Tone, fitted, fullness, num_cells, severity
from tui.panes.instances import attention, natural
from tui.state import DashboardState

_SHORT_STEPS = 16.0
"""An instance with less freeness has little room left."""


@dataclass(frozen=True, slots=True)
class Heat:
    """`width`: that of its figures. `figure_of`: the text of an instance's cell, its tone, and its
    heat from 0 to 1."""

    title: str
    width: int
    figure_of: Callable[[InstanceStatus, ConsoleTable], tuple[str, Tone, float | None]]


def _freeness(item: InstanceStatus, _: ConsoleTable) -> tuple[str, Tone, float | None]:
    steps = item.freeness_steps
    if steps is None or item.state is InstanceState.DRAINING:
        return drawing.number(steps), Tone.DIM, None
    below = bisect_right(drawing.TREND_STEPS, steps - 1e-9)
    heat = 1.0 - below / len(drawing.TREND_STEPS)
    tone = Tone.BAD if in_need(item) else Tone.WARN if steps < _SHORT_STEPS else Tone.PLAIN
    return drawing.number(steps), tone, heat


def _kv(item: InstanceStatus, _: ConsoleTable) -> tuple[str, Tone, float | None]:
    share = item.kv_cache_usage
    words = "-" if share is None else f"{drawing.percent(share)}%"
    return words, fullness(share), share


def _ttft(item: InstanceStatus, limits: ConsoleTable) -> tuple[str, Tone, float | None]:
    seconds, limit_s = item.ttft_p99_s, limits.alarm_ttft_p99_s
    heat = None if seconds is None else min(1.0, seconds / (limit_s or 10.0))
    return latency(seconds), severity(seconds, limit_s), heat


HEATS: tuple[Heat, ...] = (
    Heat("freeness, the decode steps that are left", 8, _freeness),
    Heat("KV memory that is held", 5, _kv),
    Heat("P99 time to first token", 6, _ttft),
)


def lines(
    state: DashboardState,
    heat: Heat,
    alarmed: Collection[str],
    width: int,
    height: int,
    glyphs: Glyphs,
) -> list[Line]:
    """The cells, below the name of each node if there are several: with figures if all of them fit,
    else as glyphs. What has no room in the last line is counted there."""
    nodes = _by_node(state)
    for draw in (_with_figures, _as_glyphs):
        found: list[Line] = []
        for node, items in nodes.items():
            if len(nodes) > 1:
                found.append((Span(f" {_node_words(node, items)}", Tone.STRONG),))
            cells = {each.id: _cell(each, heat, state.limits, alarmed) for each in items}
            found += draw(cells, heat.width, width, glyphs)
        if len(found) <= height:
            return found
    left = len(found) - height + 1
    return [
        *found[: height - 1],
        (Span(f" {left} lines more: a larger screen has room", Tone.WARN),),
    ]


def _by_node(state: DashboardState) -> dict[str, list[InstanceStatus]]:
    found: dict[str, list[InstanceStatus]] = {}
    instances = state.status.instances if state.status else ()
    for item in sorted(instances, key=lambda each: (each.node, natural(each.id))):
        found.setdefault(item.node, []).append(item)
    return found


def _node_words(node: str, items: Sequence[InstanceStatus]) -> str:
    count = f"{len(items)} instance{'s' if len(items) > 1 else ''}"
    return printable(f"{node or 'no machine yet'}: {count}")


def _cell(
    item: InstanceStatus, heat: Heat, limits: ConsoleTable, alarmed: Collection[str]
) -> "_Cell":
    """The mark, the figure, the tone and the heat. An instance in a bad state, or with an alarm, is
    marked; a state that has no figures stands in their place."""
    figure, tone, share = heat.figure_of(item, limits)
    mark = attention(item)
    if mark in " =" and item.id in alarmed:
        mark = "!"
    if item.num_running_reqs is None:
        figure, share = str(item.state)[: heat.width], None
        tone = Tone.BAD if mark == "!" else Tone.WARN
    return mark, figure, tone, share


_Cell = tuple[str, str, Tone, float | None]


def _with_figures(
    cells: Mapping[str, _Cell], figure_width: int, width: int, glyphs: Glyphs
) -> list[Line]:
    """` !i-3 ▇  -196`"""
    ids = max(num_cells(printable(each)) for each in cells)

    def drawn(instance_id: str, cell: _Cell) -> Line:
        mark, figure, tone, share = cell
        mark_tone = Tone.BAD if mark == "!" else Tone.WARN
        return (
            Span(f" {mark}", mark_tone if mark.strip() else Tone.PLAIN),
            Span(f"{fitted(printable(instance_id), ids, glyphs)} ", Tone.DIM),
            Span(f"{_glyph(share, glyphs)}{figure:>{figure_width}}", tone),
        )

    return _in_rows([drawn(*each) for each in cells.items()], 2 + ids + 2 + figure_width, width)


def _as_glyphs(cells: Mapping[str, _Cell], _: int, width: int, glyphs: Glyphs) -> list[Line]:
    def drawn(cell: _Cell) -> Line:
        mark, _, tone, share = cell
        return (Span("!", Tone.BAD) if mark == "!" else Span(_glyph(share, glyphs), tone),)

    rows = _in_rows([drawn(each) for each in cells.values()], 1, width - 1)
    return [(Span(" "), *row) for row in rows]


def _in_rows(drawn: Sequence[Line], cell_width: int, width: int) -> list[Line]:
    across = max(1, (width - 1) // cell_width)
    return [
        tuple(chain.from_iterable(drawn[begin : begin + across]))
        for begin in range(0, len(drawn), across)
    ]


def _glyph(share: float | None, glyphs: Glyphs) -> str:
    if share is None:
        return "?"
    top = len(glyphs.trend) - 1
    return glyphs.trend[max(0, min(top, round(top * share)))]


def legend(glyphs: Glyphs) -> Line:
    """Which glyph is good and which is bad."""
    best, worst = glyphs.trend[0], glyphs.trend[-1]
    return (Span(f" {best} good .. {worst} bad   ! an alarm   > going   + coming", Tone.DIM),)
