"""Screens that are one list: the keys, the log of this session, the log of a member, and what a
command of the operator's own writes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.events import Resize
from textual.screen import Screen

from controller.api.text.quantities import printable
from tui.actions import NOTHING, Action, Place, Target, bindings, keys_of, shown_key
from tui.console import Options, console_of
from tui.drawing import Column, Span, Tone
from tui.outbox import LOG_COLUMNS, LogRow, log_rows, whole
from tui.own_commands import Program, Run
from tui.panes import events
from tui.screens.base import DetailScreen, PaintedScreen, can_draw
from tui.widgets import Bottom, Lines, TableView

LEGEND: tuple[tuple[str, str], ...] = (
    ("FREENESS", "decode steps until memory is full; negative: too much wanted"),
    ("TREND", "freeness in the last 60 s, on one scale for all rows"),
    ("KV held +wanted", "# blocks held, = wanted too (queue, headroom); in percent"),
    ("PRIO", "running requests by priority level, the highest first"),
    ("HEADROOM", "blocks kept free beside a high priority, of all blocks"),
    ("TTFT99", "time to first token, 99th percentile; >9s: the head waits"),
    ("NEEDS FREE", "blocks that a queue head needs, and could have here"),
    ("WHY", "why it waits; fragmented: enough in all, not in one place"),
    ("reserved", "freeness below 0, but only because of its headroom"),
    ("!  >  +", "look at it; on its way out; on its way in"),
    ("/WORDS", "shows what has all of them; !WORD: what does not have it"),
)


@dataclass(frozen=True, slots=True)
class HelpRow:
    id: str
    name: str
    text: str
    target: Target = NOTHING


_HELP_COLUMNS: tuple[Column[HelpRow], ...] = (
    Column("name", "KEY", 17, lambda row, _: Span(row.name, Tone.STRONG)),
    Column("text", "WHAT", 20, lambda row, _: Span(row.text), max_width=400),
)


class HelpScreen(Screen[None]):
    """Every key, and what the columns mean. Lists the keys of `actions`, which are
    those that work on the screen below."""

    BINDINGS = bindings(Place.HELP)

    def __init__(self, actions: Sequence[Action]) -> None:
        super().__init__()
        self._actions = actions

    def compose(self) -> ComposeResult:
        app = console_of(self)
        yield TableView[HelpRow](_HELP_COLUMNS, app.glyphs, id="help")

    def on_mount(self) -> None:
        app = console_of(self)
        table = self.query_one(TableView)
        table.styles.height = "1fr"
        table.focus()
        title = Span(f"Help  ({app.key_of('help_close')} closes)", Tone.STRONG)
        table.show(_help_rows(self._actions, app.options), (title,))

    def action_back(self) -> None:
        self.dismiss()


def _help_rows(actions: Sequence[Action], options: Options) -> list[HelpRow]:
    found = [
        HelpRow(
            each.action_id,
            ", ".join(shown_key(name) for name in keys_of(each, options.keymap)),
            options.aimed(_help_text(each)),
        )
        for each in actions
        if each.keys
    ]
    typed = ", ".join(each.typed for each in actions if each.typed)
    legend = [*LEGEND, (":", typed)] if typed else LEGEND
    return found + [HelpRow(f"legend.{name}", name, text) for name, text in legend]


def _help_text(action: Action) -> str:
    if action.change is not None:
        return f"{action.text} ({action.change.command})"
    return f"{action.text} (replay)" if action.replay else action.text


class LogScreen(PaintedScreen):
    """The session's log: it does not vanish as messages do, and the row under the cursor stands
    whole below."""

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
        self.paint_top()
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


class MemberLogScreen(DetailScreen):
    """The last lines of a member's log, or the controller's, asked for as often as statuses
    come."""

    SORTS: ClassVar[Mapping[str, Mapping[str, bool]]] = {"log": {"time": False}}

    def __init__(self, member_id: str) -> None:
        super().__init__()
        self.member_id = member_id
        self._asked_at_s: float | None = None
        self._no_log = False
        self._follows = True
        """Whether the newest line stays in view."""

    def compose(self) -> ComposeResult:
        yield Lines(id="header")
        yield TableView[events.LogRow](
            events.LOG_COLUMNS, self.console.glyphs, id="log", empty="nothing yet"
        )
        yield Bottom()

    def target(self) -> Target:
        is_instance = self.member_id in self.console.shown.histories
        return Target(self.member_id) if is_instance else super().target()

    def show(self) -> None:
        if not can_draw(self):
            return
        self._ask()
        self.paint_top()
        lines = events.log_rows(self.console.shown, self.member_id)
        newest_first = self.choices["log"].descending
        self.table("log").styles.height = "1fr"
        self.fill(
            "log",
            lines[::-1] if newest_first else lines,
            f"Log of {printable(self.member_id)}",
            *events.log_trouble(self.console.shown, self.member_id, has_logs=not self._no_log),
            follow=self._follows and not newest_first,
        )

    def on_table_view_moved(self, event: TableView.Moved) -> None:
        self._follows = event.at_end

    def _ask(self) -> None:
        source = self.console.source
        now_s = source.now_s()
        due = self._asked_at_s is None or now_s - self._asked_at_s >= source.status_every_s
        if due and self.is_current:
            self._asked_at_s = now_s
            self._no_log = not source.ask_log(self.member_id)


@dataclass(frozen=True, slots=True)
class OutputRow:
    number: int
    text: str
    target: Target = NOTHING

    @property
    def id(self) -> str:
        return str(self.number)


_OUTPUT_COLUMNS: tuple[Column[OutputRow], ...] = (
    Column("line", "WRITTEN", 10, lambda row, _: Span(printable(row.text)), max_width=1000),
)


class OutputScreen(PaintedScreen):
    """What a command of the operator's own writes. The program ends with the screen."""

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
        yield TableView[OutputRow](
            _OUTPUT_COLUMNS, self.console.glyphs, id="output", empty="nothing yet"
        )
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
        self.paint_top()
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
