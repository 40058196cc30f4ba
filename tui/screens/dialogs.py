"""Dialogs before an order is given: the choice of what it is to say, and its plan."""

from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import Button, Input

from controller.api.errors import LlumctlError
from controller.api.operations.order import Plan
from controller.api.text.quantities import printable
from tui.actions import NOTHING, Place, Target, bindings
from tui.asking import AnyOrder, Asked, Choice, Choices, Estimate, Together
from tui.drawing import Column, Line, Span, Tone, wrapped
from tui.own_commands import Run
from tui.screens.base import Dialog, can_draw
from tui.widgets import HEAD_LINES, Lines, TableView

_FRAME_LINES = 6
"""The border, the question, the buttons, and the lines between."""
_FRAME_WIDTH = 4
_Order = AnyOrder | Together | Run


class ConfirmScreen(Dialog[_Order | None]):
    """Asks before an order is given, and shows its plan.

    Ends with the order to give, which carries the plan's revision, or with None.

    The cursor is on Cancel. Where a name must be typed, neither `y` nor the other button does it
    without.
    """

    AUTO_FOCUS = "#no"
    BINDINGS: ClassVar[list[BindingType]] = bindings(Place.DIALOG)

    def __init__(self, order: Asked) -> None:
        super().__init__()
        self.wanted = order
        self.found: Plan[_Order] | None = None
        self._error = ""

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog"):
            yield Lines(id="words")
            name = Input(id="name", compact=True, select_on_focus=False)
            name.cursor_blink = False
            name.display = False
            yield name
            with Horizontal(id="buttons"):
                keys = self.console.key_of
                yield Button(f"Cancel ({keys('dialog_no')})", id="no", compact=True)
                yes = f"{self.wanted.word} ({keys('dialog_yes')})"
                yield Button(yes, id="yes", compact=True, disabled=True)

    def on_mount(self) -> None:
        self.query_one("#no").focus()
        self.console.ask(self.wanted.plan, self._planned)

    def _planned(self, plan: Plan[_Order] | None, error: Exception | None) -> None:
        if not self.is_attached:
            return
        self.found = plan
        if error is not None:
            told = error.message if isinstance(error, LlumctlError) else repr(error)
            self._error = printable(told)
        elif plan is not None and plan.order is not None:
            if plan.name_to_type:
                self.query_one("#name").display = True
                self.query_one("#name").focus()
            else:
                self.query_one("#yes", Button).disabled = False
        self.show()

    def show(self) -> None:
        if not can_draw(self):
            return
        width = self.frame_width
        lines = self._lines(max(1, self.size.height - _FRAME_LINES), width - _FRAME_WIDTH)
        words = self.query_one("#words", Lines)
        words.styles.height = len(lines)
        self.query_one("#dialog").styles.width = width
        words.show(lines)

    def _lines(self, room: int, width: int) -> list[Line]:
        found: list[Line] = [(Span(self.wanted.question, Tone.STRONG),), ()]
        if self._error:
            return [*found, (Span(self._error, Tone.BAD),), ()]
        if self.found is None:
            return [*found, (Span("asking what it would do ...", Tone.DIM),), ()]
        aimed = self.console.options.aimed
        plan = [(Span(line),) for text in self.found.lines for line in _wrapped(aimed(text), width)]
        last: list[Line] = [()]
        if self.found.name_to_type:
            words = f"Nothing else would serve. Type {self.found.name_to_type} and Enter to go on:"
            last = [(), (Span(words, Tone.BAD),)]
        if locked := self.console.acting.locked():
            last = [(Span(f"not now: {locked}", Tone.BAD),), *last]
        room -= len(found) + len(last)
        if len(plan) > room:
            kept = max(1, room - 1)
            plan = [*plan[:kept], (Span(f"  ... and {len(plan) - kept} more", Tone.DIM),)]
        return [*found, *plan, *last]

    # Keys

    def action_yes(self) -> None:
        if self.found is None or self.found.order is None or self.found.name_to_type:
            return
        self._give()

    def action_no(self) -> None:
        self.dismiss(None)

    def action_next(self) -> None:
        self.focus_next(Button)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        if event.button.id == "yes":
            self.action_yes()
        else:
            self.action_no()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        name = self.found.name_to_type if self.found is not None else ""
        if name and event.value.strip() == name:
            self._give()

    def _give(self) -> None:
        """A screen that went stale under the dialog gives no order."""
        if self.found is not None and not self.console.acting.locked():
            self.dismiss(self.found.order)
        else:
            self.show()


def _wrapped(text: str, width: int) -> list[str]:
    """What does not fit in one line goes on in the next, further to the right."""
    indent = " " * (len(text) - len(text.lstrip()))
    words = printable(text.lstrip())
    return wrapped(words, max(20, width), first=indent, later=f"{indent}    ")


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


_CHOICE_COLUMNS: tuple[Column[ChoiceRow], ...] = (
    Column("name", "CHOICE", 8, lambda row, _: Span(printable(row.choice.name), Tone.STRONG)),
    Column("text", "", 10, lambda row, _: Span(printable(row.choice.text)), max_width=90),
)


class ChooseScreen(Dialog[AnyOrder | Together | None]):
    """Lets the operator choose what an order is to say, with what each choice would take.

    Ends with the chosen order, or with None. The choices are those of the moment of the
    key, and keep their places.
    """

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
                _CHOICE_COLUMNS,
                self.console.glyphs,
                id="choices",
                empty="there is nothing to choose from",
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
