"""The requests of the cluster, or of one instance."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from textual.app import ComposeResult

from controller.api.text.quantities import printable
from controller.api.wire.requests import RequestList
from tui.actions import Target
from tui.drawing import Line, Span, Tone
from tui.panes import requests
from tui.panes.requests import RequestRow
from tui.screens.detail import DetailScreen
from tui.screens.listed import Listed
from tui.screens.ready import can_draw
from tui.state import DashboardState
from tui.widgets import Bottom, Lines, TableView


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
        self.paint_frame(2 if self.size.width >= 110 else 1, self.alarms())
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
