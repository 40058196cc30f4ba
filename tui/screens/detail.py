"""What the screens behind the main one share: each of their tables has a filter and an order."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from textual.events import DescendantFocus, Resize

from tui.actions import Place, bindings
from tui.drawing import Line, Span, Tone
from tui.panes.instances import matches
from tui.screens.base import PaintedScreen
from tui.widgets import Bottom, TableView


@dataclass
class Choice:
    """What the operator chose to see of a table."""

    sort: str
    descending: bool
    wanted: str = ""


class DetailScreen(PaintedScreen):
    """Textual calls the handlers of every class that a screen has, those of its own class first:
    none of them calls the one that it extends.

    `SORTS`: by the id of each table the names of its orders, the first of which is in force, and
    whether the largest comes first unless the operator reverses it."""

    BINDINGS = bindings(Place.DETAIL, Place.ROWS)
    PLACES = (Place.DETAIL, Place.ROWS)
    SORTS: ClassVar[Mapping[str, Mapping[str, bool]]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.focused_table = next(iter(self.SORTS))
        self.choices = {name: Choice(*next(iter(of.items()))) for name, of in self.SORTS.items()}
        self._filter_before = ""

    @property
    def orders(self) -> Mapping[str, bool]:
        return self.SORTS[self.focused_table]

    @property
    def order(self) -> tuple[str, bool]:
        return self.choice.sort, self.choice.descending

    @property
    def choice(self) -> Choice:
        """That of the table with the focus."""
        return self.choices[self.focused_table]

    def table(self, name: str) -> TableView[Any]:
        return self.query_one(f"#{name}", TableView)

    def fill(
        self, name: str, rows: Sequence[Any], title: str, *facts: Span, follow: bool = False
    ) -> None:
        """Shows the rows that pass the filter, in the order that they have."""
        if wanted := self.choices[name].wanted:
            rows = [row for row in rows if matches(row.text, wanted)]
        self.put(name, rows, title, *facts, follow=follow)

    def put(
        self, name: str, rows: Sequence[Any], title: str, *facts: Span, follow: bool = False
    ) -> None:
        """Shows these rows, which have passed the filter."""
        line = (Span(title, Tone.STRONG), *facts, *self._chosen(name))
        filtered = bool(self.choices[name].wanted)
        self.table(name).show(rows, line, follow=follow, filtered=filtered)

    def _chosen(self, name: str) -> Line:
        chosen = self.choices[name]
        words = f"  sort:{chosen.sort}{'v' if chosen.descending else '^'}"
        return (Span(f"{words}  filter:{chosen.wanted or '-'}", Tone.DIM),)

    def on_mount(self) -> None:
        self.table(self.focused_table).focus()
        self.show()

    def on_resize(self, _: Resize) -> None:
        self.show()

    def on_descendant_focus(self, event: DescendantFocus) -> None:
        name = event.widget.id
        if name is not None and name in self.SORTS:
            self.focused_table = name

    def on_table_view_moved(self, _: TableView.Moved) -> None:
        self.show()

    def on_bottom_typed(self, event: Bottom.Typed) -> None:
        if event.done:
            self.table(self.focused_table).focus()
        if event.purpose == "/":
            self.filter_by(self._filter_before if event.given_up else event.text)
        else:
            self.show()
            if event.done and not event.given_up:
                self.console.run_command(event.text)

    # Keys

    def action_back(self) -> None:
        if not self.unmark():
            self.dismiss()

    def action_sort_reverse(self) -> None:
        self.choice.descending = not self.choice.descending
        self.show()

    def action_filter(self) -> None:
        self._filter_before = self.choice.wanted
        self.query_one(Bottom).ask("/", self._filter_before)

    def action_command(self) -> None:
        self.query_one(Bottom).ask(":", typing=self.console.begin_command())

    def action_freeze(self) -> None:
        self.console.toggle_freeze()

    def action_next_pane(self, steps: int) -> None:
        names = list(self.SORTS)
        place = (names.index(self.focused_table) + steps) % len(names)
        self.go_to(names[place])

    def go_to(self, name: str) -> None:
        self.table(name).focus()

    def sort_by(self, column: str) -> None:
        self.choice.sort = column
        self.choice.descending = self.SORTS[self.focused_table][column]
        self.show()

    def filter_by(self, text: str) -> None:
        self.choice.wanted = text
        self.show()
