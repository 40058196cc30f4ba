"""The list from which the order of a table is chosen."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical

from tui.actions import NOTHING, Place, Target, bindings
from tui.drawing import Column, Span, Tone
from tui.screens.dialog import Dialog
from tui.screens.ready import can_draw
from tui.widgets import HEAD_LINES, Lines, TableView

WIDTH = 60


@dataclass(frozen=True, slots=True)
class OrderRow:
    """`largest_first`: what choosing the column does."""

    id: str
    largest_first: bool
    in_force: bool
    target: Target = NOTHING

    @property
    def text(self) -> str:
        return self.id


_WORDS = {"state": ("the best first", "the worst first")}
"""Of orders without figures, either way."""


def _direction(row: OrderRow, _: int) -> Span:
    words = _WORDS.get(row.id, ("smallest first", "largest first"))[row.largest_first]
    return Span(f"in force; again: {words}" if row.in_force else words)


COLUMNS: tuple[Column[OrderRow], ...] = (
    Column("column", "COLUMN", 10, lambda row, _: Span(row.id, Tone.STRONG)),
    Column("direction", "", 20, _direction, max_width=50),
)


class SortScreen(Dialog[str | None]):
    """Ends with a column, or with None. The cursor is on the column in force."""

    BINDINGS: ClassVar[list[BindingType]] = bindings(Place.SORTING)

    def __init__(self, orders: Mapping[str, bool], column: str, descending: bool) -> None:
        """`orders`: of each column whether the largest comes first when it is chosen; `descending`:
        whether it does in the order in force."""
        super().__init__()
        self._column = column
        self._rows = [
            OrderRow(name, not descending if name == column else largest, name == column)
            for name, largest in orders.items()
        ]

    @property
    def _table(self) -> TableView[OrderRow]:
        return self.query_one("#orders", TableView)

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog"):
            yield TableView[OrderRow](COLUMNS, self.console.glyphs, id="orders", empty="")
            yield Lines(id="words")

    def on_mount(self) -> None:
        self._table.hold(self._column)
        self._table.focus()

    def show(self) -> None:
        if not can_draw(self):
            return
        self.query_one("#dialog").styles.width = min(WIDTH, self.frame_width)
        room = max(1, self.size.height - 4)
        self._table.styles.height = min(room, HEAD_LINES + len(self._rows))
        self._table.show(self._rows, (Span("Sort by", Tone.STRONG),))
        console = self.console
        keys = f"{console.key_of('row_open')} takes it, {console.key_of('sort_same')} reverses"
        keys += f" {self._column}, {console.key_of('sort_none')} leaves"
        self.query_one("#words", Lines).show([(Span(keys, Tone.DIM),)])

    def on_table_view_opened(self, event: TableView.Opened) -> None:
        event.stop()
        self.dismiss(event.item_id)

    def action_same(self) -> None:
        self.dismiss(self._column)

    def action_no(self) -> None:
        self.dismiss(None)
