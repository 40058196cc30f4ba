"""What the dashboard's screens share."""

from collections.abc import Mapping, Sequence
from typing import Any

from textual.screen import Screen

from controller.api.text.alarms import Alarm
from tui.actions import NOTHING, Place, Target
from tui.console import Console, console_of
from tui.drawing import Line
from tui.panes import header
from tui.screens.sorting import SortScreen
from tui.widgets import Bottom, Lines, TableView


class PaintedScreen(Screen[None]):
    """A header above, a bottom line below, both painted from the application's state."""

    PLACES: tuple[Place, ...] = ()

    @property
    def console(self) -> Console:
        return console_of(self)

    def show(self) -> None:
        """Draws the application's present state."""
        raise NotImplementedError

    def on_screen_resume(self) -> None:
        """What came while another screen covered this one."""
        self.show()

    def show_age(self) -> None:
        """Draws the same state a while later; a screen whose tables stay as they are says so."""
        self.show()

    def target(self) -> Target:
        """What the row under the cursor is about."""
        return NOTHING

    def marks(self) -> TableView[Any] | None:
        """The table with the focus, if its rows can be marked."""
        return None

    def action_act(self, action_id: str) -> None:
        targets, marked = self.targets()
        self.console.acting.act(action_id, *targets, marked=marked)

    def targets(self) -> tuple[tuple[Target, ...], bool]:
        """What a key acts on: the marked rows of the table with the focus, and True; without any
        the row under the cursor, and False."""
        table = self.marks()
        marked = table.marked if table is not None else ()
        return (marked, True) if marked else ((self.target(),), False)

    def action_mark(self) -> None:
        table = self.marks()
        if table is None or not table.toggle_mark():
            self.console.say("this row is nothing to mark")

    def unmark(self) -> bool:
        """Takes all marks off; whether there were any."""
        table = self.marks()
        return table is not None and table.unmark()

    def action_scale(self, number: str) -> None:
        self.console.acting.scale(number)

    def action_autoscale(self) -> None:
        self.console.acting.autoscale()

    def action_undo(self) -> None:
        self.console.acting.undo()

    def action_tune(self) -> None:
        self.console.show_tuning()

    def action_read_only(self) -> None:
        self.console.acting.toggle_read_only()

    def action_log(self) -> None:
        self.console.show_log()

    def action_speed(self, steps: int) -> None:
        if self.console.replay is not None:
            self.console.replay.change_speed(steps)

    def action_seek(self, seconds: float) -> None:
        if self.console.replay is not None:
            self.console.replay.seek(seconds)

    def action_seek_to(self) -> None:
        if self.console.replay is not None:
            self.query_one(Bottom).ask(":", "seek ", self.console.begin_command())

    def action_edge(self, direction: int) -> None:
        if self.console.replay is not None:
            self.console.replay.to_edge(direction)

    def action_step(self, frames: int) -> None:
        if self.console.replay is not None:
            self.console.replay.step(frames)

    def action_to_event(self, weight: str, direction: int) -> None:
        if self.console.replay is not None:
            self.console.replay.to_event(weight, direction)

    @property
    def orders(self) -> Mapping[str, bool]:
        """The columns by which the table with the focus can be sorted, and whether the largest
        comes first."""
        return {}

    @property
    def order(self) -> tuple[str, bool]:
        """The column by which it is sorted, and whether the largest comes first now."""
        return "", False

    def action_sort(self) -> None:
        """Chosen again, a column's order is reversed."""
        if self.orders:
            self.app.push_screen(SortScreen(self.orders, *self.order), self._sort)

    def _sort(self, column: str | None) -> None:
        if column == self.order[0]:
            self.action_sort_reverse()
        elif column is not None:
            self.sort_by(column)

    def action_sort_reverse(self) -> None:
        """The other end of the order first."""

    def sort_by(self, column: str) -> None:
        """Sorts that table by one of `sorts`."""

    def filter_by(self, text: str) -> None:
        """Shows those rows of that table that match."""

    def alarms(self) -> Sequence[Alarm]:
        return self.console.shown.alarms

    def paint_frame(
        self, header_lines: int, alarms: Sequence[Alarm], notes: Sequence[Line] = ()
    ) -> None:
        """`alarms`: the worst first; they get a line of their own, above `notes`."""
        app, width = self.console, self.size.width
        self.set_class(app.is_stale, "-stale")
        top = self.query_one("#header", Lines)
        top.styles.height = header_lines + bool(alarms) + len(notes)
        live, count = app.liveness(), max(1, header_lines)
        if live.replay is not None:
            lines = [header.replay_line(live.replay, live, width, app.glyphs)]
            lines += [header.vitals(app.shown.status, live, width)] * (count > 1)
        else:
            lines = header.lines(app.shown, live, width, count, app.glyphs, alarm=bool(alarms))
        if alarms:
            lines.append(header.alarm_line(alarms, width, app.glyphs))
        lines += notes
        top.show(lines, bar=app.is_barred)
        self.query_one(Bottom).say(app.bottom_line(*self.PLACES))
