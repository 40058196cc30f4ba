"""What the screens share: a header and a bottom line, and tables with an order and a filter."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.events import DescendantFocus, Resize
from textual.message import Message
from textual.screen import Screen
from textual.widget import Widget

from controller.api.text.alarms import Alarm
from controller.api.text.events import matches
from controller.api.text.verdict_words import Severity, severity
from tui.actions import NOTHING, Place, Target, bindings, footer
from tui.drawing import Column, Line, Span, Tone
from tui.panes import events, header
from tui.screens.dialogs import SortScreen, can_draw, session_of
from tui.session import Session
from tui.widgets import Bottom, Lines, Note, TableView

WIDE = 110
"""From this width on, the header has two lines."""


def filter_word(wanted: str) -> Span:
    """`filter:TEXT` in the title of a table. A filter has a colour, because rows are missing."""
    return Span(f"filter:{wanted}", Tone.WARN) if wanted else Span("filter:-", Tone.DIM)


class PaintedScreen(Screen[None]):
    """A screen with a header above and a bottom line below, painted from the session."""

    PLACES: tuple[Place, ...] = ()

    class Wanted(Message):
        """The operator wants the screen of a request, or of an instance with a request in view."""

        def __init__(self, target: Target, *, instance: bool = False) -> None:
            super().__init__()
            self.target = target
            self.instance = instance

    NAME = ""
    """What the help calls the screen."""
    LEGEND: tuple[tuple[str, str], ...] = ()
    """Words of the screen, and what they mean, for the help."""
    filter_before = ""
    """The filter that applies again if the operator stops typing another one."""

    @property
    def session(self) -> Session:
        return session_of(self)

    def show(self) -> None:
        """Draws the present state of the session."""
        if can_draw(self):
            self.draw()

    def draw(self) -> None:
        raise NotImplementedError

    def on_screen_resume(self) -> None:
        """Draws what came while another screen covered this one."""
        self.show()

    def show_age(self) -> None:
        """Draws the same state a while later. A screen overrides this if its tables do not change
        with time."""
        self.show()

    def target(self) -> Target:
        """What the row under the cursor is about."""
        return NOTHING

    def marks(self) -> TableView[Any] | None:
        """The table with the focus, if its rows can be marked."""
        return None

    def targets(self) -> tuple[tuple[Target, ...], bool]:
        """What a key acts on, and whether that is marked rows: the marked rows of the table with
        the focus or, if there are none, the row under the cursor."""
        table = self.marks()
        marked = table.marked if table is not None else ()
        return (marked, True) if marked else ((self.target(),), False)

    def let_go(self) -> bool:
        """Takes all marks off or, if there are none, the filter of the table with the focus.
        Returns whether there was one of them."""
        table = self.marks()
        if table is not None and table.unmark():
            self.show()
            return True
        if self.filter:
            self.filter_by("")
            return True
        return False

    # The table with the focus

    @property
    def in_focus(self) -> Widget:
        """The widget that gets the keys, unless a command or a filter is typed."""
        raise NotImplementedError

    @property
    def orders(self) -> Mapping[str, bool]:
        """The columns by which the table can be sorted, each with whether the largest value comes
        first."""
        return {}

    @property
    def order(self) -> tuple[str, bool]:
        """The column by which the table is sorted now, and whether the largest value comes
        first."""
        return "", False

    def sort_by(self, column: str) -> None:
        """Sorts the table by one of `orders`."""

    @property
    def filter(self) -> str:
        return ""

    def filter_by(self, text: str) -> None:
        """Shows only the rows of the table that match."""

    # Keys

    def action_mark(self) -> None:
        table = self.marks()
        if table is None or not table.toggle_mark():
            self.session.say("this row cannot be marked")

    def action_sort(self) -> None:
        """Lets the operator choose a column. To choose the present column again reverses the
        order."""
        if self.orders:
            self.app.push_screen(SortScreen(self.orders, *self.order), self._sort)

    def _sort(self, column: str | None) -> None:
        if column == self.order[0]:
            self.action_sort_reverse()
        elif column is not None:
            self.sort_by(column)

    def action_sort_reverse(self) -> None:
        """Reverses the order of the table."""

    def action_filter(self) -> None:
        self.filter_before = self.filter
        self.query_one(Bottom).ask("/", self.filter_before)

    def on_bottom_typed(self, event: Bottom.Typed) -> None:
        """Follows the filter while it is typed. (What is typed after `:` is run by the
        application.)"""
        if event.done:
            self.in_focus.focus()
        if event.purpose == "/":
            self.filter_by(self.filter_before if event.given_up else event.text)
        else:
            self.show()

    def on_resize(self, _: Resize) -> None:
        self.show()

    # The frame

    def alarms(self) -> Sequence[Alarm]:
        return self.session.shown.alarms

    def paint_top(self) -> None:
        """Paints the frame of a screen that always has room for all of it."""
        self.paint_frame(2 if self.size.width >= WIDE else 1, self.verdict(), self.alarm_lines(1))

    def verdict(self) -> Line:
        """How the cluster is; empty if nothing says so."""
        session = self.session
        shown, live = session.shown, session.liveness()
        verdict = shown.status.verdict if shown.status is not None else None
        way = session.way_of(verdict.order) if verdict is not None and verdict.order else ""
        return header.verdict_line(shown, live, way, self.size.width, session.glyphs)

    def is_in_trouble(self) -> bool:
        status = self.session.shown.status
        verdict = status.verdict if status is not None else None
        is_bad = verdict is not None and severity(verdict) is not Severity.QUIET
        return is_bad or bool(self.alarms())

    def alarm_lines(self, num_lines: int) -> list[Line]:
        found = self.alarms()
        return header.alarm_lines(found, num_lines, self.size.width, self.session.glyphs)

    def paint_frame(
        self,
        header_lines: int,
        verdict: Line,
        alarms: Sequence[Line],
        notes: Sequence[Line] = (),
    ) -> None:
        """Paints the header and the bottom line. Below the header stand the verdict, if it is not
        empty, the alarms, the worst first, and the `notes`."""
        session, width = self.session, self.size.width
        live, count = session.liveness(), max(1, header_lines)
        self.set_class(live.is_stale, "-stale")
        top = self.query_one("#header", Lines)
        below = [*([verdict] if verdict else []), *alarms, *notes]
        top.styles.height = header_lines + len(below)
        shown, glyphs = session.shown, session.glyphs
        if live.replay is not None:
            lines = [header.replay_line(live.replay, live, width, glyphs)]
            lines += [header.vitals(shown.status, live, width)] * (count > 1)
        else:
            lines = header.lines(shown, live, width, count, glyphs, alarm=self.is_in_trouble())
        top.show([*lines, *below], bar=session.is_barred)
        self._paint_bottom()

    def _paint_bottom(self) -> None:
        session = self.session
        keys = footer(
            self.active_bindings,
            self.PLACES,
            targets=self.targets()[0],
            replay=session.replay is not None,
            changes=not session.is_read_only,
        )
        self.query_one(Bottom).say(session.bottom_line(keys, self.size.width))

    def on_descendant_focus(self, _: DescendantFocus) -> None:
        """Paints the bottom line again: the keys in force depend on the widget with the focus."""
        if can_draw(self):
            self._paint_bottom()


@dataclass(frozen=True)
class Table:
    """A table of a screen. `sorts`: the names of its orders, the first of which is in force at the
    beginning. For each order: whether the largest value comes first, unless the operator reverses
    it."""

    columns: Sequence[Column[Any]]
    sorts: Mapping[str, bool] = field(default_factory=dict)
    empty: str = ""
    note_of: Note[Any] = lambda _: None


class TableScreen(PaintedScreen):
    """What the screens behind the main one share: a header, facts if `FACTS` is set, and tables.

    Textual calls the handlers (`on_...`) of every class of a screen, the handlers of its own class
    first. So no handler calls the one that it extends.
    """

    BINDINGS = bindings(Place.DETAIL)
    PLACES: tuple[Place, ...] = (Place.DETAIL,)
    FACTS = False
    TABLES: ClassVar[Mapping[str, Table]]
    """The tables, by their ids. The first table has the focus at the beginning."""
    FOLLOWED = ""
    """The id of a table whose last line, which is its newest, stays in view until the operator
    moves the cursor elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.focused_table = next(iter(self.TABLES))
        self.follows = True
        self._asked_at_s: float | None = None

    def compose(self) -> ComposeResult:
        yield Lines(id="header")
        if self.FACTS:
            yield Lines(id="facts")
        for name, each in self.TABLES.items():
            yield TableView[Any](
                each.columns,
                self.session.glyphs,
                id=name,
                empty=each.empty,
                note_of=each.note_of,
            )
        yield Bottom()

    def table(self, name: str) -> TableView[Any]:
        return self.query_one(f"#{name}", TableView)

    @property
    def in_focus(self) -> TableView[Any]:
        return self.table(self.focused_table)

    def show_facts(self, lines: Sequence[Line], height: int | None = None) -> None:
        top = self.query_one("#facts", Lines)
        top.styles.height = len(lines) if height is None else height
        top.show(lines)

    def is_due(self, every_s: float = 0.0) -> bool:
        """Whether it is time to ask for what the screen shows. If so, the caller asks. That is as
        often as statuses come, but not more often than every `every_s`, and only while the screen
        is on top."""
        source = self.session.source
        now_s, every_s = source.now_s(), max(source.status_every_s, every_s)
        asked_at_s = self._asked_at_s
        if not self.is_current or (asked_at_s is not None and abs(now_s - asked_at_s) < every_s):
            return False
        self._asked_at_s = now_s
        return True

    def ask_soon(self) -> None:
        """Makes the next drawing ask in any case."""
        self._asked_at_s = None

    def on_mount(self) -> None:
        self.in_focus.focus()
        self.show()

    def on_table_view_moved(self, event: TableView.Moved) -> None:
        if event.view.id == self.FOLLOWED:
            self.follows = event.at_end
        self.show()

    def action_back(self) -> None:
        if not self.let_go():
            self.dismiss()


@dataclass
class TableChoice:
    """How the operator chose to see a table."""

    sort: str
    descending: bool
    wanted: str = ""


class DetailScreen(TableScreen):
    """A screen whose tables each have a filter and an order."""

    BINDINGS = bindings(Place.ROWS)
    PLACES = (Place.DETAIL, Place.ROWS)

    def __init__(self) -> None:
        super().__init__()
        self.choices = {
            name: TableChoice(*next(iter(of.sorts.items()))) for name, of in self.TABLES.items()
        }

    @property
    def orders(self) -> Mapping[str, bool]:
        return self.TABLES[self.focused_table].sorts

    @property
    def order(self) -> tuple[str, bool]:
        return self.choice.sort, self.choice.descending

    @property
    def filter(self) -> str:
        return self.choice.wanted

    @property
    def choice(self) -> TableChoice:
        """The operator's choice for the table with the focus."""
        return self.choices[self.focused_table]

    def fill(
        self, name: str, rows: Sequence[Any], title: str, *facts: Span, follow: bool = False
    ) -> None:
        """Shows those rows that pass the filter, in the order that they have."""
        if wanted := self.choices[name].wanted:
            rows = [row for row in rows if matches(row.text, wanted)]
        self.put(name, rows, title, *facts, follow=follow)

    def put(
        self,
        name: str,
        rows: Sequence[Any],
        title: str,
        *facts: Span,
        follow: bool = False,
        caption: Sequence[Line] = (),
    ) -> None:
        """Shows these rows, all of which have passed the filter. The caption takes the last lines
        of the table."""
        chosen = self.choices[name]
        order = f"  sort:{chosen.sort}{'v' if chosen.descending else '^'}"
        line = (
            Span(title, Tone.STRONG),
            *facts,
            Span(f"{order}  ", Tone.DIM),
            filter_word(chosen.wanted),
        )
        filtered = bool(chosen.wanted)
        self.table(name).show(rows, line, follow=follow, filtered=filtered, caption=caption)

    def fill_log(self, member_id: str, title: str, *, has_logs: bool) -> None:
        """Shows the last lines of a member's log in the table `log`. `has_logs`: as for
        `events.log_trouble`."""
        shown = self.session.shown
        lines = events.log_rows(shown, member_id)
        newest_first = self.choices["log"].descending
        self.fill(
            "log",
            lines[::-1] if newest_first else lines,
            title,
            *events.log_trouble(shown, member_id, has_logs=has_logs),
            follow=self.follows and not newest_first,
        )

    def on_descendant_focus(self, event: DescendantFocus) -> None:
        name = event.widget.id
        if name is not None and name in self.TABLES:
            self.focused_table = name

    # Keys

    def action_sort_reverse(self) -> None:
        self.choice.descending = not self.choice.descending
        self.show()

    def action_next_pane(self, steps: int) -> None:
        names = list(self.TABLES)
        place = (names.index(self.focused_table) + steps) % len(names)
        self.go_to(names[place])

    def go_to(self, name: str) -> None:
        self.table(name).focus()

    def sort_by(self, column: str) -> None:
        self.choice.sort = column
        self.choice.descending = self.orders[column]
        self.show()

    def filter_by(self, text: str) -> None:
        self.choice.wanted = text
        self.show()
