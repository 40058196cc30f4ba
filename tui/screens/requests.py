"""The requests of the cluster, or of one instance."""

from collections.abc import Mapping
from typing import Any, ClassVar

from textual.app import ComposeResult

from controller.api.text.quantities import printable
from tui.actions.target import Target
from tui.drawing.format import Line, Span, Tone
from tui.feed.state import DashboardState
from tui.panes import request_list
from tui.panes.names import names
from tui.panes.request_list import RequestRow
from tui.screens.detail import DetailScreen
from tui.screens.ready import can_draw
from tui.widgets.bottom import Bottom
from tui.widgets.lines import Lines
from tui.widgets.table_view import TableView


class RequestsScreen(DetailScreen):
    """`instance_id`: of this instance alone; empty: of all."""

    SORTS: ClassVar[Mapping[str, Mapping[str, bool]]] = {"requests": request_list.SORTS}

    def __init__(self, instance_id: str = "") -> None:
        super().__init__()
        self.instance_id = instance_id
        self._asked_at_s: float | None = None
        self._impossible = False

    def compose(self) -> ComposeResult:
        yield Lines(id="header")
        yield TableView[RequestRow](
            request_list.COLUMNS, self.console.glyphs, id="requests", empty="none"
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
        self.paint_frame(2 if self.size.width >= 110 else 1, self.alarms())
        self.fill_requests(self.console.shown)

    def on_table_view_opened(self, event: TableView.Opened) -> None:
        row = next((row for row in event.view.items if row.id == event.item_id), None)
        if row is not None and row.target.request_id:
            self.console.open(row.target)

    def ask_requests(self) -> None:
        """Asks for the requests as often as statuses come; answers arrive with everything else."""
        app = self.console
        now_s = app.source.now_s()
        due = self._asked_at_s is None or abs(now_s - self._asked_at_s) >= app.source.status_every_s
        if due and self.is_current:
            self._asked_at_s = now_s
            self._impossible = not app.source.ask_requests(self.instance_id)
            self.ask_more()

    def ask_more(self) -> None:
        """Asks, just as often, for what else the screen shows."""

    def fill_requests(self, state: DashboardState) -> None:
        rows, facts = self._requests(state)
        chosen = self.choices["requests"]
        rows = request_list.ordered(rows, chosen.sort, descending=chosen.descending)
        self.fill("requests", rows, "Requests", *facts)

    def _requests(self, state: DashboardState) -> tuple[list[RequestRow], Line]:
        """In the controller's order; and how many there are, or why there are none."""
        if self._impossible:
            return [], (Span("  no requests are recorded up to here", Tone.DIM),)
        answer = state.requests
        if answer is None or answer.instance_id != self.instance_id:
            return [], (Span("  asking ...", Tone.DIM),)
        if answer.found is None:
            return [], (Span(f"  {printable(answer.reason)}", Tone.BAD),)
        rows = request_list.rows(answer.found, names(state, self.console.glyphs.ellipsis))
        count = f"{len(rows)} of {answer.found.num_matching}"
        spans = [Span(f" ({count if answer.found.num_matching > len(rows) else len(rows)})")]
        if silent := answer.found.silent_frontends:
            words = f"  without those of {', '.join(silent)}: no answer"
            spans.append(Span(printable(words), Tone.WARN))
        return rows, tuple(spans)
