"""What a command of the operator's own writes."""

from dataclasses import dataclass

from textual.app import ComposeResult
from textual.events import Resize

from controller.api.text.quantities import printable
from tui.actions import NOTHING, Place, Target, bindings
from tui.drawing import Column, Span, Tone
from tui.own_commands import Program, Run
from tui.screens.base import PaintedScreen
from tui.screens.ready import can_draw
from tui.widgets import Bottom, Lines, TableView


@dataclass(frozen=True, slots=True)
class OutputRow:
    number: int
    text: str
    target: Target = NOTHING

    @property
    def id(self) -> str:
        return str(self.number)


COLUMNS: tuple[Column[OutputRow], ...] = (
    Column("line", "WRITTEN", 10, lambda row, _: Span(printable(row.text)), max_width=1000),
)


class OutputScreen(PaintedScreen):
    """The program ends with the screen."""

    BINDINGS = bindings(Place.DETAIL)
    PLACES = (Place.DETAIL,)

    def __init__(self, run: Run, program: Program) -> None:
        super().__init__()
        self._ran = run
        self.program = program
        self._follows = True
        """Whether the newest line stays in view."""

    def compose(self) -> ComposeResult:
        yield Lines(id="header")
        yield TableView[OutputRow](COLUMNS, self.console.glyphs, id="output", empty="nothing yet")
        yield Bottom()

    def on_mount(self) -> None:
        table = self.query_one("#output", TableView)
        table.styles.height = "1fr"
        table.focus()
        self.program.start()
        self.show()

    def on_unmount(self) -> None:
        self.program.stop()

    def on_resize(self, _: Resize) -> None:
        self.show()

    def on_table_view_moved(self, event: TableView.Moved) -> None:
        self._follows = event.at_end

    def action_back(self) -> None:
        self.dismiss()

    def show(self) -> None:
        if not can_draw(self):
            return
        self.paint_frame(2 if self.size.width >= 110 else 1, self.alarms())
        program = self.program
        texts = list(program.lines)
        first = program.num_lines - len(texts)
        rows = [OutputRow(first + place, text) for place, text in enumerate(texts)]
        good = program.outcome in ("", "exit status 0")
        state = Span(f"  {printable(program.outcome) or 'running'}", Tone.DIM if good else Tone.BAD)
        name = Span(self._ran.command.name, Tone.STRONG)
        title = (name, state, Span(f"  {self._ran.line}", Tone.DIM))
        table = self.query_one("#output", TableView)
        table.show(rows, title, follow=self._follows)
