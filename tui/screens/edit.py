"""Asks for a setting's new value, and lets nothing go that the controller would refuse."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.widgets import Input

from controller.api.errors import LlumctlError
from controller.api.operations.on_cluster import SetSettings, Setting
from controller.api.operations.order import Plan
from controller.api.text.quantities import printable, setting_value
from tui.actions import Place, bindings
from tui.asking import AnyOrder
from tui.drawing import Line, Span, Tone
from tui.panes import setting_list
from tui.screens.dialog import Dialog
from tui.screens.ready import can_draw
from tui.widgets import Lines


class EditScreen(Dialog[SetSettings | None]):
    """Ends with an order that passed a dry run, or with None."""

    BINDINGS: ClassVar[list[BindingType]] = bindings(Place.CHOICE)

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self.setting = setting
        self._asking: SetSettings | None = None
        self._trouble = ""

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog"):
            yield Lines(id="words")
            value = Input(setting_value(self.setting.value), id="value", compact=True)
            value.cursor_blink = False
            yield value
            yield Lines(id="below")

    def on_mount(self) -> None:
        self.query_one("#value").focus()

    def show(self) -> None:
        if not can_draw(self):
            return
        width = self.frame_width
        self.query_one("#dialog").styles.width = width
        words, below = self.query_one("#words", Lines), self.query_one("#below", Lines)
        lines: list[Line] = [*setting_list.facts(self.setting, width - 4), ()]
        words.styles.height, below.styles.height = len(lines), 2
        words.show(lines)
        leave = self.console.key_of("choice_none")
        keys = Span(f" Enter asks what it would do, {leave} leaves", Tone.DIM)
        below.show([self._told_about(), (keys,)])

    def _told_about(self) -> Line:
        if locked := self.console.acting.locked():
            return (Span(f" not now: {locked}", Tone.BAD),)
        if self._asking is not None:
            return (Span(" asking what it would do ...", Tone.DIM),)
        return (Span(f" {printable(self._trouble)}", Tone.BAD),)

    def on_input_changed(self, _: Input.Changed) -> None:
        self._trouble = ""
        self.show()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        if self._asking is not None or self.console.acting.locked():
            self.show()
            return
        value = event.value.strip()
        if not value:
            self._trouble = "type a value"
        else:
            self._asking = order = SetSettings.to([f"{self.setting.key}={value}"])
            self.console.ask(order.plan, self._planned)
        self.show()

    def _planned(self, plan: Plan[AnyOrder] | None, error: Exception | None) -> None:
        """Of another value typed meanwhile nothing is known yet, so this one goes on."""
        order, self._asking = self._asking, None
        if not self.is_attached:
            return
        if error is not None:
            self._trouble = error.message if isinstance(error, LlumctlError) else repr(error)
        elif plan is not None and plan.order is None:
            self._trouble = plan.lines[0]
        else:
            self.dismiss(order)
            return
        self.show()

    def action_no(self) -> None:
        self.dismiss(None)
