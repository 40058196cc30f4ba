"""Other views of the whole cluster: its graphs on the whole screen, the heat of its instances, and
its alarms."""

from collections.abc import Mapping
from typing import ClassVar

from textual.app import ComposeResult

from tui.actions import Place, Target, bindings
from tui.drawing import Line, Span, Tone, width_of
from tui.panes import alarm_list, graphs, heat
from tui.screens.base import DetailScreen, PaintedScreen, Table
from tui.widgets import Bottom, Lines, TableView

_OF_TABLES = ("filter", "sort", "sort_reverse", "mark")
"""What only tables can do."""


class Canvas(Lines, can_focus=True):
    """Lines that get the keys of their screen."""


class CanvasScreen(PaintedScreen):
    """A screen of lines without a cursor, of which one of several is shown; Tab goes on to the
    next."""

    BINDINGS = bindings(Place.DETAIL, Place.ROWS)
    PLACES = (Place.DETAIL, Place.ROWS)
    NUM_VIEWS = 1

    def __init__(self) -> None:
        super().__init__()
        self.place = 0

    def compose(self) -> ComposeResult:
        yield Lines(id="header")
        yield Canvas(id="canvas")
        yield Bottom()

    @property
    def in_focus(self) -> Canvas:
        return self.query_one("#canvas", Canvas)

    def on_mount(self) -> None:
        self.in_focus.focus()
        self.show()

    def draw(self) -> None:
        self.paint_top()
        width, height = self.size.width, self.in_focus.outer_size.height
        self.in_focus.show(self.lines(width, height) if height else [])

    def lines(self, width: int, height: int) -> list[Line]:
        raise NotImplementedError

    def heading(self, words: str, hints: str) -> Line:
        rule = self.session.glyphs.rule
        line = (Span(f"{rule} ", Tone.DIM), Span(words, Tone.STRONG), Span(f"  {hints} ", Tone.DIM))
        return (*line, Span(rule * max(0, self.size.width - width_of(line)), Tone.DIM))

    # Keys

    def action_back(self) -> None:
        self.dismiss()

    def action_next_pane(self, steps: int) -> None:
        self.place = (self.place + steps) % self.NUM_VIEWS
        self.show()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action not in _OF_TABLES and super().check_action(action, parameters)


class GraphScreen(CanvasScreen):
    """One graph, with axes, a legend and its scale."""

    NUM_VIEWS = len(graphs.GRAPHS)

    def draw(self) -> None:
        self.session.ask_past(shown=True)
        super().draw()

    def lines(self, width: int, height: int) -> list[Line]:
        session, graph = self.session, graphs.GRAPHS[self.place]
        hints = (
            f"{session.key_of('graph_span')} 1, 5 or 15 min"
            f"  {session.key_of('pane_next')} next graph ({self.place + 1}/{self.NUM_VIEWS})"
        )
        shown, span_s = session.shown, session.graph_span_s
        zone = session.options.zone
        return [
            self.heading(graphs.title(graph, span_s), hints),
            *graphs.large(graph, shown, span_s, width, height - 1, session.glyphs, zone),
        ]


class HeatScreen(CanvasScreen):
    """A cell for each instance."""

    NUM_VIEWS = len(heat.HEATS)

    def lines(self, width: int, height: int) -> list[Line]:
        session, shown = self.session, heat.HEATS[self.place]
        others = "freeness, KV, TTFT"
        title = self.heading(f"Heat: {shown.title}", f"{session.key_of('pane_next')} {others}")
        alarmed = {alarm.subject for alarm in self.alarms()}
        if (status := session.shown.status) is not None and status.verdict is not None:
            alarmed.add(status.verdict.about)
        cells = heat.lines(session.shown, shown, alarmed, width, height - 3, session.glyphs)
        return [title, *cells, (), heat.legend(session.glyphs)]


class AlarmScreen(DetailScreen):
    """The alarms that are raised, and those that ended lately."""

    TABLES: ClassVar[Mapping[str, Table]] = {
        "alarms": Table(alarm_list.COLUMNS, {"time": True}, empty="no alarms")
    }

    def draw(self) -> None:
        session = self.session
        self.paint_top()
        rows = alarm_list.rows(session.shown, session.options.zone)
        num = sum(row.is_raised for row in rows)
        facts = Span(f"  {num} raised, {len(rows) - num} ended")
        if not self.choice.descending:
            rows.reverse()
        self.fill("alarms", rows, "Alarms", facts)

    def target(self) -> Target:
        return self.table("alarms").target

    def on_table_view_opened(self, event: TableView.Opened) -> None:
        self.post_message(self.Wanted(event.target))
