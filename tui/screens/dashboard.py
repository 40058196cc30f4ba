"""The main screen: instances, migrations, queue heads and events, and where these panes are
placed."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.events import DescendantFocus
from textual.geometry import Size

from controller.api.text.alarms import Alarm
from controller.api.text.events import matches
from controller.api.wire.requests import Event
from tui.actions import Place, Target, bindings
from tui.drawing import Line, Span, Tone
from tui.event_search import EventSearch
from tui.panes import events, graphs, header, instances, migrations, requests
from tui.panes.events import EventRow
from tui.panes.instances import ORDERS, SORTS, InstanceRow, Row
from tui.panes.migrations import MigrationRow
from tui.panes.requests import HeadRow
from tui.past import Past
from tui.screens.base import WIDE, PaintedScreen, filter_word
from tui.state import DashboardState
from tui.widgets import NO_MATCH, Bottom, Lines, TableView

TALL = 10
"""If the terminal is lower than this, only one pane is shown."""
MIN_FOR_ALARM = 6
HIGH = 40
"""From this height on, several alarms have lines."""
MOST_ALARMS = 3
MIN_FOR_GRAPHS = Size(120, 34)
"""From this width and height on, there is a strip of graphs."""
MIN_LOWER = 5
EMPTY, EMPTY_WIDTH = 3, 28
"""The room that an empty pane takes: the lines of its title, its heads and the words that it is
empty; and its width."""
MIN_BESIDE_MATRIX = 12
"""How many lines events keep below the matrix of moves."""


class Pane(StrEnum):
    """The panes of the main screen; the values are the ids of their tables."""

    INSTANCES = "instances"
    MIGRATIONS = "migrations"
    QUEUE = "queue"
    EVENTS = "events"


@dataclass(frozen=True, slots=True)
class Box:
    """The place of a pane. `gap`: the number of empty columns on its left."""

    width: int
    height: int
    gap: int = 0


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Which panes are visible, and where. Panes that are not in `boxes` are hidden. If the panes
    are side by side, moves are above queue heads, and events are to the right of both, below the
    matrix of moves if there is one."""

    header_lines: int
    verdict_lines: int
    alarm_lines: int
    scaling_lines: int
    graph_lines: int
    boxes: dict[Pane, Box]
    tabs: bool
    """Whether the lower panes share one place."""
    matrix: Box | None = None


def arrange(
    width: int,
    height: int,
    *,
    num_instances: int,
    held: bool = False,
    verdict: bool = False,
    num_alarms: int = 0,
    scaling: bool = False,
    tab: Pane,
    zoomed: Pane | None = None,
    expanded: bool = False,
    focused: Pane = Pane.INSTANCES,
    empty: Collection[Pane] = (),
    matrix_lines: int = 0,
    replay: bool = False,
) -> Arrangement:
    """Where the panes are placed, for any size of the terminal.

    `held`: whether there is a queue at the controller. `verdict`: whether there is one to show.
    `tab`: the lower pane that is shown if there is room for only one. `scaling`: whether
    auto-scaling has a line. `expanded`: events take the whole width below and half of the height.
    `empty` panes leave their room to the others. `matrix_lines`: the height of the matrix of moves,
    which has room only on a large screen. `replay`: the bar of a replay takes a line of the header
    at any width.
    """
    wide = width >= WIDE
    header_lines = 2 if (wide or replay) and height >= TALL else min(1, max(0, height - 2))
    most = MOST_ALARMS if height >= HIGH else int(height >= MIN_FOR_ALARM)
    verdict_lines = int(verdict and height >= MIN_FOR_ALARM)
    scaling_lines = int(scaling and height >= TALL)
    if zoomed is None and height < TALL:
        zoomed = focused
    has_graphs = (
        zoomed is None and width >= MIN_FOR_GRAPHS.width and height >= MIN_FOR_GRAPHS.height
    )
    lines = (
        header_lines,
        verdict_lines,
        min(num_alarms, most),
        scaling_lines,
        graphs.STRIP_LINES if has_graphs else 0,
    )
    room = max(1, height - sum(lines) - 1)
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
    # There is at most one queue head for each instance, and the controller's.
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


@dataclass
class View:
    """What the operator chose to see. New data does not change it."""

    sort: str = "freeness"
    descending: bool = False
    filters: dict[Pane, str] = field(default_factory=dict)
    focused: Pane = Pane.INSTANCES
    tab: Pane = Pane.QUEUE
    """The lower pane that is shown if there is room for only one."""
    zoomed: Pane | None = None
    expanded: bool = False
    """Whether events show causes and figures, in the whole width."""
    follow: bool = True
    """Whether the newest event stays in view."""

    def sort_by(self, column: str) -> None:
        """Sorts by a column, in the direction in which the first row is what an operator looks for.
        Choosing the same column again reverses the direction."""
        again = column == self.sort
        self.descending = not self.descending if again else ORDERS[column]
        self.sort = column

    def go_to(self, pane: Pane) -> None:
        self.focused = pane
        if pane is not Pane.INSTANCES:
            self.tab = pane
            self.expanded = self.expanded and pane is Pane.EVENTS
        if self.zoomed is not None:
            self.zoomed = pane

    def back(self) -> None:
        """Goes back one step: leaves the zoom or, if no pane is zoomed, goes to the instances."""
        if self.zoomed is not None:
            self.zoomed = None
        else:
            self.focused = Pane.INSTANCES


LEGEND: tuple[tuple[str, str], ...] = (
    ("FREENESS", "decode steps until memory is full; negative: too much wanted"),
    ("TREND", "freeness in the last 60 s, on one scale for all rows"),
    ("KV held +wanted", "a bar of blocks held, then those wanted too; in percent"),
    ("R+W TTFT99", "of a level: running + waiting requests, and their TTFT99"),
    ("PRIO", "running requests by priority level, the highest first"),
    ("HEADROOM", "blocks kept free for a high priority, of all blocks"),
    ("TTFT99", "time to first token, 99th percentile; >9s: the head waits"),
    ("NEEDS FREE", "blocks that a queue head needs, and could have here"),
    ("WHY", "why it waits; fragmented: enough in all, not in one place"),
    ("reserved", "freeness below 0, but only because of its headroom"),
    ("!  >  +", "look at it; on its way out; on its way in"),
)

_TITLES = {
    Pane.INSTANCES: "Instances",
    Pane.MIGRATIONS: "Migrations",
    Pane.QUEUE: "Queue heads",
    Pane.EVENTS: "Events",
}
_LEFT = (Pane.MIGRATIONS, Pane.QUEUE)
_TABS = (*_LEFT, Pane.EVENTS)
QUIET_S = 10.0

Found = tuple[list[Any], int, int]
"""The lines of a pane after the filter, the number of rows among these lines, and the number of
rows before the filter."""


class DashboardScreen(PaintedScreen):
    BINDINGS = bindings(Place.MAIN, Place.ROWS)
    PLACES = (Place.TABLE, Place.ROWS, Place.MAIN)
    NAME = "the main screen"
    LEGEND = LEGEND

    def __init__(self) -> None:
        super().__init__()
        self.view = View()
        self._event_search = EventSearch()
        self._arrangement: Arrangement | None = None
        self._graphed: tuple[Past, float, int, int] | None = None
        """What the strip of graphs was painted from."""

    def compose(self) -> ComposeResult:
        glyphs = self.session.glyphs
        yield Lines(id="header")
        yield Lines(id="graphs")
        yield TableView[Any](
            instances.columns(None, 0),
            glyphs,
            id=Pane.INSTANCES,
            note_of=instances.note,
            is_heading=instances.is_heading,
            empty="no instances yet",
        )
        with Horizontal(id="lower"):
            with Vertical(id="left"):
                yield TableView[MigrationRow](
                    migrations.COLUMNS, glyphs, id=Pane.MIGRATIONS, empty="nothing moves"
                )
                yield TableView[HeadRow](
                    requests.HEAD_COLUMNS, glyphs, id=Pane.QUEUE, empty="nobody waits"
                )
            with Vertical(id="right"):
                yield Lines(id="matrix")
                yield TableView[EventRow](
                    events.COLUMNS, glyphs, id=Pane.EVENTS, empty="nothing notable yet"
                )
        yield Bottom()

    def on_mount(self) -> None:
        self.table(Pane.INSTANCES).focus()
        self.show()

    def table(self, pane: Pane) -> TableView[Any]:
        return self.query_one(f"#{pane}", TableView)

    def target(self) -> Target:
        return self.in_focus.target

    def marks(self) -> TableView[Any]:
        return self.in_focus

    @property
    def in_focus(self) -> TableView[Any]:
        return self.table(self.view.focused)

    # Drawing

    def draw(self) -> None:
        session, view = self.session, self.view
        alarms, verdict = self.alarms(), self.verdict()
        found = self._rows(alarms)
        arrangement = arrange(
            self.size.width,
            self.size.height,
            num_instances=instances.num_lines(session.shown.status),
            held=session.shown.status is not None and session.shown.status.held is not None,
            verdict=bool(verdict),
            num_alarms=len(alarms),
            scaling=bool(self._scaling()),
            tab=view.tab,
            zoomed=view.zoomed,
            expanded=view.expanded,
            focused=view.focused,
            empty=_empty(session.shown, found),
            matrix_lines=migrations.num_matrix_lines(session.shown),
            replay=session.replay is not None,
        )
        self._place(arrangement)
        if (box := arrangement.matrix) is not None:
            self.query_one("#matrix", Lines).show(
                migrations.matrix_lines(session.shown, box.width, box.height, session.glyphs)
            )
        self._paint_frame(arrangement)
        self._paint_graphs(arrangement.graph_lines)
        for pane, (rows, num, num_all) in found.items():
            table = self.table(pane)
            is_events = pane is Pane.EVENTS
            table.show(
                rows,
                self._title(pane, num, num_all, arrangement),
                follow=is_events and view.follow,
                caption=self._rates(arrangement.boxes.get(pane)) if is_events else (),
                filtered=bool(view.filters.get(pane)),
                no_match=self._no_match if is_events else NO_MATCH,
            )

    def show_age(self) -> None:
        if self._arrangement is not None:
            self._paint_frame(self._arrangement)

    def _paint_frame(self, found: Arrangement) -> None:
        notes = [self._scaling()][: found.scaling_lines]
        verdict = self.verdict() if found.verdict_lines else ()
        self.paint_frame(found.header_lines, verdict, self.alarm_lines(found.alarm_lines), notes)

    def _paint_graphs(self, num_lines: int) -> None:
        """Paints the strip, if there is something new to show in it."""
        session = self.session
        session.ask_past(shown=bool(num_lines))
        now = (session.shown.past, session.graph_span_s, self.size.width, num_lines)
        if num_lines and now != self._graphed:
            lines = graphs.strip(session.shown, session.graph_span_s, now[2], session.glyphs)
            self.query_one("#graphs", Lines).show(lines)
        self._graphed = now

    def _scaling(self) -> Line:
        session = self.session
        now_s = session.shown.controller_time_s(session.source.now_s()) or 0.0
        return header.scaling_line(session.shown.status, now_s, self.size.width, session.glyphs)

    def _rows(self, alarms: Sequence[Alarm]) -> dict[Pane, Found]:
        shown, glyphs, zone = self.session.shown, self.session.glyphs, self.session.options.zone
        named = self.session.names
        all_events, older = self._all_events(), self._older_events()
        named.learn(shown, routine=all_events, older=older)
        rows: dict[Pane, list[Any]] = {
            Pane.INSTANCES: instances.ordered(
                instances.rows(shown, glyphs, {alarm.subject for alarm in alarms}, named),
                self.view.sort,
                descending=self.view.descending,
            ),
            Pane.MIGRATIONS: migrations.rows(shown, named),
            Pane.QUEUE: requests.head_rows(shown, named),
            Pane.EVENTS: events.rows(shown, zone, named, routine=all_events, older=older),
        }
        found = {pane: self._passing(pane, all_rows) for pane, all_rows in rows.items()}
        counts = {pane: len(all_rows) for pane, all_rows in rows.items()}
        wanted = self.view.filters.get(Pane.EVENTS, "")
        counts[Pane.EVENTS] = max(shown.num_kept, self._event_search.num_searched(wanted))
        return {
            pane: (self._grouped(passing) if pane is Pane.INSTANCES else passing, len(passing), num)
            for (pane, passing), num in zip(found.items(), counts.values(), strict=True)
        }

    def _grouped(self, rows: list[InstanceRow]) -> list[Row]:
        filtered = bool(self.view.filters.get(Pane.INSTANCES))
        return instances.grouped(rows, self.session.shown.status, filtered=filtered)

    def _all_events(self) -> bool:
        """Whether routine events have lines too. They do if the operator expands or filters
        events."""
        return self.view.expanded or bool(self.view.filters.get(Pane.EVENTS))

    def _older_events(self) -> Sequence[Event]:
        wanted = self.view.filters.get(Pane.EVENTS, "")
        return self._event_search.events(wanted, self.session, self.show)

    @property
    def _no_match(self) -> str:
        wanted = self.view.filters.get(Pane.EVENTS, "")
        return self._event_search.no_match(wanted, self.session.shown.num_kept)

    def _rates(self, box: Box | None) -> list[Line]:
        if box is None or self._all_events() or box.height < 4:
            return []
        return events.rates(self.session.shown, box.width, 2 if box.height > 7 else 1)

    def _passing(self, pane: Pane, rows: list[Any]) -> list[Any]:
        if not (wanted := self.view.filters.get(pane)):
            return rows
        return [row for row in rows if matches(row.text, wanted)]

    def _place(self, arrangement: Arrangement) -> None:
        """Shows tables first, then moves the focus, then hides tables, because a hidden table
        cannot keep the focus."""
        view, boxes = self.view, arrangement.boxes
        if view.focused not in boxes:
            view.focused = next(iter(boxes))
        self.table(Pane.EVENTS).set_columns(
            events.EXPANDED_COLUMNS if view.expanded else events.COLUMNS
        )
        columns = instances.columns(self.session.shown.status, self.size.width)
        self.table(Pane.INSTANCES).set_columns(columns)
        moved = arrangement != self._arrangement
        if moved:
            self._arrangement = arrangement
            self._give_room(arrangement)
        if not self.query_one(Bottom).purpose and not self.table(view.focused).has_focus:
            self.table(view.focused).focus()
        if moved:
            for pane in Pane:
                self.table(pane).display = pane in boxes

    def _give_room(self, arrangement: Arrangement) -> None:
        """Gives each visible pane its room."""
        boxes = arrangement.boxes
        strip = self.query_one("#graphs")
        strip.display = bool(arrangement.graph_lines)
        strip.styles.height = arrangement.graph_lines
        for pane, box in boxes.items():
            table = self.table(pane)
            table.styles.width, table.styles.height = box.width, box.height
            table.styles.margin = (0, 0, 0, box.gap)
            table.display = True
        lower, left = self.query_one("#lower"), self.query_one("#left")
        lower.display = bool(boxes.keys() - {Pane.INSTANCES})
        on_left = [boxes[pane] for pane in _LEFT if pane in boxes]
        left.display = bool(on_left)
        if on_left:
            left.styles.width = on_left[0].width
        self.query_one("#right").display = Pane.EVENTS in boxes
        matrix, room = self.query_one("#matrix"), arrangement.matrix
        matrix.display = room is not None
        if room is not None:
            matrix.styles.height = room.height
            matrix.styles.margin = (0, 0, 0, room.gap)

    def _title(self, pane: Pane, num: int, num_all: int, arrangement: Arrangement) -> Line:
        view = self.view
        count = f"{num}/{num_all}" if num != num_all else f"{num}"
        if pane is Pane.INSTANCES or not arrangement.tabs:
            spans = [Span(_TITLES[pane], Tone.STRONG), Span(f" ({count})")]
        else:
            spans = [
                Span(f"[{self._tab(pane)}]", Tone.STRONG),
                *(Span(f"  {self._tab(other)}", Tone.DIM) for other in _TABS if other != pane),
                Span(f"  ({count})"),
            ]
        facts: list[Span] = []
        if pane is Pane.INSTANCES:
            order = instances.ORDER_WORDS.get(view.sort, view.sort)
            facts.append(Span(f"sort:{order}{'v' if view.descending else '^'}", Tone.DIM))
        if pane is Pane.INSTANCES or view.filters.get(pane):
            facts.append(filter_word(view.filters.get(pane, "")))
        if pane is Pane.EVENTS:
            word = self._hint("events_expand", "less" if view.expanded else "expand")
            facts.append(Span(word, Tone.DIM))
            if not view.follow:
                facts.append(Span(self._hint("events_follow", "follow"), Tone.DIM))
        return (*spans, *(span for fact in facts for span in (Span("  "), fact)))

    def _tab(self, pane: Pane) -> str:
        return f"{self.session.key_of(f'pane_{pane}')} {_TITLES[pane]}"

    def _hint(self, action_id: str, word: str) -> str:
        """`[e]xpand`, or `[x] expand` if the word does not begin with the key."""
        key = self.session.key_of(action_id)
        return f"[{key}]{word[1:]}" if key.lower() == word[0] else f"[{key}] {word}"

    # Keys

    def action_back(self) -> None:
        if not self.let_go():
            self.view.back()
            self.show()

    def action_sort_reverse(self) -> None:
        self.view.descending = not self.view.descending
        self.show()

    def action_follow(self) -> None:
        self.view.follow = not self.view.follow
        self.show()

    def action_expand(self) -> None:
        self.view.expanded = not self.view.expanded
        if self.view.expanded:
            self.view.go_to(Pane.EVENTS)
        self.show()

    def action_zoom(self) -> None:
        self.view.zoomed = None if self.view.zoomed else self.view.focused
        self.show()

    def action_pane(self, name: str) -> None:
        self.view.go_to(Pane(name))
        self.show()

    def action_next_pane(self, steps: int) -> None:
        panes = list(Pane)
        place = panes.index(self.view.focused)
        self.action_pane(panes[(place + steps) % len(panes)])

    @property
    def orders(self) -> Mapping[str, bool]:
        return instances.ORDERS

    @property
    def order(self) -> tuple[str, bool]:
        return self.view.sort, self.view.descending

    @property
    def filter(self) -> str:
        return self.view.filters.get(self.view.focused, "")

    def sort_by(self, column: str) -> None:
        if column != self.view.sort:
            self.view.sort_by(column)
        self.show()

    def filter_by(self, text: str) -> None:
        self.view.filters[self.view.focused] = text
        self.show()

    def show_events(self, text: str) -> None:
        """Shows all events or, if there is a text, the events with these words."""
        self.view.expanded = True
        self.view.go_to(Pane.EVENTS)
        self.filter_by(text)

    # What the widgets say

    def on_table_view_moved(self, event: TableView.Moved) -> None:
        if event.view.id == Pane.EVENTS:
            self.view.follow = event.at_end
        self.show()

    def on_table_view_head_clicked(self, event: TableView.HeadClicked) -> None:
        if event.view.id == Pane.INSTANCES and event.column in SORTS:
            self.view.sort_by(event.column)
            self.show()

    def on_table_view_opened(self, event: TableView.Opened) -> None:
        self.post_message(self.Wanted(event.target))

    def on_descendant_focus(self, event: DescendantFocus) -> None:
        if isinstance(event.widget, TableView) and event.widget.id is not None:
            self.view.focused = Pane(event.widget.id)


def _empty(state: DashboardState, found: Mapping[Pane, Found]) -> set[Pane]:
    """The panes without rows. The pane of queue heads counts as empty only when it has been without
    rows for a while, because requests come and go there from one status to the next."""
    panes = {Pane.MIGRATIONS} if not found[Pane.MIGRATIONS][2] else set()
    if state.time_s - state.head_seen_s > QUIET_S:
        panes.add(Pane.QUEUE)
    return panes
