"""The screens behind a row: the requests of the cluster, one instance, and one request."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from textual.app import ComposeResult

from controller.api.text.quantities import printable
from controller.api.wire.requests import ENDED_STATES, Explanation, RequestList
from tui.actions import Target
from tui.drawing import Line, Span, Tone
from tui.panes import events, requests, timeline
from tui.panes.events import HISTORY_COLUMNS, HistoryRow, LogRow, history_rows
from tui.panes.facts import facts
from tui.panes.instances import matches
from tui.panes.requests import RequestRow, names
from tui.panes.timeline import TimelineRow
from tui.screens.base import DetailScreen, TableChoice, can_draw
from tui.state import DashboardState, RequestsArrived
from tui.widgets import Bottom, Lines, TableView

S_PER_REQUEST = 0.001
"""A list is asked for again after so long for each of its requests: fetching, parsing and drawing
one takes some 20 us."""


class Listed:
    """The requests of one answer as rows, made once: a screen is drawn several times before the
    next answer, and 2,000 rows each time were a third of a core."""

    def __init__(self) -> None:
        self._answer: RequestsArrived | None = None
        self._rows: list[RequestRow] = []
        self._chosen: Sequence[RequestRow] = ()
        self._chosen_by: tuple[str, bool, str] | None = None

    @property
    def every_s(self) -> float:
        """How often such a list is asked for at most."""
        return len(self._rows) * S_PER_REQUEST

    def take(self, answer: RequestsArrived, state: DashboardState, ellipsis: str) -> None:
        """`state` says which other requests the screens name."""
        if answer is not self._answer:
            self._answer, self._chosen_by = answer, None
            self._rows = requests.rows(answer.found, names(state, ellipsis, routine=False))

    def chosen(self, choice: TableChoice) -> Sequence[RequestRow]:
        """What passes the filter, in order; the same object until something about it changes."""
        by = (choice.sort, choice.descending, choice.wanted)
        if by != self._chosen_by:
            rows = requests.ordered(self._rows, choice.sort, descending=choice.descending)
            if choice.wanted:
                rows = [row for row in rows if matches(row.text, choice.wanted)]
            self._chosen, self._chosen_by = rows, by
        return self._chosen


class RequestsScreen(DetailScreen):
    """`instance_id`: of this instance alone; empty: of all."""

    SORTS: ClassVar[Mapping[str, Mapping[str, bool]]] = {"requests": requests.SORTS}

    def __init__(self, instance_id: str = "") -> None:
        super().__init__()
        self.instance_id = instance_id
        self._asked_at_s: float | None = None
        self._impossible = False
        self._listed = Listed()

    def compose(self) -> ComposeResult:
        yield Lines(id="header")
        yield TableView[RequestRow](
            requests.COLUMNS, self.console.glyphs, id="requests", empty="none"
        )
        yield Bottom()

    def target(self) -> Target:
        return self.table("requests").target

    def marks(self) -> TableView[Any] | None:
        """Requests can be marked, but nothing is done to what was."""
        return self.table("requests") if self.focused_table == "requests" else None

    def show(self) -> None:
        if not can_draw(self):
            return
        self.ask_requests()
        self.paint_top()
        self.fill_requests(self.console.shown)

    def on_table_view_opened(self, event: TableView.Opened) -> None:
        row = next((row for row in event.view.items if row.id == event.item_id), None)
        if row is not None and row.target.request_id:
            self.console.open(row.target)

    def ask_requests(self) -> None:
        """Asks for the requests as often as statuses come, and for many more seldom; answers arrive
        with everything else."""
        app = self.console
        now_s = app.source.now_s()
        every_s = max(app.source.status_every_s, self._listed.every_s)
        due = self._asked_at_s is None or abs(now_s - self._asked_at_s) >= every_s
        if due and self.is_current:
            self._asked_at_s = now_s
            self._impossible = not app.source.ask_requests(self.instance_id)
            self.ask_more()

    def ask_more(self) -> None:
        """Asks, just as often, for what else the screen shows."""

    def fill_requests(self, state: DashboardState) -> None:
        answer = state.requests
        rows: Sequence[RequestRow] = ()
        facts: Line
        if self._impossible:
            facts = (Span("  no requests are recorded up to here", Tone.DIM),)
        elif answer is None or answer.instance_id != self.instance_id:
            facts = (Span("  asking ...", Tone.DIM),)
        elif answer.found is None:
            facts = (Span(f"  {printable(answer.reason)}", Tone.BAD),)
        else:
            self._listed.take(answer, state, self.console.glyphs.ellipsis)
            rows = self._listed.chosen(self.choices["requests"])
            facts = self._counted(answer.found, answer.at_s)
        self.put("requests", rows, "Requests", *facts)

    def _counted(self, found: RequestList, at_s: float) -> Line:
        """How many there are and, where they are seldom asked for, since when."""
        num, source = len(found.requests), self.console.source
        count = f"{num} of {found.num_matching}" if found.num_matching > num else f"{num}"
        spans = [Span(f" ({count})")]
        if self._listed.every_s > source.status_every_s:
            age_s = max(0.0, source.now_s() - at_s)
            spans.append(Span(f"  {age_s:.0f}s ago", Tone.DIM))
        if silent := found.silent_frontends:
            words = f"  without those of {', '.join(silent)}: no answer"
            spans.append(Span(printable(words), Tone.WARN))
        return tuple(spans)


class InstanceScreen(RequestsScreen):
    """One instance: its status, its requests, its history, its log."""

    SORTS: ClassVar[Mapping[str, Mapping[str, bool]]] = {
        "requests": requests.SORTS,
        "history": {"time": True},
        "log": {"time": False},
    }
    TALL = 40
    """From so many lines on history and log have a place each; below they share one."""

    def __init__(self, instance_id: str, request_id: str = "") -> None:
        """`request_id`: the request whose row was opened, if any."""
        super().__init__(instance_id)
        self.request_id = request_id
        self._no_log = False
        self._history: tuple[object, object, list[HistoryRow]] | None = None
        """The rows of the history, and what they were made from."""
        self._lower = "history"
        self._follows = True
        """Whether the newest line of the log stays in view."""

    def compose(self) -> ComposeResult:
        glyphs = self.console.glyphs
        yield Lines(id="header")
        yield Lines(id="facts")
        yield TableView[RequestRow](requests.COLUMNS, glyphs, id="requests", empty="none")
        yield TableView[HistoryRow](HISTORY_COLUMNS, glyphs, id="history", empty="none")
        yield TableView[LogRow](events.LOG_COLUMNS, glyphs, id="log", empty="nothing yet")
        yield Bottom()

    def on_mount(self) -> None:
        if self.request_id:
            self.table("requests").hold(self.request_id)

    def target(self) -> Target:
        """The instance, and the request under the cursor."""
        table = self.focused if isinstance(self.focused, TableView) else self.table("requests")
        return Target(self.instance_id, table.target.request_id)

    def show(self) -> None:
        if not can_draw(self):
            return
        app = self.console
        self._place()
        self.ask_requests()
        self.paint_top()
        lines = facts(
            app.shown, self.instance_id, self.size.width, app.glyphs, self._request_shown()
        )
        top = self.query_one("#facts", Lines)
        top.styles.height = len(lines)
        top.show(lines)
        self.fill_requests(app.shown)
        history = self._history_rows(app.shown)
        newest_first = self.choices["history"].descending
        self.fill("history", history if newest_first else history[::-1], self._tabs("History"))
        self._fill_log(app.shown)

    def _history_rows(self, state: DashboardState) -> list[HistoryRow]:
        """Made anew only when something has happened: it looks at up to 1,200 entries."""
        of = state.histories.get(self.instance_id)
        changes = of.changes if of is not None else ()
        known = self._history
        if known is None or known[0] is not state.rare or known[1] is not changes:
            rows = history_rows(state, self.instance_id, self.console.options.zone)
            known = self._history = (state.rare, changes, rows)
        return known[2]

    def go_to(self, name: str) -> None:
        if name != "requests":
            self._lower = name
            self._place()
        if name == "log":
            self._asked_at_s = None
        super().go_to(name)
        self.focused_table = name  # a second Tab may come before the focus is told
        self.show()

    def on_table_view_moved(self, event: TableView.Moved) -> None:
        if event.view.id == "log":
            self._follows = event.at_end

    @property
    def _is_tall(self) -> bool:
        return self.size.height >= self.TALL

    def _place(self) -> None:
        """Where the screen is short, history and log have one place, and a table that is looked at
        gets more of the lines."""
        above = self._is_tall or self.focused_table == "requests"
        self.table("requests").styles.height = "2fr" if above else "1fr"
        for name in ("history", "log"):
            self.table(name).display = self._is_tall or self._lower == name
            self.table(name).styles.height = "1fr" if above else "2fr"

    def _tabs(self, name: str) -> str:
        """The title, with the name of the table that has the same place."""
        if self._is_tall:
            return name
        return "[History]  Log" if name == "History" else "History  [Log]"

    def _fill_log(self, state: DashboardState) -> None:
        """The newest line comes last, and is in view until the operator goes elsewhere."""
        lines = events.log_rows(state, self.instance_id)
        newest_first = self.choices["log"].descending
        self.fill(
            "log",
            lines[::-1] if newest_first else lines,
            self._tabs("Log"),
            *events.log_trouble(state, self.instance_id, has_logs=not self._no_log),
            follow=self._follows and not newest_first,
        )

    def _request_shown(self) -> str:
        """The request under the cursor, else the one whose row was opened."""
        table = self.table("requests")
        return (table.cursor_id if table.held else None) or self.request_id

    def ask_more(self) -> None:
        if self.table("log").display:
            self._no_log = not self.console.source.ask_log(self.instance_id)


class RequestScreen(DetailScreen):
    """One request: how it stands, and its life with the reasons for each decision."""

    SORTS: ClassVar[Mapping[str, Mapping[str, bool]]] = {"timeline": timeline.SORTS}

    def __init__(self, request_id: str) -> None:
        super().__init__()
        self.request_id = request_id
        self._known: Explanation | None = None
        self._asked_at_s: float | None = None
        self._impossible = False

    def compose(self) -> ComposeResult:
        yield Lines(id="header")
        yield Lines(id="facts")
        yield TableView[TimelineRow](
            timeline.COLUMNS, self.console.glyphs, id="timeline", note_of=timeline.note
        )
        yield Bottom()

    def show(self) -> None:
        if not can_draw(self):
            return
        app, width = self.console, self.size.width
        self._ask()
        self.paint_top()
        trouble = self._trouble()
        lines: list[Line] = [(Span(f" {printable(self.request_id)}", Tone.STRONG),)]
        rows: list[TimelineRow] = []
        if (found := self._known) is not None:
            lines = timeline.facts(found, width, app.glyphs)
            chosen = self.choice
            rows = timeline.ordered(
                timeline.rows(found, width), chosen.sort, descending=chosen.descending
            )
        top = self.query_one("#facts", Lines)
        top.styles.height = len(lines)
        top.show(lines)
        self.fill("timeline", rows, "Life", *trouble)

    def target(self) -> Target:
        """The request, and the instance that has it."""
        instance_id = self._known.request.instance_id if self._known else None
        return Target(instance_id or "", self.request_id)

    def on_table_view_opened(self, event: TableView.Opened) -> None:
        row = next((row for row in event.view.items if row.id == event.item_id), None)
        if row is not None:
            self.console.open_instance(row.target.instance_id, self.request_id)

    def _ask(self) -> None:
        """Asks as often as statuses come; of a live controller until the request has ended."""
        app = self.console
        now_s = app.source.now_s()
        ended = self._known is not None and self._known.request.state in ENDED_STATES
        ended = ended and app.liveness().replay is None  # there it may be before its end again
        due = self._asked_at_s is None or abs(now_s - self._asked_at_s) >= app.source.status_every_s
        if self.is_current and due and not ended:
            self._asked_at_s = now_s
            self._impossible = not app.source.ask_explanation(self.request_id)

    def _trouble(self) -> list[Span]:
        """Why there is nothing to show, or nothing new. Takes what has come."""
        if self._impossible:
            return [Span("  no requests are recorded up to here", Tone.DIM)]
        answer = self.console.shown.explanation
        if answer is None or answer.request_id != self.request_id:
            return [] if self._known else [Span("  asking ...", Tone.DIM)]
        if answer.found is None:
            return [Span(f"  {printable(answer.reason)}", Tone.BAD)]
        self._known = answer.found
        return []
