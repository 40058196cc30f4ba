"""One instance: its status, its requests, its history."""

from collections.abc import Mapping
from typing import ClassVar

from textual.app import ComposeResult

from tui.actions import Target
from tui.panes import events, requests
from tui.panes.events import HISTORY_COLUMNS, HistoryRow, LogRow, history_rows
from tui.panes.facts import facts
from tui.panes.requests import RequestRow
from tui.screens.base import can_draw
from tui.screens.requests import RequestsScreen
from tui.state import DashboardState
from tui.widgets import Bottom, Lines, TableView


class InstanceScreen(RequestsScreen):
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
