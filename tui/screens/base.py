"""What the screens share: a header and a bottom line, tables with an order and a filter, and the
frame of the dialogs that open above a screen, of which the choice of an order is one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.events import DescendantFocus, Resize
from textual.screen import ModalScreen, Screen

from controller.api.text.alarms import Alarm
from tui.actions import NOTHING, Place, Target, bindings
from tui.console import Console, console_of
from tui.drawing import ASCII, Column, Line, Span, Tone
from tui.panes import header
from tui.panes.instances import matches
from tui.widgets import HEAD_LINES, Bottom, Lines, TableView

WIDE = 110
"""From this width on the header has two lines."""


def can_draw(screen: Screen[Any]) -> bool:
    """Whether a screen's widgets are there: they come after the screen, and go one by one while
    statuses, sizes and the focus still change."""
    return screen.is_mounted and screen.display and bool(screen.size.width)


class PaintedScreen(Screen[None]):
    """A header above, a bottom line below, both painted from the application's state."""

    PLACES: tuple[Place, ...] = ()

    @property
    def console(self) -> Console:
        return console_of(self)

    def show(self) -> None:
        """Draws the application's present state."""
        raise NotImplementedError

    def on_screen_resume(self) -> None:
        """What came while another screen covered this one."""
        self.show()

    def show_age(self) -> None:
        """Draws the same state a while later; a screen whose tables stay as they are says so."""
        self.show()

    def target(self) -> Target:
        """What the row under the cursor is about."""
        return NOTHING

    def marks(self) -> TableView[Any] | None:
        """The table with the focus, if its rows can be marked."""
        return None

    def action_act(self, action_id: str) -> None:
        targets, marked = self.targets()
        self.console.acting.act(action_id, *targets, marked=marked)

    def targets(self) -> tuple[tuple[Target, ...], bool]:
        """What a key acts on: the marked rows of the table with the focus, and True; without any
        the row under the cursor, and False."""
        table = self.marks()
        marked = table.marked if table is not None else ()
        return (marked, True) if marked else ((self.target(),), False)

    def action_mark(self) -> None:
        table = self.marks()
        if table is None or not table.toggle_mark():
            self.console.say("this row is nothing to mark")

    def unmark(self) -> bool:
        """Takes all marks off; whether there were any."""
        table = self.marks()
        return table is not None and table.unmark()

    def action_scale(self, number: str) -> None:
        self.console.acting.scale(number)

    def action_autoscale(self) -> None:
        self.console.acting.autoscale()

    def action_undo(self) -> None:
        self.console.acting.undo()

    def action_tune(self) -> None:
        self.console.show_tuning()

    def action_read_only(self) -> None:
        self.console.acting.toggle_read_only()

    def action_log(self) -> None:
        self.console.show_log()

    def action_speed(self, steps: int) -> None:
        if self.console.replay is not None:
            self.console.replay.change_speed(steps)

    def action_seek(self, seconds: float) -> None:
        if self.console.replay is not None:
            self.console.replay.seek(seconds)

    def action_seek_to(self) -> None:
        if self.console.replay is not None:
            self.query_one(Bottom).ask(":", "seek ", self.console.begin_command())

    def action_edge(self, direction: int) -> None:
        if self.console.replay is not None:
            self.console.replay.to_edge(direction)

    def action_step(self, frames: int) -> None:
        if self.console.replay is not None:
            self.console.replay.step(frames)

    def action_to_event(self, weight: str, direction: int) -> None:
        if self.console.replay is not None:
            self.console.replay.to_event(weight, direction)

    @property
    def orders(self) -> Mapping[str, bool]:
        """The columns by which the table with the focus can be sorted, and whether the largest
        comes first."""
        return {}

    @property
    def order(self) -> tuple[str, bool]:
        """The column by which it is sorted, and whether the largest comes first now."""
        return "", False

    def action_sort(self) -> None:
        """Chosen again, a column's order is reversed."""
        if self.orders:
            self.app.push_screen(SortScreen(self.orders, *self.order), self._sort)

    def _sort(self, column: str | None) -> None:
        if column == self.order[0]:
            self.action_sort_reverse()
        elif column is not None:
            self.sort_by(column)

    def action_sort_reverse(self) -> None:
        """The other end of the order first."""

    def sort_by(self, column: str) -> None:
        """Sorts that table by one of `sorts`."""

    def filter_by(self, text: str) -> None:
        """Shows those rows of that table that match."""

    def alarms(self) -> Sequence[Alarm]:
        return self.console.shown.alarms

    def paint_top(self) -> None:
        """The frame of a screen that always has room for all of it."""
        self.paint_frame(2 if self.size.width >= WIDE else 1, self.alarms())

    def paint_frame(
        self, header_lines: int, alarms: Sequence[Alarm], notes: Sequence[Line] = ()
    ) -> None:
        """`alarms`: the worst first; they get a line of their own, above `notes`."""
        app, width = self.console, self.size.width
        self.set_class(app.is_stale, "-stale")
        top = self.query_one("#header", Lines)
        top.styles.height = header_lines + bool(alarms) + len(notes)
        live, count = app.liveness(), max(1, header_lines)
        if live.replay is not None:
            lines = [header.replay_line(live.replay, live, width, app.glyphs)]
            lines += [header.vitals(app.shown.status, live, width)] * (count > 1)
        else:
            lines = header.lines(app.shown, live, width, count, app.glyphs, alarm=bool(alarms))
        if alarms:
            lines.append(header.alarm_line(alarms, width, app.glyphs))
        lines += notes
        top.show(lines, bar=app.is_barred)
        self.query_one(Bottom).say(app.bottom_line(*self.PLACES))


@dataclass
class TableChoice:
    """What the operator chose to see of a table."""

    sort: str
    descending: bool
    wanted: str = ""


class DetailScreen(PaintedScreen):
    """What the screens behind the main one share: each of their tables has a filter and an order.

    Textual calls the handlers of every class that a screen has, those of its own class first:
    none of them calls the one that it extends.

    `SORTS`: by the id of each table the names of its orders, the first of which is in force, and
    whether the largest comes first unless the operator reverses it."""

    BINDINGS = bindings(Place.DETAIL, Place.ROWS)
    PLACES = (Place.DETAIL, Place.ROWS)
    SORTS: ClassVar[Mapping[str, Mapping[str, bool]]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.focused_table = next(iter(self.SORTS))
        self.choices = {
            name: TableChoice(*next(iter(of.items()))) for name, of in self.SORTS.items()
        }
        self._filter_before = ""

    @property
    def orders(self) -> Mapping[str, bool]:
        return self.SORTS[self.focused_table]

    @property
    def order(self) -> tuple[str, bool]:
        return self.choice.sort, self.choice.descending

    @property
    def choice(self) -> TableChoice:
        """That of the table with the focus."""
        return self.choices[self.focused_table]

    def table(self, name: str) -> TableView[Any]:
        return self.query_one(f"#{name}", TableView)

    def fill(
        self, name: str, rows: Sequence[Any], title: str, *facts: Span, follow: bool = False
    ) -> None:
        """Shows the rows that pass the filter, in the order that they have."""
        if wanted := self.choices[name].wanted:
            rows = [row for row in rows if matches(row.text, wanted)]
        self.put(name, rows, title, *facts, follow=follow)

    def put(
        self, name: str, rows: Sequence[Any], title: str, *facts: Span, follow: bool = False
    ) -> None:
        """Shows these rows, which have passed the filter."""
        line = (Span(title, Tone.STRONG), *facts, *self._chosen(name))
        filtered = bool(self.choices[name].wanted)
        self.table(name).show(rows, line, follow=follow, filtered=filtered)

    def _chosen(self, name: str) -> Line:
        chosen = self.choices[name]
        words = f"  sort:{chosen.sort}{'v' if chosen.descending else '^'}"
        return (Span(f"{words}  filter:{chosen.wanted or '-'}", Tone.DIM),)

    def on_mount(self) -> None:
        self.table(self.focused_table).focus()
        self.show()

    def on_resize(self, _: Resize) -> None:
        self.show()

    def on_descendant_focus(self, event: DescendantFocus) -> None:
        name = event.widget.id
        if name is not None and name in self.SORTS:
            self.focused_table = name

    def on_table_view_moved(self, _: TableView.Moved) -> None:
        self.show()

    def on_bottom_typed(self, event: Bottom.Typed) -> None:
        if event.done:
            self.table(self.focused_table).focus()
        if event.purpose == "/":
            self.filter_by(self._filter_before if event.given_up else event.text)
        else:
            self.show()
            if event.done and not event.given_up:
                self.console.run_command(event.text)

    # Keys

    def action_back(self) -> None:
        if not self.unmark():
            self.dismiss()

    def action_sort_reverse(self) -> None:
        self.choice.descending = not self.choice.descending
        self.show()

    def action_filter(self) -> None:
        self._filter_before = self.choice.wanted
        self.query_one(Bottom).ask("/", self._filter_before)

    def action_command(self) -> None:
        self.query_one(Bottom).ask(":", typing=self.console.begin_command())

    def action_freeze(self) -> None:
        self.console.toggle_freeze()

    def action_next_pane(self, steps: int) -> None:
        names = list(self.SORTS)
        place = (names.index(self.focused_table) + steps) % len(names)
        self.go_to(names[place])

    def go_to(self, name: str) -> None:
        self.table(name).focus()

    def sort_by(self, column: str) -> None:
        self.choice.sort = column
        self.choice.descending = self.SORTS[self.focused_table][column]
        self.show()

    def filter_by(self, text: str) -> None:
        self.choice.wanted = text
        self.show()


# Dialogs

MAX_WIDTH = 100

Ended = TypeVar("Ended")


class Dialog(ModalScreen[Ended]):
    """A frame of one width above the screen that it was opened from. `show` draws it: when
    it opens, when its size changes, and with each status."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c,ctrl+q", "app.quit", show=False)]

    @property
    def console(self) -> Console:
        return console_of(self)

    @property
    def frame_width(self) -> int:
        return min(MAX_WIDTH, self.size.width - 2)

    def show(self) -> None:
        raise NotImplementedError

    def on_mount(self) -> None:
        self.set_class(self.console.glyphs is ASCII, "-ascii")
        self.show()

    def on_resize(self) -> None:
        self.show()


_SORT_WIDTH = 60


@dataclass(frozen=True, slots=True)
class OrderRow:
    """`largest_first`: what choosing the column does."""

    id: str
    largest_first: bool
    in_force: bool
    target: Target = NOTHING

    @property
    def text(self) -> str:
        return self.id


_ORDER_WORDS = {"state": ("the best first", "the worst first")}
"""Of orders without figures, either way."""


def _direction(row: OrderRow, _: int) -> Span:
    words = _ORDER_WORDS.get(row.id, ("smallest first", "largest first"))[row.largest_first]
    return Span(f"in force; again: {words}" if row.in_force else words)


_ORDER_COLUMNS: tuple[Column[OrderRow], ...] = (
    Column("column", "COLUMN", 10, lambda row, _: Span(row.id, Tone.STRONG)),
    Column("direction", "", 20, _direction, max_width=50),
)


class SortScreen(Dialog[str | None]):
    """The list from which the order of a table is chosen. Ends with a column, or with
    None. The cursor is on the column in force."""

    BINDINGS: ClassVar[list[BindingType]] = bindings(Place.SORTING)

    def __init__(self, orders: Mapping[str, bool], column: str, descending: bool) -> None:
        """`orders`: of each column whether the largest comes first when it is chosen; `descending`:
        whether it does in the order in force."""
        super().__init__()
        self._column = column
        self._rows = [
            OrderRow(name, not descending if name == column else largest, name == column)
            for name, largest in orders.items()
        ]

    @property
    def _table(self) -> TableView[OrderRow]:
        return self.query_one("#orders", TableView)

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog"):
            yield TableView[OrderRow](_ORDER_COLUMNS, self.console.glyphs, id="orders", empty="")
            yield Lines(id="words")

    def on_mount(self) -> None:
        self._table.hold(self._column)
        self._table.focus()

    def show(self) -> None:
        if not can_draw(self):
            return
        self.query_one("#dialog").styles.width = min(_SORT_WIDTH, self.frame_width)
        room = max(1, self.size.height - 4)
        self._table.styles.height = min(room, HEAD_LINES + len(self._rows))
        self._table.show(self._rows, (Span("Sort by", Tone.STRONG),))
        console = self.console
        keys = f"{console.key_of('row_open')} takes it, {console.key_of('sort_same')} reverses"
        keys += f" {self._column}, {console.key_of('sort_none')} leaves"
        self.query_one("#words", Lines).show([(Span(keys, Tone.DIM),)])

    def on_table_view_opened(self, event: TableView.Opened) -> None:
        event.stop()
        self.dismiss(event.item_id)

    def action_same(self) -> None:
        self.dismiss(self._column)

    def action_no(self) -> None:
        self.dismiss(None)
