"""The settings that may be changed while the cluster runs, and the way to change one."""

from collections.abc import Mapping
from typing import ClassVar

from textual.app import ComposeResult

from controller.api.errors import LlumctlError
from controller.api.operations.on_cluster import Setting, SettingList
from controller.api.text.quantities import printable
from tui.actions import NOTHING, Place, Target, bindings
from tui.drawing import Span, Tone
from tui.panes import setting_list
from tui.panes.setting_list import FACT_LINES, SettingRow
from tui.screens.detail import DetailScreen
from tui.screens.ready import can_draw
from tui.widgets import Bottom, Lines, TableView


class TuningScreen(DetailScreen):
    """Asks for the settings whenever the cluster's revision is another: they change by that."""

    BINDINGS = bindings(Place.TUNING, Place.DETAIL, Place.ROWS)
    PLACES = (Place.TUNING, Place.DETAIL)
    SORTS: ClassVar[Mapping[str, Mapping[str, bool]]] = {"settings": setting_list.SORTS}

    def __init__(self) -> None:
        super().__init__()
        self._known: SettingList | None = None
        self._asking = False
        self._asked_at_s: float | None = None
        self._trouble = ""

    def compose(self) -> ComposeResult:
        yield Lines(id="header")
        yield Lines(id="facts")
        yield TableView[SettingRow](setting_list.COLUMNS, self.console.glyphs, id="settings")
        yield Bottom()

    def target(self) -> Target:
        """A setting is neither an instance nor a request, so their keys do nothing here."""
        return NOTHING

    def show(self) -> None:
        if not can_draw(self):
            return
        self._ask()
        width = self.size.width
        self.paint_frame(2 if width >= 110 else 1, self.alarms())
        chosen = self.choice
        rows = setting_list.ordered(
            self._known.settings if self._known else (), chosen.sort, descending=chosen.descending
        )
        self.table("settings").styles.height = "1fr"
        self.fill("settings", rows, f"Settings ({len(rows)})", *self._told_about())
        top = self.query_one("#facts", Lines)
        top.styles.height = FACT_LINES
        setting = self._chosen_setting()
        top.show(setting_list.facts(setting, width) if setting else [])

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
