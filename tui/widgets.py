"""The widgets of all screens: lines of text, the bottom line, and a table that scrolls by itself.

The widgets paint toned text, whose colours come from the theme, and repaint only what changed.
"""

from collections.abc import Callable, Sequence
from itertools import groupby, zip_longest
from operator import itemgetter
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from rich.segment import Segment
from rich.style import Style
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.events import Click, MouseScrollDown, MouseScrollUp, Resize
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Input

from controller.api.text.quantities import printable
from tui import drawing
from tui.actions import NOTHING, Place, Target, bindings
from tui.drawing import UNICODE, Column, Glyphs, Line, Placed, Span, Tone, encodable, num_cells
from tui.typed_commands import Typing

_COMPONENTS = {f"tone--{tone}" for tone in Tone} | {
    "tone--cursor",
    "tone--cursor-blurred",
    "tone--bar",
}


class Toned(Widget):
    """A widget that is painted in tones. It computes its styles once, and again when Textual says
    that they have changed: computing them each time took a quarter of the time of a frame."""

    COMPONENT_CLASSES = _COMPONENTS

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        self._styles: dict[tuple[Tone | None, str], Style] = {}

    def notify_style_update(self) -> None:
        self._styles.clear()
        super().notify_style_update()

    def strip_of(self, line: Line, over: str = "", *, fits: bool = False) -> Strip:
        """A line in the widget's width. Neighbouring pieces of the same style are joined, because
        each style costs some 20 bytes on the way to the terminal. `over`: a component that lies on
        top of every tone, such as a cursor. `fits`: whether it is known that the whole line can be
        encoded and has room."""
        width = self.outer_size.width
        if not fits:
            line = self._encodable(line)
        segments: list[Segment] = []
        for tone, pieces in groupby(line, key=itemgetter(1)):
            text = "".join([text for text, _ in pieces])
            segments.append(Segment(text, self.style_of(tone, over)))
        length = num_cells("".join([text for text, _ in line]))
        if length < width:
            segments.append(Segment(" " * (width - length), self.style_of(None, over)))
        strip = Strip(segments, max(length, width))
        return strip if length <= width else strip.adjust_cell_length(width)

    def _encodable(self, line: Line) -> Line:
        glyphs = getattr(self.app, "glyphs", UNICODE)
        return tuple(Span(encodable(text, glyphs), tone) for text, tone in line)

    def style_of(self, tone: Tone | None, over: str = "") -> Style:
        found = self._styles.get((tone, over))
        if found is None:
            found = self.rich_style
            for component in (f"tone--{tone}" if tone else "", over):
                if component:
                    found += self.get_component_rich_style(component, partial=True)
            self._styles[tone, over] = found
        return found


class Lines(Toned):
    """A few lines of text: the header, an instance's facts."""

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        self._lines: list[Line] = []
        self._bar = False

    def show(self, lines: Sequence[Line], *, bar: bool = False) -> None:
        """Paints those lines that differ from the painted ones. `bar`: the first line is
        highlighted in its whole width."""
        if bar != self._bar:
            self._bar = bar
            self.refresh()
        before, self._lines = self._lines, list(lines)
        changed = [
            Region(0, y, self.outer_size.width, 1)
            for y, (old, new) in enumerate(zip_longest(before, self._lines))
            if old != new
        ]
        if changed and self.outer_size.width:
            self.refresh(*changed)

    def render_line(self, y: int) -> Strip:
        line = self._lines[y] if y < len(self._lines) else ()
        return self.strip_of(line, "tone--bar" if self._bar and y == 0 else "")


class Prompt(Input):
    """One line of input; Esc gives up. While a command is typed, Tab and Shift-Tab complete it, and
    Up and Down bring back earlier commands."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "give_up", show=False),
        Binding("tab", "complete(1)", show=False),
        Binding("shift+tab", "complete(-1)", show=False),
        Binding("up", "history(1)", show=False),
        Binding("down", "history(-1)", show=False),
    ]
    typing: Typing | None = None
    """Completes the command that is typed; None if the text is no command."""

    class GivenUp(Message):
        pass

    def action_give_up(self) -> None:
        self.post_message(self.GivenUp())

    def action_complete(self, step: int) -> None:
        if self.typing is not None:
            self.put(self.typing.tab(self.value, step))

    def action_history(self, steps: int) -> None:
        if self.typing is not None:
            self.put(self.typing.history.go(steps, self.value))

    def put(self, text: str) -> None:
        self.value = text
        self.cursor_position = len(text)


class Bottom(Horizontal):
    """The bottom line. It shows the text that is being typed; if nothing is being typed, a message;
    and if there is no message, the keys. `purpose` is `:` or `/` while something is typed, else
    empty."""

    class Typed(Message):
        """Sent whenever the text changes, with `done` at Enter, and with `given_up` at Esc."""

        def __init__(self, purpose: str, text: str, *, done: bool, given_up: bool) -> None:
            super().__init__()
            self.purpose = purpose
            self.text = text
            self.done = done
            self.given_up = given_up

    def __init__(self) -> None:
        super().__init__(id="bottom")
        self.purpose = ""
        self._typing: Typing | None = None

    def compose(self) -> ComposeResult:
        yield Lines(id="keys")
        prompt = Prompt(id="prompt", compact=True, select_on_focus=False)
        prompt.cursor_blink = False
        prompt.display = False
        yield prompt
        hints = Lines(id="hints")
        hints.display = False
        yield hints

    def say(self, line: Line) -> None:
        self.query_one("#keys", Lines).show(
            [(Span(self.purpose, Tone.STRONG),) if self.purpose else line]
        )

    def ask(self, purpose: str, text: str = "", typing: Typing | None = None) -> None:
        """Lets the operator type. `typing` completes a command; None if the text is no command."""
        self.purpose = purpose
        self._typing = typing
        keys, prompt = self.query_one("#keys", Lines), self.query_one(Prompt)
        keys.styles.width = 2
        prompt.typing = typing
        prompt.put(text)
        prompt.display = True
        self.query_one("#hints").display = typing is not None
        self._hint(text)
        self.screen.set_focus(prompt, scroll_visible=False)
        self.say(())

    def take(self, character: str) -> bool:
        """Types a character that went to the table, because the operator typed it before this line
        had the focus. Returns False if nothing is being typed."""
        if self.purpose:
            self.query_one(Prompt).insert_text_at_cursor(character)
        return bool(self.purpose)

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self._hint(event.value)
        if self.purpose:
            self.post_message(self.Typed(self.purpose, event.value, done=False, given_up=False))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self._end(event.value, given_up=False)

    def on_prompt_given_up(self, event: Prompt.GivenUp) -> None:
        event.stop()
        self._end("", given_up=True)

    def _hint(self, text: str) -> None:
        """Shows at the right end which words are valid next."""
        if self._typing is not None:
            words = printable(self._typing.hint(text, self.size.width // 2 - 1))
            self.query_one("#hints", Lines).show([(Span(words, Tone.DIM),)])

    def _end(self, text: str, *, given_up: bool) -> None:
        purpose, self.purpose = self.purpose, ""
        keys, prompt = self.query_one("#keys", Lines), self.query_one(Prompt)
        prompt.display = False
        self.query_one("#hints").display = False
        keys.styles.width = "1fr"
        self.post_message(self.Typed(purpose, text, done=True, given_up=given_up))


HEAD_LINES = 2
WHEEL_ROWS = 3
NO_MATCH = "nothing matches the filter"
_MARGIN, _MARK = Span(" "), Span("*", Tone.STRONG)


class Identified(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def text(self) -> str: ...

    @property
    def target(self) -> Target: ...


Item = TypeVar("Item", bound=Identified)
Cells = tuple[tuple[int, Span], ...]
Note = Callable[[Item], tuple[str, Span] | None]


class TableView(Toned, Generic[Item], can_focus=True):
    """A table that scrolls by itself: a title, column heads, rows, and a cursor, which is the id of
    a row.

    Until the operator moves the cursor, it lies on the first row, even if another row becomes the
    first: so the table shows the top of its order, the worst first. Once the operator has moved it,
    the cursor is held: it stays with its row through sorting and refreshing, until the operator
    goes to the first row.

    Only rows whose cells differ are painted again, each from the first such cell to the last.
    Textual begins each region of a line at the line's start, so one region costs fewer bytes than
    several.
    """

    BINDINGS = bindings(Place.TABLE)

    class Opened(Message):
        """The operator pressed Enter, or clicked twice, on a row about `target`."""

        def __init__(self, view: "TableView[Any]", item_id: str, target: Target) -> None:
            super().__init__()
            self.view = view
            self.item_id = item_id
            self.target = target

    class Copied(Message):
        """The operator wants the id of what the row is about."""

        def __init__(self, target: Target) -> None:
            super().__init__()
            self.target = target

    class HeadClicked(Message):
        """A click on the head of a column."""

        def __init__(self, view: "TableView[Any]", column: str) -> None:
            super().__init__()
            self.view = view
            self.column = column

    class Moved(Message):
        """The operator moved the cursor. `at_end`: whether it is on the last row now."""

        def __init__(self, view: "TableView[Any]", at_end: bool) -> None:
            super().__init__()
            self.view = view
            self.at_end = at_end

    def __init__(
        self,
        columns: Sequence[Column[Item]],
        glyphs: Glyphs,
        *,
        id: str,  # noqa: A002 - Textual's name
        note_of: Note[Item] = lambda _: None,
        is_heading: Callable[[Item], bool] = lambda _: False,
        empty: str = "",
    ) -> None:
        """`note_of(item)`: a column, and a text that replaces the cells from that column on, or
        None. The cursor never lies on a row that `is_heading`; such a row stays in view together
        with the row below it. `empty`: what a table without rows says."""
        super().__init__(id=id)
        self.items: Sequence[Item] = ()
        self.cursor_id: str | None = None
        self.held = False
        """Whether the cursor stays with its row; otherwise it lies on the first row."""
        self._marks: dict[str, str] = {}
        """The ids of the marked rows, and what each row was about when it was marked: a moment
        later another request may be the head of a queue."""
        self._wanted_id: str | None = None
        self._columns = columns
        self._glyphs = glyphs
        self._note_of = note_of
        self._is_heading = is_heading
        self._empty = empty
        self._title: Line = ()
        self._caption: Sequence[Line] = ()
        self._filtered = False
        self._no_match = NO_MATCH
        self._placed: tuple[Placed[Item], ...] = ()
        self._cursor = 0
        self._top = 0
        self._painted_title: Line = ()
        self._painted: list[tuple[Cells, bool]] = []
        """(cells, has the cursor) of each visible row."""

    # What is shown

    def show(
        self,
        items: Sequence[Item],
        title: Line,
        *,
        follow: bool = False,
        caption: Sequence[Line] = (),
        filtered: bool = False,
        no_match: str = NO_MATCH,
    ) -> None:
        """Shows these rows. `follow`: whether the cursor stays on the last row. When following
        ends, the cursor is held on that row. The caption takes the last lines. `filtered`: whether
        a filter may have left rows out; `no_match`: what the table says if it left out all."""
        is_new = (filtered, no_match) != (self._filtered, self._no_match)
        if is_new or len(caption) != len(self._caption):
            self.refresh()
        elif list(caption) != list(self._caption) and self.outer_size.width:
            width, height = self.outer_size
            self.refresh(Region(0, height - len(caption), width, len(caption)))
        self._caption, self._filtered, self._no_match = caption, filtered, no_match
        self.items = items
        if self._marks:
            subjects = {item.id: item.target.subject for item in items}
            self._marks = {k: v for k, v in self._marks.items() if subjects.get(k) == v}
        if self._wanted_id is not None and any(item.id == self._wanted_id for item in items):
            self.cursor_id, self.held, self._wanted_id = self._wanted_id, True, None
        if follow:
            self._cursor = max(0, len(items) - 1)
            self.held = True
        else:
            self._cursor = self._beside_headings(self._place_of_cursor() if self.held else 0)
        self.cursor_id = items[self._cursor].id if items else None
        self._title = title
        self._scroll()
        self._repaint()

    def set_columns(self, columns: Sequence[Column[Item]]) -> None:
        if columns is not self._columns:
            self._columns = columns
            self._placed = drawing.place(columns, self.outer_size.width)
            self.refresh()

    def hold(self, item_id: str) -> None:
        """Moves the cursor to this row as soon as the row is there, unless the operator moves the
        cursor first."""
        self._wanted_id = item_id

    @property
    def target(self) -> Target:
        """What the row under the cursor is about."""
        return self.items[self._cursor].target if self.items else NOTHING

    @property
    def marked(self) -> tuple[Target, ...]:
        """What the marked rows are about, from top to bottom."""
        return tuple(item.target for item in self.items if item.id in self._marks)

    def toggle_mark(self) -> bool:
        """Marks the row under the cursor, or takes its mark off. Returns False if the row is about
        nothing that can be acted on."""
        target = self.target
        if self.cursor_id is None or not (target.instance_id or target.request_id):
            return False
        self.held = True
        if self._marks.pop(self.cursor_id, None) is None:
            self._marks[self.cursor_id] = target.subject
        self._repaint()
        return True

    def unmark(self) -> bool:
        """Takes all marks off; returns whether there were any."""
        were, self._marks = bool(self._marks), {}
        self._repaint()
        return were

    @property
    def position(self) -> str:
        """`3-12 of 64` if not all rows fit, else empty. Headings are not counted."""
        rows = self._num_visible()
        if not rows or len(self.items) <= rows:
            return ""
        before, shown = (
            sum(not self._is_heading(item) for item in self.items[:end])
            for end in (self._top, self._top + rows)
        )
        num_all = sum(not self._is_heading(item) for item in self.items)
        return f"{min(before + 1, shown)}-{shown} of {num_all}"

    def _place_of_cursor(self) -> int:
        """The place of the cursor's row, or the old place if that row is gone."""
        if self._cursor < len(self.items) and self.items[self._cursor].id == self.cursor_id:
            return self._cursor
        for place, item in enumerate(self.items):
            if item.id == self.cursor_id:
                return place
        return max(0, min(self._cursor, len(self.items) - 1))

    def _beside_headings(self, row: int, step: int = 1) -> int:
        """The nearest row in that direction that is not a heading; if there is none, the nearest in
        the other direction."""
        for direction in (step, -step):
            place = row
            while 0 <= place < len(self.items):
                if not self._is_heading(self.items[place]):
                    return place
                place += direction
        return row

    def _num_visible(self) -> int:
        return max(0, self.outer_size.height - HEAD_LINES - len(self._caption))

    def _scroll(self) -> None:
        """Scrolls just far enough to bring the cursor into view."""
        rows = max(1, self._num_visible())
        first = self._cursor
        while first > 0 and self._is_heading(self.items[first - 1]):
            first -= 1
        self._top = max(self._cursor - rows + 1, min(self._top, first))
        self._top = max(0, min(self._top, len(self.items) - rows))

    # Painting

    def _visible(self) -> list[tuple[Cells, bool]]:
        last = min(len(self.items), self._top + self._num_visible())
        return [
            (self._cells(item), self._top + place == self._cursor)
            for place, item in enumerate(self.items[self._top : last])
        ]

    def _cells(self, item: Item) -> Cells:
        cells = drawing.cells(self._placed, item, self._glyphs, self._note_of(item))
        if self._marks and item.id in self._marks:
            return ((0, _MARK), *cells)
        return cells

    def _repaint(self) -> None:
        """Repaints the regions that have changed."""
        before, self._painted = self._painted, self._visible()
        regions: list[Region] = []
        if (title := self._ruled_title()) != self._painted_title:
            self._painted_title = title
            regions.append(Region(0, 0, self.outer_size.width, 1))
        for y in range(max(len(before), len(self._painted))):
            old = before[y] if y < len(before) else None
            new = self._painted[y] if y < len(self._painted) else None
            regions += self._changes(HEAD_LINES + y, old, new)
        if regions and self.outer_size.width:
            self.refresh(*regions)

    def _changes(
        self, y: int, old: tuple[Cells, bool] | None, new: tuple[Cells, bool] | None
    ) -> list[Region]:
        if old == new:
            return []
        if old is None or new is None or old[1] != new[1] or len(old[0]) != len(new[0]):
            return [Region(0, y, self.outer_size.width, 1)]
        changed = [
            (x, x + drawing.num_cells(span.text))
            for (x, span), was in zip(new[0], old[0], strict=True)
            if (x, span) != was
        ]
        first, last = changed[0][0], changed[-1][1]
        return [Region(first, y, last - first, 1)]

    def render_line(self, y: int) -> Strip:
        if y == 0:
            return self.strip_of(self._painted_title)
        if y == 1:
            return self.strip_of((Span(" "), *_spaced(self._placed, self._glyphs)))
        if (below := y - self.outer_size.height + len(self._caption)) >= 0:
            return self.strip_of(self._caption[below])
        if y - HEAD_LINES >= len(self._painted):
            words = self._no_match if self._filtered else self._empty
            text = f" {words}" if y == HEAD_LINES and not self.items else ""
            return self.strip_of((Span(text, Tone.DIM),))
        cells, is_cursor = self._painted[y - HEAD_LINES]
        over = ""
        if is_cursor:
            over = "tone--cursor" if self.has_focus else "tone--cursor-blurred"
        first = () if cells and not cells[0][0] else (_MARGIN,)
        return self.strip_of((*first, *(span for _, span in cells)), over, fits=True)

    def _ruled_title(self) -> Line:
        rule = self._glyphs.rule
        tone = Tone.STRONG if self.has_focus else Tone.DIM
        position = (Span(f"  {self.position}", Tone.DIM),) if self.position else ()
        marks = (Span(f"  {len(self._marks)} marked", Tone.STRONG),) if self._marks else ()
        title = (Span(f"{rule} ", tone), *self._title, *marks, *position)
        space = self.outer_size.width - drawing.width_of(title) - 1
        return (*title, Span(f" {rule * max(0, space)}", tone))

    def on_resize(self, _: Resize) -> None:
        self._placed = drawing.place(self._columns, self.outer_size.width)
        self._scroll()
        self._repaint()
        self.refresh()

    def on_focus(self) -> None:
        self._repaint()
        self.refresh()

    def on_blur(self) -> None:
        self._repaint()
        self.refresh()

    # Moving

    def action_move(self, rows: int) -> None:
        self._move_to(self._cursor + rows)

    def action_page(self, pages: int) -> None:
        self._move_to(self._cursor + pages * max(1, self._num_visible() - 1))

    def action_first(self) -> None:
        """Moves the cursor to the first row. From then on it lies on the first row, whichever row
        that is."""
        self._move_to(0, held=False)

    def action_last(self) -> None:
        self._move_to(len(self.items) - 1)

    def action_open(self) -> None:
        if self.cursor_id is not None and not self._is_heading(self.items[self._cursor]):
            self.held = True
            self.post_message(self.Opened(self, self.cursor_id, self.target))

    def action_copy(self) -> None:
        if self.items:
            self.post_message(self.Copied(self.target))

    def on_click(self, event: Click) -> None:
        if event.y == HEAD_LINES - 1:
            for each in self._placed:
                if each.x <= event.x < each.x + each.width:
                    self.post_message(self.HeadClicked(self, each.column.name))
            return
        row = event.y - HEAD_LINES + self._top
        if event.y < HEAD_LINES or row >= len(self.items) or self._is_heading(self.items[row]):
            return
        self._move_to(row)
        if event.chain == 2:
            self.action_open()

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        event.stop()
        self._move_to(self._cursor + WHEEL_ROWS)

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        event.stop()
        self._move_to(self._cursor - WHEEL_ROWS)

    def _move_to(self, row: int, *, held: bool = True) -> None:
        self.held, self._wanted_id = held, None
        if not self.items:
            return
        step = 1 if row >= self._cursor else -1
        self._cursor = self._beside_headings(max(0, min(row, len(self.items) - 1)), step)
        self.cursor_id = self.items[self._cursor].id
        self._scroll()
        self._repaint()
        self.post_message(self.Moved(self, self._cursor == len(self.items) - 1))


def _spaced(placed: Sequence[Placed[Item]], glyphs: Glyphs) -> Line:
    gap = Span(" " * drawing.GAP)
    heads = drawing.titles(placed, glyphs)
    return tuple(span for head in heads for span in (head, gap))
