"""The session's log, as a screen: it does not vanish as messages do, and the row under the cursor
stands whole below."""

from textual.app import ComposeResult
from textual.events import Resize

from tui.actions import Place, bindings
from tui.drawing import Span, Tone
from tui.outbox import LOG_COLUMNS, LogRow, log_rows, whole
from tui.screens.base import PaintedScreen
from tui.screens.ready import can_draw
from tui.widgets import Bottom, Lines, TableView


class LogScreen(PaintedScreen):
    BINDINGS = bindings(Place.DETAIL)
    PLACES = (Place.DETAIL,)

    def compose(self) -> ComposeResult:
        yield Lines(id="header")
        yield TableView[LogRow](
            LOG_COLUMNS, self.console.glyphs, id="log", empty="nothing was done here yet"
        )
        yield Bottom()

    def on_mount(self) -> None:
        table = self.query_one("#log", TableView)
        table.styles.height = "1fr"
        table.focus()
        self.show()

    def on_resize(self, _: Resize) -> None:
        self.show()

    def action_back(self) -> None:
        self.dismiss()

    def show(self) -> None:
        if not can_draw(self):
            return
        self.paint_frame(2 if self.size.width >= 110 else 1, self.alarms())
        found = log_rows(self.console.calls, self.console.options.zone)
        hint = f"  {self.console.key_of('copy_id')} copies the command"
        title = (Span(f"Done here ({len(found)})", Tone.STRONG), Span(hint, Tone.DIM))
        table = self.query_one("#log", TableView)
        shown = table.cursor_id if table.held else None
        row = next((each for each in found if shown in (None, each.id)), None)
        caption = whole(row.call, self.size.width) if row else ()
        table.show(found, title, caption=caption)

    def on_table_view_moved(self, _: TableView.Moved) -> None:
        self.show()
