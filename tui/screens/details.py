"""The screens behind the main one: requests, an instance, a request, logs, output, and help."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.screen import Screen

from controller.api.text.events import matches
from controller.api.text.quantities import printable
from controller.api.wire.requests import ENDED_STATES, Explanation, RequestList
from tui import outbox
from tui.actions import NOTHING, Action, Group, Place, Target, bindings, keys_of, shown_key
from tui.drawing import Column, Line, Span, Tone
from tui.own_commands import Program, Run
from tui.panes import events, instances, requests, timeline
from tui.panes.events import HISTORY_COLUMNS, HistoryRow, history_rows
from tui.panes.requests import Names, RequestRow
from tui.panes.timeline import TimelineRow
from tui.screens.base import DetailScreen, PaintedScreen, Table, TableChoice, TableScreen
from tui.screens.dialogs import session_of
from tui.session import Options
from tui.state import DashboardState, RequestsArrived
from tui.widgets import HEAD_LINES, TableView

S_PER_REQUEST = 0.001
"""The screen waits this much longer, for each request in a list, before it asks again: fetching,
parsing and drawing a request takes some 20 us."""


class Listed:
    """The requests of one answer, as rows, and the grid of their phases. Both are made only once: a
    screen is drawn several times before the next answer, and making 2,000 rows each time took a
    third of a core."""

    def __init__(self) -> None:
        self._answer: RequestsArrived | None = None
        self._rows: list[RequestRow] = []
        self._chosen: Sequence[RequestRow] = ()
        self._chosen_by: tuple[str, bool, str] | None = None
        self._grid: Sequence[Line] = ()
        self._grid_of: tuple[Sequence[RequestRow], int, int] | None = None

    @property
    def every_s(self) -> float:
        """The shortest time between two questions for this list."""
        return len(self._rows) * S_PER_REQUEST

    def take(self, answer: RequestsArrived, state: DashboardState, names: Names) -> None:
        """Takes an answer. The `state` says which of the requests move."""
        if answer is not self._answer:
            self._answer, self._chosen_by = answer, None
            names.learn(state, routine=False)
            self._rows = requests.rows(answer.found, names, state.status)

    def chosen(self, choice: TableChoice) -> Sequence[RequestRow]:
        """The rows that pass the filter, sorted. The same object is returned until something
        changes."""
        by = (choice.sort, choice.descending, choice.wanted)
        if by != self._chosen_by:
            rows = requests.ordered(self._rows, choice.sort, descending=choice.descending)
            if choice.wanted:
                rows = [row for row in rows if matches(row.text, choice.wanted)]
            self._chosen, self._chosen_by = rows, by
        return self._chosen

    def grid(self, width: int, height: int) -> Sequence[Line]:
        """The phases of the rows that were chosen last."""
        of = (self._chosen, width, height)
        if self._grid_of is None or self._grid_of[0] is not of[0] or self._grid_of[1:] != of[1:]:
            self._grid, self._grid_of = requests.phases(*of), of
        return self._grid


MIN_FOR_GRID = 10
"""A table of requests that is lower has no grid of their phases. In a higher one the grid takes at
most a line of each ten."""


class RequestsScreen(DetailScreen):
    """The requests of one instance, or of the cluster."""

    NAME = "the list of requests"
    LEGEND = requests.LEGEND
    TABLES: ClassVar[Mapping[str, Table]] = {
        "requests": Table(requests.COLUMNS, requests.SORTS, empty="none")
    }

    def __init__(self, instance_id: str = "") -> None:
        """`instance_id`: empty for the requests of all instances."""
        super().__init__()
        self.instance_id = instance_id
        self._impossible = False
        self._listed = Listed()

    def target(self) -> Target:
        return self.table("requests").target

    def marks(self) -> TableView[Any] | None:
        """The rows of other tables cannot be marked."""
        return self.table("requests") if self.focused_table == "requests" else None

    def draw(self) -> None:
        self.ask()
        self.paint_top()
        self.fill_requests(self.session.shown)

    def on_table_view_opened(self, event: TableView.Opened) -> None:
        if event.target.request_id:
            self.post_message(self.Wanted(event.target))

    def ask(self) -> None:
        """Asks for the requests: as often as statuses come, but seldom if the list is long. The
        answers arrive with everything else that is heard."""
        if self.is_due(self._listed.every_s):
            self._impossible = not self.session.source.ask_requests(self.instance_id)
            self.ask_more()

    def ask_more(self) -> None:
        """Asks, equally often, for what else the screen shows."""

    def fill_requests(self, state: DashboardState) -> None:
        answer = state.requests
        rows: Sequence[RequestRow] = ()
        facts: Line
        if self._impossible:
            facts = (Span("  no requests are recorded up to here", Tone.DIM),)
        elif answer is None or answer.instance_id != self.instance_id:
            facts = (Span("  asking ...", Tone.DIM),)
        elif answer.found is None:
            facts = (Span(f"  {printable(answer.reason)}", Tone.BAD),)
        else:
            self._listed.take(answer, state, self.session.names)
            rows = self._listed.chosen(self.choices["requests"])
            facts = self._counted(answer.found, answer.at_s)
        self.put("requests", rows, "Requests", *facts, caption=self._grid(rows))

    def _grid(self, rows: Sequence[RequestRow]) -> Sequence[Line]:
        """The phases of all requests, if there are more of them than the table has lines."""
        height = self.table("requests").outer_size.height
        if height < MIN_FOR_GRID or len(rows) <= height - HEAD_LINES:
            return ()
        return self._listed.grid(self.size.width, height // MIN_FOR_GRID)

    def _counted(self, found: RequestList, at_s: float) -> Line:
        """The number of requests; if the screen asks only seldom, also the age of the answer."""
        num, source = len(found.requests), self.session.source
        count = f"{num} of {found.num_matching}" if found.num_matching > num else f"{num}"
        spans = [Span(f" ({count})")]
        if self._listed.every_s > source.status_every_s:
            age_s = max(0.0, source.now_s() - at_s)
            spans.append(Span(f"  {age_s:.0f}s ago", Tone.DIM))
        if silent := found.silent_frontends:
            words = f"  without those of {', '.join(silent)}: no answer"
            spans.append(Span(printable(words), Tone.WARN))
        return tuple(spans)


class InstanceScreen(RequestsScreen):
    """One instance: its status, its requests, its history, its log."""

    NAME = "an instance"
    TABLES: ClassVar[Mapping[str, Table]] = {
        "requests": Table(requests.COLUMNS_OF_AN_INSTANCE, requests.SORTS, empty="none"),
        "history": Table(HISTORY_COLUMNS, {"time": True}, empty="none"),
        "log": Table(events.LOG_COLUMNS, {"time": False}, empty="nothing yet"),
    }
    FACTS = True
    FOLLOWED = "log"
    TALL = 40
    """From this height on, history and log each have a place of their own; below it they share
    one."""

    def __init__(self, instance_id: str, request_id: str = "") -> None:
        """`request_id`: the request whose row was opened, if any."""
        super().__init__(instance_id)
        self.request_id = request_id
        self._has_logs = True
        self._history: tuple[object, object, list[HistoryRow]] | None = None
        """The rows of the history, and what they were made from."""
        self._lower = "history"

    def on_mount(self) -> None:
        if self.request_id:
            self.table("requests").hold(self.request_id)

    def target(self) -> Target:
        """The instance, and the request under the cursor."""
        table = self.focused if isinstance(self.focused, TableView) else self.table("requests")
        return Target(self.instance_id, table.target.request_id)

    def draw(self) -> None:
        session, shown = self.session, self.session.shown
        self._place()
        self.ask()
        self.paint_top()
        self.show_facts(
            instances.facts(
                shown, self.instance_id, self.size.width, session.glyphs, self._request_shown()
            )
        )
        self.fill_requests(shown)
        history = self._history_rows(shown)
        newest_first = self.choices["history"].descending
        self.fill("history", history if newest_first else history[::-1], self._tabs("History"))
        self.fill_log(self.instance_id, self._tabs("Log"), has_logs=self._has_logs)

    def _history_rows(self, state: DashboardState) -> list[HistoryRow]:
        """The rows of the history. They are made again only when something has happened, because up
        to 1,200 entries have to be looked at."""
        of = state.histories.get(self.instance_id)
        changes = of.changes if of is not None else ()
        known = self._history
        if known is None or known[0] is not state.rare or known[1] is not changes:
            rows = history_rows(state, self.instance_id, self.session.options.zone)
            known = self._history = (state.rare, changes, rows)
        return known[2]

    def go_to(self, name: str) -> None:
        if name != "requests":
            self._lower = name
            self._place()
        if name == "log":
            self.ask_soon()
        super().go_to(name)
        self.focused_table = name  # a second Tab may come before Textual reports the focus
        self.show()

    @property
    def _is_tall(self) -> bool:
        return self.size.height >= self.TALL

    def _place(self) -> None:
        """Places history and log. If the screen is short, they share one place, and the table with
        the focus gets more of the lines."""
        above = self._is_tall or self.focused_table == "requests"
        self.table("requests").styles.height = "2fr" if above else "1fr"
        for name in ("history", "log"):
            self.table(name).display = self._is_tall or self._lower == name
            self.table(name).styles.height = "1fr" if above else "2fr"

    def _tabs(self, name: str) -> str:
        """The title of a table, with the name of the table that shares its place."""
        if self._is_tall:
            return name
        return "[History]  Log" if name == "History" else "History  [Log]"

    def _request_shown(self) -> str:
        """The request under the cursor or, if there is none, the one whose row was opened."""
        table = self.table("requests")
        return (table.cursor_id if table.held else None) or self.request_id

    def ask_more(self) -> None:
        if self.table("log").display:
            self._has_logs = self.session.source.ask_log(self.instance_id)


class RequestScreen(DetailScreen):
    """One request: how it stands, and its life with the reasons for each decision."""

    NAME = "a request"
    LEGEND = timeline.LEGEND
    TABLES: ClassVar[Mapping[str, Table]] = {
        "timeline": Table(timeline.COLUMNS, timeline.SORTS, note_of=timeline.note)
    }
    FACTS = True

    def __init__(self, request_id: str) -> None:
        super().__init__()
        self.request_id = request_id
        self._known: Explanation | None = None
        self._impossible = False

    def draw(self) -> None:
        width = self.size.width
        self._ask()
        self.paint_top()
        trouble = self._trouble()
        lines: list[Line] = [(Span(f" {printable(self.request_id)}", Tone.STRONG),)]
        rows: list[TimelineRow] = []
        if (found := self._known) is not None:
            lines = timeline.facts(found, width, self.session.glyphs)
            chosen = self.choice
            rows = timeline.ordered(
                timeline.rows(found, width), chosen.sort, descending=chosen.descending
            )
        self.show_facts(lines)
        self.fill("timeline", rows, "Life", *trouble)

    def target(self) -> Target:
        """The request, and the instance that has it."""
        instance_id = self._known.request.instance_id if self._known else None
        return Target(instance_id or "", self.request_id)

    def on_table_view_opened(self, event: TableView.Opened) -> None:
        target = Target(event.target.instance_id, self.request_id)
        self.post_message(self.Wanted(target, instance=True))

    def _ask(self) -> None:
        """Asks a live controller until the request has ended. In a replay it always asks, because
        there a request that has ended may be alive again."""
        ended = self._known is not None and self._known.request.state in ENDED_STATES
        if (not ended or self.session.replay is not None) and self.is_due():
            self._impossible = not self.session.source.ask_explanation(self.request_id)

    def _trouble(self) -> list[Span]:
        """Takes the answer that has come, and says why there is nothing to show, or nothing new."""
        if self._impossible:
            return [Span("  no requests are recorded up to here", Tone.DIM)]
        answer = self.session.shown.explanation
        if answer is None or answer.request_id != self.request_id:
            return [] if self._known else [Span("  asking ...", Tone.DIM)]
        if answer.found is None:
            return [Span(f"  {printable(answer.reason)}", Tone.BAD)]
        self._known = answer.found
        return []


class MemberLogScreen(DetailScreen):
    """The last lines of a member's log, or the controller's."""

    NAME = "a log"
    TABLES: ClassVar[Mapping[str, Table]] = {
        "log": Table(events.LOG_COLUMNS, {"time": False}, empty="nothing yet")
    }
    FOLLOWED = "log"

    def __init__(self, member_id: str) -> None:
        super().__init__()
        self.member_id = member_id
        self._has_logs = True

    def target(self) -> Target:
        is_instance = self.member_id in self.session.shown.histories
        return Target(self.member_id) if is_instance else NOTHING

    def draw(self) -> None:
        if self.is_due():
            self._has_logs = self.session.source.ask_log(self.member_id)
        self.paint_top()
        title = f"Log of {printable(self.member_id)}"
        self.fill_log(self.member_id, title, has_logs=self._has_logs)


class LogScreen(TableScreen):
    """The log of this session's orders. Unlike messages, its lines do not vanish. The row under the
    cursor is shown in full below the table."""

    NAME = "what was done here"
    TABLES: ClassVar[Mapping[str, Table]] = {
        "log": Table(outbox.LOG_COLUMNS, empty="nothing was done here yet")
    }

    def draw(self) -> None:
        session, table = self.session, self.table("log")
        self.paint_top()
        found = outbox.log_rows(session.calls, session.options.zone)
        hint = f"  {session.key_of('copy_id')} copies the command"
        title = (Span(f"Done here ({len(found)})", Tone.STRONG), Span(hint, Tone.DIM))
        shown = table.cursor_id if table.held else None
        row = next((each for each in found if shown in (None, each.id)), None)
        caption = outbox.whole(row.call, self.size.width) if row else ()
        table.show(found, title, caption=caption)


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


class OutputScreen(TableScreen):
    """The output of one of the operator's own commands. Closing the screen ends the program."""

    NAME = "a program's output"
    TABLES: ClassVar[Mapping[str, Table]] = {"output": Table(_OUTPUT_COLUMNS, empty="nothing yet")}
    FOLLOWED = "output"

    def __init__(self, run: Run, program: Program) -> None:
        super().__init__()
        self._ran = run
        self.program = program

    def on_mount(self) -> None:
        self.program.start()

    def on_unmount(self) -> None:
        self.program.stop()

    def draw(self) -> None:
        self.paint_top()
        program = self.program
        texts = list(program.lines)
        first = program.num_lines - len(texts)
        rows = [OutputRow(first + place, text) for place, text in enumerate(texts)]
        good = program.outcome in ("", "exit status 0")
        state = Span(f"  {printable(program.outcome) or 'running'}", Tone.DIM if good else Tone.BAD)
        name = Span(self._ran.command.name, Tone.STRONG)
        title = (name, state, Span(f"  {self._ran.line}", Tone.DIM))
        self.table("output").show(rows, title, follow=self.follows)


_FILTERS = ("/WORDS", "shows what has all of them; !WORD: what does not have it")


@dataclass(frozen=True, slots=True)
class HelpRow:
    """A key or a word, and what it means; without a text, the heading of a group."""

    id: str
    name: str
    text: str = ""
    target: Target = NOTHING


_HELP_COLUMNS: tuple[Column[HelpRow], ...] = (
    Column("name", "KEY", 17, lambda row, _: Span(row.name)),
    Column("text", "WHAT", 20, lambda row, _: Span(row.text), max_width=400),
)


class HelpScreen(Screen[None]):
    """Every key that works on the screen below, by what it is about, and what the words of that
    screen mean."""

    BINDINGS = bindings(Place.HELP)

    def __init__(self, below: Screen[Any], actions: Sequence[Action]) -> None:
        """`below`: the screen that the help is about; `actions`: what can be done there."""
        super().__init__()
        self._actions = actions
        of = below if isinstance(below, PaintedScreen) else PaintedScreen
        self._name, self._legend = of.NAME, of.LEGEND

    def compose(self) -> ComposeResult:
        yield TableView[HelpRow](
            _HELP_COLUMNS,
            session_of(self).glyphs,
            id="help",
            note_of=_heading,
            is_heading=lambda row: not row.text,
        )

    def on_mount(self) -> None:
        session, table = session_of(self), self.query_one(TableView)
        table.focus()
        closes = Span(f"  ({session.key_of('help_close')} closes)", Tone.DIM)
        about = f"Help on {self._name}" if self._name else "Help"
        rows = _help_rows(self._actions, self._legend, session.options)
        table.show(rows, (Span(about, Tone.STRONG), closes))

    def action_back(self) -> None:
        self.dismiss()


def _heading(row: HelpRow) -> tuple[str, Span] | None:
    return None if row.text else ("name", Span(row.name, Tone.STRONG))


def _help_rows(
    actions: Sequence[Action], legend: Sequence[tuple[str, str]], options: Options
) -> list[HelpRow]:
    found: list[HelpRow] = []
    for group in Group:
        keys = [
            HelpRow(
                each.action_id,
                ", ".join(shown_key(name) for name in keys_of(each, options.keymap)),
                options.aimed(_help_text(each)),
            )
            for each in actions
            if each.keys and each.group is group
        ]
        found += [HelpRow(f"group.{group.name}", group), *keys] if keys else []
    typed = ", ".join(each.typed for each in actions if each.typed)
    words = [*legend, _FILTERS, *([(":", typed)] if typed else [])]
    found.append(HelpRow("group.words", "Words and signs"))
    return found + [HelpRow(f"legend.{name}", name, text) for name, text in words]


def _help_text(action: Action) -> str:
    return f"{action.text} ({action.change.command})" if action.change is not None else action.text
