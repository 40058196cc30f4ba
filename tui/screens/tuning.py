"""The settings that can be changed while the cluster runs, and the dialog that changes one."""

import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Input

from controller.api.operations.on_cluster import SetSettings, Setting, SettingList
from controller.api.operations.order import Plan
from controller.api.text.quantities import printable, setting_value
from controller.api.wire import SettingValue
from tui.actions import Place, Target, bindings
from tui.asking import AnyOrder
from tui.drawing import Column, Line, Span, Tone
from tui.screens.base import DetailScreen, Table
from tui.screens.dialogs import Dialog, why_of
from tui.widgets import Lines, TableView

_FACT_LINES = 4
_SORTS = {"table": False, "changed": True}
"""The orders of the list: as in the configuration file, or with those settings first that differ
from their default."""
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
    """The value of a setting, its origin, the allowed values, and the meaning."""
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
    """The screen of the settings. It asks for them again whenever the cluster has a new revision,
    because no setting changes without a new revision."""

    BINDINGS = bindings(Place.TUNING)
    PLACES = (Place.TUNING, Place.DETAIL)
    NAME = "the settings"
    TABLES: ClassVar[Mapping[str, Table]] = {"settings": Table(_COLUMNS, _SORTS)}
    FACTS = True

    class Edited(Message):
        """The operator wants a new value for a setting."""

        def __init__(self, setting: Setting, model: str) -> None:
            super().__init__()
            self.setting = setting
            self.model = model

    def __init__(self, model: str = "") -> None:
        """`model`: whose settings they are, if several models are shown."""
        super().__init__()
        self.model = model
        self._known: SettingList | None = None
        self._asking = False
        self._trouble = ""

    def draw(self) -> None:
        self._ask()
        self.paint_top()
        chosen = self.choice
        rows = ordered(
            self._known.settings if self._known else (), chosen.sort, descending=chosen.descending
        )
        whose = f" of {printable(self.model)}" if self.model else ""
        self.fill("settings", rows, f"Settings{whose} ({len(rows)})", *self._told_about())
        setting = self._chosen_setting()
        self.show_facts(facts(setting, self.size.width) if setting else [], _FACT_LINES)

    def on_table_view_opened(self, event: TableView.Opened) -> None:
        event.stop()
        self.action_edit()

    def action_edit(self) -> None:
        if (setting := self._chosen_setting()) is not None:
            self.post_message(self.Edited(setting, self.model))

    def _chosen_setting(self) -> Setting | None:
        here = self.table("settings").cursor_id
        known = self._known.settings if self._known else ()
        return next((each for each in known if each.key == here), None)

    def _ask(self) -> None:
        session = self.session
        status = session.state.status
        if session.replay is not None or status is None or self._asking:
            return
        is_old = self._known is None or self._known.revision != status.revision
        if is_old and self.is_due():
            self._asking = True
            session.ask(lambda client: client.of_model(self.model).settings(), self._hear)

    def _hear(self, found: SettingList | None, error: Exception | None) -> None:
        self._asking = False
        self._trouble = ""
        if error is not None:
            self._trouble = why_of(error)
        elif found is not None:
            self._known = found
        if self.is_attached:
            self.show()

    def _told_about(self) -> list[Span]:
        if self.session.replay is not None:
            return [Span("  a recording has no settings", Tone.DIM)]
        if self._trouble:
            return [Span(f"  {printable(self._trouble)}", Tone.BAD)]
        if self._known is None:
            return [Span("  asking ...", Tone.DIM)]
        return [Span(f"  revision {self._known.revision}", Tone.DIM)]


class EditScreen(Dialog[SetSettings | None]):
    """Asks for a setting's new value, and accepts no value that the controller would refuse.

    The dialog ends with an order that passed a dry run.
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings(Place.CHOICE)

    def __init__(self, setting: Setting, model: str = "") -> None:
        super().__init__()
        self.setting = setting
        self.model = model
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

    def draw(self, width: int) -> None:
        words, below = self.query_one("#words", Lines), self.query_one("#below", Lines)
        lines: list[Line] = [*facts(self.setting, width - 4), ()]
        words.styles.height, below.styles.height = len(lines), 2
        words.show(lines)
        leave = self.session.key_of("choice_none")
        keys = Span(f" Enter asks what it would do, {leave} leaves", Tone.DIM)
        below.show([self._told_about(), (keys,)])

    def _told_about(self) -> Line:
        if locked := self.session.locked():
            return (Span(f" not now: {locked}", Tone.BAD),)
        if self._asking is not None:
            return (Span(" asking what it would do ...", Tone.DIM),)
        return (Span(f" {printable(self._trouble)}", Tone.BAD),)

    def on_input_changed(self, _: Input.Changed) -> None:
        self._trouble = ""
        self.show()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        if self._asking is not None or self.session.locked():
            self.show()
            return
        value = event.value.strip()
        if not value:
            self._trouble = "type a value"
        else:
            order = SetSettings.to([f"{self.setting.key}={value}"]).on(self.model)
            self._asking = order
            self.session.ask(order.plan, self._planned)
        self.show()

    def _planned(self, plan: Plan[AnyOrder] | None, error: Exception | None) -> None:
        """The dialog goes on with the value that was planned, even if another one was typed
        since."""
        order, self._asking = self._asking, None
        if not self.is_attached:
            return
        if error is not None:
            self._trouble = why_of(error)
        elif plan is not None and plan.order is None:
            self._trouble = plan.lines[0]
        else:
            self.dismiss(order)
            return
        self.show()
