"""Lets the operator choose what an order is to say, with what each choice would take."""

from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical

from controller.api.errors import LlumctlError
from controller.api.text.quantities import printable
from tui.actions import NOTHING, Place, Target, bindings
from tui.asking import AnyOrder, Choice, Choices, Estimate, Together
from tui.drawing import Column, Line, Span, Tone
from tui.screens.dialog import Dialog
from tui.screens.ready import can_draw
from tui.widgets import HEAD_LINES, Lines, TableView


@dataclass(frozen=True, slots=True)
class ChoiceRow:
    choice: Choice

    @property
    def id(self) -> str:
        return self.choice.name

    @property
    def target(self) -> Target:
        return NOTHING

    @property
    def text(self) -> str:
        return self.choice.name


COLUMNS: tuple[Column[ChoiceRow], ...] = (
    Column("name", "CHOICE", 8, lambda row, _: Span(printable(row.choice.name), Tone.STRONG)),
    Column("text", "", 10, lambda row, _: Span(printable(row.choice.text)), max_width=90),
)


class ChooseScreen(Dialog[AnyOrder | Together | None]):
    """Ends with the chosen order, or with None. The choices are those of the moment of the key, and
    keep their places."""

    BINDINGS: ClassVar[list[BindingType]] = bindings(Place.CHOICE)

    def __init__(self, found: Choices) -> None:
        super().__init__()
        self.found = found
        self._estimates: dict[str, Estimate] = {}
        self._asked: set[str] = set()

    @property
    def _table(self) -> TableView[ChoiceRow]:
        return self.query_one("#choices", TableView)

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog"):
            yield TableView[ChoiceRow](
                COLUMNS, self.console.glyphs, id="choices", empty="there is nothing to choose from"
            )
            yield Lines(id="words")

    def on_mount(self) -> None:
        self._table.focus()

    def show(self) -> None:
        if not can_draw(self):
            return
        self.query_one("#dialog").styles.width = self.frame_width
        room = max(1, self.size.height - 5)
        self._table.styles.height = min(room, HEAD_LINES + len(self.found.choices))
        rows = [ChoiceRow(each) for each in self.found.choices]
        self._table.show(rows, (Span(printable(self.found.question), Tone.STRONG),))
        keys = f"{self.console.key_of('row_open')} takes it, "
        keys += f"{self.console.key_of('choice_none')} leaves"
        self.query_one("#words", Lines).show([self._words(), (Span(keys, Tone.DIM),)])
        self._ask()

    def _words(self) -> Line:
        """What the choice under the cursor would take, or why none can be taken."""
        if locked := self.console.acting.locked():
            return (Span(f"not now: {locked}", Tone.BAD),)
        choice = self._chosen()
        if choice is None or choice.estimate is None:
            return ()
        estimate = self._estimates.get(choice.name)
        if estimate is None:
            return (Span(f"{choice.name}: asking what it would take ...", Tone.DIM),)
        tone = Tone.PLAIN if estimate.possible else Tone.BAD
        return (Span(printable(f"{choice.name}: {estimate.text}"), tone),)

    def _chosen(self) -> Choice | None:
        here = self._table.cursor_id
        return next((each for each in self.found.choices if each.name == here), None)

    def _ask(self) -> None:
        """Asks what the choice under the cursor would take, once."""
        choice = self._chosen()
        if choice is None or choice.estimate is None or choice.name in self._asked:
            return
        name = choice.name
        self._asked.add(name)
        self.console.ask(choice.estimate, lambda found, error: self._told(name, found, error))

    def _told(self, name: str, found: Estimate | None, error: Exception | None) -> None:
        if error is not None:
            words = error.message if isinstance(error, LlumctlError) else repr(error)
            found = Estimate(words, possible=False)
        if found is not None and self.is_attached:
            self._estimates[name] = found
            self.show()

    def on_table_view_moved(self, event: TableView.Moved) -> None:
        event.stop()
        self.show()

    def on_table_view_opened(self, event: TableView.Opened) -> None:
        event.stop()
        choice = self._chosen()
        if choice is None or self.console.acting.locked():
            self.show()
            return
        estimate = self._estimates.get(choice.name)
        if choice.estimate is None or (estimate is not None and estimate.possible):
            self.dismiss(choice.order)

    def action_no(self) -> None:
        self.dismiss(None)
