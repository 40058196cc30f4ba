"""The last lines of a member's log, or the controller's, asked for as often as statuses come."""

from collections.abc import Mapping
from typing import ClassVar

from textual.app import ComposeResult

from controller.api.text.quantities import printable
from tui.actions import Target
from tui.drawing import Line, Span, Tone
from tui.panes import events
from tui.panes.events import LogRow
from tui.screens.detail import DetailScreen
from tui.screens.ready import can_draw
from tui.widgets import Bottom, Lines, TableView


class MemberLogScreen(DetailScreen):
    SORTS: ClassVar[Mapping[str, Mapping[str, bool]]] = {"log": {"time": False}}

    def __init__(self, member_id: str) -> None:
        super().__init__()
        self.member_id = member_id
        self._asked_at_s: float | None = None
        self._no_log = False
        self._follows = True
        """Whether the newest line stays in view."""

    def compose(self) -> ComposeResult:
        yield Lines(id="header")
        yield TableView[LogRow](
            events.LOG_COLUMNS, self.console.glyphs, id="log", empty="nothing yet"
        )
        yield Bottom()

    def target(self) -> Target:
        is_instance = self.member_id in self.console.shown.histories
        return Target(self.member_id) if is_instance else super().target()

    def show(self) -> None:
        if not can_draw(self):
            return
        self._ask()
        self.paint_frame(2 if self.size.width >= 110 else 1, self.alarms())
        lines = events.log_rows(self.console.shown, self.member_id)
        newest_first = self.choices["log"].descending
        self.table("log").styles.height = "1fr"
        self.fill(
            "log",
            lines[::-1] if newest_first else lines,
            f"Log of {printable(self.member_id)}",
            *self._told(),
            follow=self._follows and not newest_first,
        )

    def on_table_view_moved(self, event: TableView.Moved) -> None:
        self._follows = event.at_end

    def _ask(self) -> None:
        source = self.console.source
        now_s = source.now_s()
        due = self._asked_at_s is None or now_s - self._asked_at_s >= source.status_every_s
        if due and self.is_current:
            self._asked_at_s = now_s
            self._no_log = not source.ask_log(self.member_id)

    def _told(self) -> Line:
        """Why there are no lines."""
        answer = self.console.shown.log
        if self._no_log:
            return (Span("  a recording has no logs", Tone.DIM),)
        if answer is None or answer.member_id != self.member_id:
            return (Span("  asking ...", Tone.DIM),)
        return (Span(f"  {printable(answer.reason)}", Tone.BAD),) if answer.reason else ()
