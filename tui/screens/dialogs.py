"""The dialogs: frames above the screen from which they were opened.

An operator confirms the plan of an order, chooses what an order is to say, or chooses the order of
a table. (The dialog that changes a setting stands in `tui.screens.tuning`.)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen, Screen
from textual.widgets import Button, Input

from controller.api.errors import LlumctlError
from controller.api.operations.order import Order, Plan
from controller.api.text.quantities import printable
from tui.actions import NOTHING, Place, Target, bindings
from tui.asking import AnyOrder, Asked, Choice, Choices, Estimate, Together
from tui.drawing import ASCII, Column, Line, Span, Tone, wrapped
from tui.own_commands import Run
from tui.session import Session
from tui.widgets import HEAD_LINES, Lines, TableView

MAX_WIDTH = 100
_FRAME_LINES = 6
"""How many lines a dialog needs besides its contents: the border, the question, the buttons, and
the lines between them."""
_FRAME_WIDTH = 4
_Order = AnyOrder | Together | Run
Ended = TypeVar("Ended")


def session_of(screen: Screen[Any]) -> Session:
    session = getattr(screen.app, "session", None)
    assert isinstance(session, Session)
    return session


def can_draw(screen: Screen[Any]) -> bool:
    """Whether a screen's widgets exist. They are made after the screen, and they go one by one
    while statuses, sizes and the focus still change."""
    return screen.is_mounted and screen.display and bool(screen.size.width)


class Dialog(ModalScreen[Ended]):
    """A frame above the screen from which it was opened; all dialogs have the same width. A dialog
    is drawn when it opens, when its size changes, and with each status. A dialog that is left
    without a choice ends with None."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c,ctrl+q", "app.quit", show=False)]
    WIDTH = MAX_WIDTH

    @property
    def session(self) -> Session:
        return session_of(self)

    def show(self) -> None:
        if can_draw(self):
            width = min(self.WIDTH, self.size.width - 2)
            self.query_one("#dialog").styles.width = width
            self.draw(width)

    def draw(self, width: int) -> None:
        raise NotImplementedError

    def on_mount(self) -> None:
        self.set_class(self.session.glyphs is ASCII, "-ascii")
        self.show()

    def on_resize(self) -> None:
        self.show()

    def action_no(self) -> None:
        self.dismiss(None)


class ConfirmScreen(Dialog[_Order | None]):
    """Asks before an order is given, and shows its plan.

    The dialog ends with the order to give, which carries the plan's revision.

    The cursor is on Cancel. If a name must be typed, neither `y` nor the other button gives the
    order without the name.
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
                key_of = self.session.key_of
                yield Button(f"Cancel ({key_of('dialog_no')})", id="no", compact=True)
                yes = f"{self.wanted.word} ({key_of('dialog_yes')})"
                yield Button(yes, id="yes", compact=True, disabled=True)

    def on_mount(self) -> None:
        self.query_one("#no").focus()
        self.session.ask(self.wanted.plan, self._planned)

    def _planned(self, plan: Plan[_Order] | None, error: Exception | None) -> None:
        if not self.is_attached:
            return
        self.found = plan
        if error is not None:
            self._error = printable(why_of(error))
        elif plan is not None and plan.order is not None:
            if plan.name_to_type:
                self.query_one("#name").display = True
                self.query_one("#name").focus()
            else:
                self.query_one("#yes", Button).disabled = False
        self.show()

    def draw(self, width: int) -> None:
        lines = self._lines(max(1, self.size.height - _FRAME_LINES), width - _FRAME_WIDTH)
        words = self.query_one("#words", Lines)
        words.styles.height = len(lines)
        words.show(lines)

    def _lines(self, room: int, width: int) -> list[Line]:
        wanted = self.wanted
        question = wanted.named(wanted.question) if isinstance(wanted, Order) else wanted.question
        found: list[Line] = [(Span(question, Tone.STRONG),), ()]
        if self._error:
            return [*found, (Span(self._error, Tone.BAD),), ()]
        if self.found is None:
            return [*found, (Span("asking what it would do ...", Tone.DIM),), ()]
        aimed = self.session.options.aimed
        plan = [(Span(line),) for text in self.found.lines for line in _wrapped(aimed(text), width)]
        last: list[Line] = [()]
        if self.found.name_to_type:
            words = f"Nothing else would serve. Type {self.found.name_to_type} and Enter to go on:"
            last = [(), (Span(words, Tone.BAD),)]
        if locked := self.session.locked():
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
        """Gives the order, unless the screen went stale while the dialog was open."""
        if self.found is not None and not self.session.locked():
            self.dismiss(self.found.order)
        else:
            self.show()


def why_of(error: Exception) -> str:
    """Why the controller gave no answer, in words."""
    return error.message if isinstance(error, LlumctlError) else repr(error)


def _wrapped(text: str, width: int) -> list[str]:
    """The text in lines. A line that does not fit continues in the next one, further to the
    right."""
    indent = " " * (len(text) - len(text.lstrip()))
    words = printable(text.lstrip())
    return wrapped(words, max(20, width), first=indent, later=f"{indent}    ")


class ListDialog(Dialog[Ended]):
    """A list from which a row is chosen, and lines of words below it."""

    COLUMNS: tuple[Column[Any], ...]
    EMPTY = ""

    @property
    def choices(self) -> TableView[Any]:
        return self.query_one("#choices", TableView)

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog"):
            glyphs = self.session.glyphs
            yield TableView[Any](self.COLUMNS, glyphs, id="choices", empty=self.EMPTY)
            yield Lines(id="words")

    def on_mount(self) -> None:
        self.choices.focus()

    def fill(self, title: str, rows: Sequence[Any], words: Sequence[Line]) -> None:
        """Shows the rows, as far as there is room, and the words below them."""
        room = max(1, self.size.height - 3 - len(words))
        self.choices.styles.height = min(room, HEAD_LINES + len(rows))
        self.choices.show(rows, (Span(title, Tone.STRONG),))
        below = self.query_one("#words", Lines)
        below.styles.height = len(words)
        below.show(words)


@dataclass(frozen=True, slots=True)
class ChoiceRow:
    """A choice, with its estimate once that is known."""

    choice: Choice
    estimate: Estimate | None = None

    @property
    def is_possible(self) -> bool:
        """Whether the choice can be taken, as far as is known."""
        return self.estimate is None or self.estimate.possible

    @property
    def id(self) -> str:
        return self.choice.name

    @property
    def target(self) -> Target:
        return NOTHING

    @property
    def text(self) -> str:
        return self.choice.name


def _choice_name(row: ChoiceRow, _: int) -> Span:
    return Span(printable(row.choice.name), Tone.STRONG if row.is_possible else Tone.DIM)


def _choice_text(row: ChoiceRow, _: int) -> Span:
    """What the choice means; for an impossible one also the reason."""
    if row.estimate is None or row.estimate.possible:
        return Span(printable(row.choice.text))
    return Span(printable(f"{row.estimate.text}; {row.choice.text}"), Tone.DIM)


class ChooseScreen(ListDialog[AnyOrder | Together | None]):
    """Lets the operator choose what an order is to say, and shows what each choice would take.

    The dialog ends with the chosen order. The choices are made when the key is pressed, and do not
    move afterwards; those that turn out to be impossible become dim. Until the operator moves the
    cursor, it is on the first choice that may be possible.
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings(Place.CHOICE)
    COLUMNS: tuple[Column[ChoiceRow], ...] = (
        Column("name", "CHOICE", 8, _choice_name),
        Column("text", "", 10, _choice_text, max_width=90),
    )
    EMPTY = "there is nothing to choose from"

    def __init__(self, found: Choices) -> None:
        super().__init__()
        self.found = found
        self._estimates: dict[str, Estimate] = {}
        self._asked: set[str] = set()
        self._moved = False
        """Whether the operator has moved the cursor."""

    def draw(self, width: int) -> None:  # noqa: ARG002 - the table has its own width
        key_of = self.session.key_of
        keys = f"{key_of('row_open')} takes it, {key_of('choice_none')} leaves"
        rows = [ChoiceRow(each, self._estimates.get(each.name)) for each in self.found.choices]
        if rows and not self._moved:
            self.choices.hold(next((row for row in rows if row.is_possible), rows[0]).id)
        title = printable(self.found.question)
        self.fill(title, rows, [self._words(), (Span(keys, Tone.DIM),)])
        self._ask()

    def _words(self) -> Line:
        """What the choice under the cursor would take, or why nothing can be chosen."""
        if locked := self.session.locked():
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
        here = self.choices.cursor_id
        return next((each for each in self.found.choices if each.name == here), None)

    def _ask(self) -> None:
        """Asks, once for each choice, what it would take: the choice under the cursor at once, and
        the first choices one after the other."""
        if (chosen := self._chosen()) is not None:
            self._ask_about(chosen)
        if self._asked <= self._estimates.keys():
            first = self.found.choices[: self.found.num_asked]
            following = next((each for each in first if each.name not in self._asked), None)
            if following is not None:
                self._ask_about(following)

    def _ask_about(self, choice: Choice) -> None:
        if choice.estimate is None or choice.name in self._asked:
            return
        name = choice.name
        self._asked.add(name)
        self.session.ask(choice.estimate, lambda found, error: self._told(name, found, error))

    def _told(self, name: str, found: Estimate | None, error: Exception | None) -> None:
        if error is not None:
            found = Estimate(why_of(error), possible=False)
        if found is not None and self.is_attached:
            self._estimates[name] = found
            self.show()

    def on_table_view_moved(self, event: TableView.Moved) -> None:
        event.stop()
        self._moved = True
        self.show()

    def on_table_view_opened(self, event: TableView.Opened) -> None:
        event.stop()
        choice = self._chosen()
        if choice is None or self.session.locked():
            self.show()
            return
        estimate = self._estimates.get(choice.name)
        if choice.estimate is None or (estimate is not None and estimate.possible):
            self.dismiss(choice.order)


@dataclass(frozen=True, slots=True)
class SortRow:
    """A column by which a table can be sorted. `largest_first`: whether the largest value comes
    first once the column is chosen."""

    id: str
    largest_first: bool
    in_force: bool
    target: Target = NOTHING

    @property
    def text(self) -> str:
        return self.id


_SORT_WORDS = {"state": ("the best first", "the worst first")}
"""The words for both orders of a column that has no figures."""


def _direction(row: SortRow, _: int) -> Span:
    words = _SORT_WORDS.get(row.id, ("smallest first", "largest first"))[row.largest_first]
    return Span(f"in force; again: {words}" if row.in_force else words)


class SortScreen(ListDialog[str | None]):
    """The list from which the order of a table is chosen. The dialog ends with a column. The cursor
    is on the present column."""

    BINDINGS: ClassVar[list[BindingType]] = bindings(Place.SORTING)
    WIDTH = 60
    COLUMNS: tuple[Column[SortRow], ...] = (
        Column("column", "COLUMN", 10, lambda row, _: Span(row.id, Tone.STRONG)),
        Column("direction", "", 20, _direction, max_width=50),
    )

    def __init__(self, orders: Mapping[str, bool], column: str, descending: bool) -> None:
        """`orders`: for each column, whether the largest value comes first when that column is
        chosen; `descending`: whether the largest value comes first now."""
        super().__init__()
        self._column = column
        self._rows = [
            SortRow(name, not descending if name == column else largest, name == column)
            for name, largest in orders.items()
        ]

    def on_mount(self) -> None:
        self.choices.hold(self._column)

    def draw(self, width: int) -> None:  # noqa: ARG002 - the table has its own width
        key_of = self.session.key_of
        keys = f"{key_of('row_open')} takes it, {key_of('sort_same')} reverses"
        keys += f" {self._column}, {key_of('sort_none')} leaves"
        self.fill("Sort by", self._rows, [(Span(keys, Tone.DIM),)])

    def on_table_view_opened(self, event: TableView.Opened) -> None:
        event.stop()
        self.dismiss(event.item_id)

    def action_same(self) -> None:
        self.dismiss(self._column)
