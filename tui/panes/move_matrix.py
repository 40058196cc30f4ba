"""Who moves where: how many requests moved from each instance to each other in the last minute."""

from collections import Counter

from controller.api.text.quantities import printable
from tui.drawing import Glyphs, Line, Span, Tone, fitted
from tui.panes.instances import natural
from tui.state import DashboardState

MAX_ROWS = 16
HEAD_LINES = 2
_CELL = 6
_FROM = 9


def num_lines(state: DashboardState) -> int:
    """How many lines it takes: none while nothing has moved for a minute. It goes by the number of
    instances, so that it does not change with each move."""
    if not state.ways:
        return 0
    return HEAD_LINES + min(MAX_ROWS, len(state.status.instances if state.status else ()))


def lines(state: DashboardState, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """The sources below each other, the destinations side by side: those that moved most, where
    not all fit."""
    counts = Counter((way.source, way.destination) for way in state.ways)
    sources = _most({pair: pair[0] for pair in counts}, counts, height - HEAD_LINES)
    destinations = _most({pair: pair[1] for pair in counts}, counts, (width - _FROM) // _CELL)
    title = f"{glyphs.rule} "
    words = f" ({counts.total()} in the last minute) "
    name = "Who moves where"
    rule = glyphs.rule * max(0, width - len(title + name + words))
    most = max(counts.values(), default=0)
    found: list[Line] = [
        (Span(title, Tone.DIM), Span(name, Tone.STRONG), Span(words), Span(rule, Tone.DIM)),
        (
            Span(fitted(" FROM", _FROM, glyphs), Tone.DIM),
            *(
                Span(fitted(f">{printable(to)}", _CELL, glyphs, right=True), Tone.DIM)
                for to in destinations
            ),
        ),
    ]
    for source in sources:
        cells = [Span(fitted(f" {printable(source)}", _FROM, glyphs))]
        for to in destinations:
            count = counts[source, to]
            text = str(count) if count else "" if source == to else "."
            tone = Tone.DIM if not count else Tone.STRONG if count == most else Tone.PLAIN
            cells.append(Span(fitted(text, _CELL, glyphs, right=True), tone))
        found.append(tuple(cells))
    return found


def _most(
    members: dict[tuple[str, str], str], counts: Counter[tuple[str, str]], room: int
) -> list[str]:
    """The members with the most moves that fit, in the order of their names."""
    totals: Counter[str] = Counter()
    for pair, member in members.items():
        totals[member] += counts[pair]
    return sorted((member for member, _ in totals.most_common(max(0, room))), key=natural)
