"""One request: how it stands, and its life with the reasons for each decision."""

from collections.abc import Mapping
from typing import ClassVar

from textual.app import ComposeResult

from controller.api.text.quantities import printable
from controller.api.wire.requests import ENDED_STATES, Explanation
from tui.actions import Target
from tui.drawing import Line, Span, Tone
from tui.panes import timeline
from tui.panes.timeline import TimelineRow
from tui.screens.detail import DetailScreen
from tui.screens.ready import can_draw
from tui.widgets import Bottom, Lines, TableView


class RequestScreen(DetailScreen):
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
        self.paint_frame(2 if width >= 110 else 1, self.alarms())
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
