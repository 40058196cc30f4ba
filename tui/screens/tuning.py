"""The settings that may be changed while the cluster runs, and the dialog that changes one."""

import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.widgets import Input

from controller.api.errors import LlumctlError
from controller.api.operations.on_cluster import SetSettings, Setting, SettingList
from controller.api.operations.order import Plan
from controller.api.text.quantities import printable, setting_value
from controller.api.wire import SettingValue
from tui.actions import NOTHING, Place, Target, bindings
from tui.asking import AnyOrder
from tui.drawing import Column, Line, Span, Tone
from tui.screens.base import DetailScreen, Dialog, can_draw
from tui.widgets import Bottom, Lines, TableView

_FACT_LINES = 4
_SORTS = {"table": False, "changed": True}
"""The order of the tables of the configuration file, or what is not the default before it."""
_FROM = {"default": "the default", "start": "as it was started", "set": "set since"}
_ORIGINS = {"default": Tone.DIM, "start": Tone.STRONG, "set": Tone.WARN}


@dataclass(frozen=True, slots=True)
class SettingRow:
    setting: Setting

    @property
    def id(self) -> str:
        return self.setting.key

    @property
    def target(self) -> Target:
        return Target(other=self.setting.key)

    @property
    def text(self) -> str:
        found = self.setting
        return f"{found.key} {setting_value(found.value)} {found.origin or ''} {found.meaning}"


def ordered(settings: Iterable[Setting], sort: str, *, descending: bool) -> list[SettingRow]:
    found = list(settings)
    if sort == "changed":
        found.sort(key=lambda each: (each.value == each.default) is descending)
    elif descending:
        found.reverse()
    return [SettingRow(each) for each in found]


def facts(setting: Setting, width: int) -> list[Line]:
    """Its value, where that is from, which ones are allowed, and what it means."""
    origin = _FROM.get(setting.origin or "", f"default {_value(setting.default)}")
    if setting.origin in ("start", "set"):
        origin += f"; default {_value(setting.default)}"
    head = (
        Span(f" {printable(setting.key)} = {_value(setting.value)}", Tone.STRONG),
        Span(f"  ({origin})"),
    )
    allowed = Span(f" allowed: {printable(setting.allowed) or '-'}", Tone.DIM)
    meaning = textwrap.wrap(
        printable(setting.meaning), max(20, width - 2), max_lines=2, placeholder=" ..."
    )
    return [head, (allowed,), *((Span(f" {line}"),) for line in meaning)]


def _value(value: SettingValue) -> str:
    return printable(setting_value(value))


def _from_span(row: SettingRow, _: int) -> Span:
    origin = row.setting.origin or "-"
    return Span(origin, _ORIGINS.get(origin, Tone.PLAIN))


def _value_span(row: SettingRow, _: int) -> Span:
    changed = row.setting.value != row.setting.default
    return Span(_value(row.setting.value), Tone.STRONG if changed else Tone.PLAIN)


_COLUMNS: tuple[Column[SettingRow], ...] = (
    Column("key", "KEY", 34, lambda row, _: Span(printable(row.setting.key))),
    Column("value", "VALUE", 11, _value_span, right=True),
    Column("from", "FROM", 7, _from_span),
    Column("default", "DEFAULT", 11, lambda row, _: Span(_value(row.setting.default)), right=True),
    Column(
        "allowed",
        "ALLOWED",
        18,
        lambda row, _: Span(printable(row.setting.allowed), Tone.DIM),
        drop=2,
    ),
    Column(
        "meaning",
        "MEANING",
        16,
        lambda row, _: Span(printable(row.setting.meaning), Tone.DIM),
        drop=1,
        max_width=400,
    ),
)


class TuningScreen(DetailScreen):
    """Asks for the settings whenever the cluster's revision is another: they change by that."""

    BINDINGS = bindings(Place.TUNING, Place.DETAIL, Place.ROWS)
    PLACES = (Place.TUNING, Place.DETAIL)
    SORTS: ClassVar[Mapping[str, Mapping[str, bool]]] = {"settings": _SORTS}

    def __init__(self) -> None:
        super().__init__()
        self._known: SettingList | None = None
        self._asking = False
        self._asked_at_s: float | None = None
        self._trouble = ""

    def compose(self) -> ComposeResult:
        yield Lines(id="header")
        yield Lines(id="facts")
        yield TableView[SettingRow](_COLUMNS, self.console.glyphs, id="settings")
        yield Bottom()

    def target(self) -> Target:
        """A setting is neither an instance nor a request, so their keys do nothing here."""
        return NOTHING

    def show(self) -> None:
        if not can_draw(self):
            return
        self._ask()
        width = self.size.width
        self.paint_top()
        chosen = self.choice
        rows = ordered(
            self._known.settings if self._known else (), chosen.sort, descending=chosen.descending
        )
        self.table("settings").styles.height = "1fr"
        self.fill("settings", rows, f"Settings ({len(rows)})", *self._told_about())
        top = self.query_one("#facts", Lines)
        top.styles.height = _FACT_LINES
        setting = self._chosen_setting()
        top.show(facts(setting, width) if setting else [])

    def on_table_view_opened(self, event: TableView.Opened) -> None:
        event.stop()
        self.action_edit()

    def action_edit(self) -> None:
        if (setting := self._chosen_setting()) is not None:
            self.console.acting.edit_setting(setting)

    def action_tune(self) -> None:
        """This is the screen of it."""

    def _chosen_setting(self) -> Setting | None:
        here = self.table("settings").cursor_id
        known = self._known.settings if self._known else ()
        return next((each for each in known if each.key == here), None)

    def _ask(self) -> None:
        app = self.console
        status, now_s = app.present.status, app.source.now_s()
        if app.replay is not None or status is None or self._asking:
            return
        is_old = self._known is None or self._known.revision != status.revision
        waited = self._asked_at_s is None or now_s - self._asked_at_s >= app.source.status_every_s
        if is_old and waited:
            self._asking, self._asked_at_s = True, now_s
            app.ask(lambda client: client.settings(), self._hear)

    def _hear(self, found: SettingList | None, error: Exception | None) -> None:
        self._asking = False
        self._trouble = ""
        if error is not None:
            self._trouble = error.message if isinstance(error, LlumctlError) else repr(error)
        elif found is not None:
            self._known = found
        if self.is_attached:
            self.show()

    def _told_about(self) -> list[Span]:
        if self.console.replay is not None:
            return [Span("  a recording has no settings", Tone.DIM)]
        if self._trouble:
            return [Span(f"  {printable(self._trouble)}", Tone.BAD)]
        if self._known is None:
            return [Span("  asking ...", Tone.DIM)]
        return [Span(f"  revision {self._known.revision}", Tone.DIM)]


class EditScreen(Dialog[SetSettings | None]):
    """Asks for a setting's new value, and lets nothing go that the controller would refuse.

    Ends with an order that passed a dry run, or with None.
    """

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
        lines: list[Line] = [*facts(self.setting, width - 4), ()]
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
