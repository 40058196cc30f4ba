"""What screens need of the application, which imports them."""

from typing import Any, Protocol, cast

from textual.screen import Screen

from tui.drawing.format import Glyphs, Line, Tone
from tui.feed.source import Source
from tui.feed.state import DashboardState
from tui.input.keys import Place
from tui.options import Options
from tui.panes.header import Liveness


class ScreenHost(Protocol):
    source: Source
    options: Options
    glyphs: Glyphs

    @property
    def shown(self) -> DashboardState: ...
    @property
    def is_stale(self) -> bool: ...
    @property
    def is_barred(self) -> bool: ...

    def liveness(self) -> Liveness: ...
    def key_of(self, action_id: str) -> str: ...
    def bottom_line(self, *places: Place) -> Line: ...
    def say(self, text: str, tone: Tone = Tone.WARN) -> None: ...
    def toggle_freeze(self) -> None: ...
    def change_speed(self, steps: int) -> None: ...
    def open_instance(self, instance_id: str, request_id: str = "") -> None: ...
    def run_command(self, text: str) -> None: ...


def host_of(screen: Screen[Any]) -> ScreenHost:
    return cast(ScreenHost, screen.app)
