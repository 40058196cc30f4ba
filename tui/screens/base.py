"""What the dashboard's screens share."""

from textual.screen import Screen

from tui.actions.registry import Place
from tui.console import Console, console_of
from tui.panes import header
from tui.widgets.bottom import Bottom
from tui.widgets.lines import Lines


class PaintedScreen(Screen[None]):
    """A header above, a bottom line below, both painted from the application's state."""

    PLACES: tuple[Place, ...] = ()

    @property
    def console(self) -> Console:
        return console_of(self)

    def paint_frame(self, header_lines: int) -> None:
        app = self.console
        self.set_class(app.is_stale, "-stale")
        top = self.query_one("#header", Lines)
        top.styles.height = header_lines
        lines = header.lines(
            app.shown, app.liveness(), self.size.width, max(1, header_lines), app.glyphs
        )
        top.show(lines, bar=app.is_barred)
        self.query_one(Bottom).say(app.bottom_line(*self.PLACES))
