"""What screens and panes need of the application, which imports them."""

from collections.abc import Iterable
from typing import Any, Protocol, cast

from textual.screen import Screen

from controller.api.operations.on_cluster import Setting
from tui.actions.action import Place
from tui.actions.outbox import Call
from tui.actions.replaying import Replaying
from tui.actions.session_orders import Then
from tui.actions.target import Target
from tui.drawing import Glyphs, Line, Tone
from tui.input.completion import Typing
from tui.live import Source, Work
from tui.options import Options
from tui.panes.header import Liveness
from tui.state import DashboardState


class Acts(Protocol):
    """What changes the cluster, and what may change it."""

    def locked(self) -> str:
        """Why nothing may be changed now; else empty."""

    def act(self, action_id: str, *targets: Target, marked: bool = False) -> None:
        """Begins an action that changes the cluster, or says why it does not."""

    def scale(self, number: str) -> None: ...
    def autoscale(self) -> None: ...
    def undo(self) -> None: ...

    def edit_setting(self, setting: Setting) -> None:
        """Asks for another value, or says why none can be set."""

    def toggle_read_only(self) -> None: ...


class Console(Protocol):
    source: Source
    options: Options
    glyphs: Glyphs

    replay: Replaying | None
    """None for a live controller."""

    @property
    def acting(self) -> Acts: ...

    @property
    def shown(self) -> DashboardState:
        """What the screen shows: the present, or the moment at which it was frozen."""

    @property
    def present(self) -> DashboardState:
        """What is known now, whatever the screen shows."""

    @property
    def calls(self) -> Iterable[Call]:
        """The orders of this session."""

    @property
    def is_frozen(self) -> bool: ...
    @property
    def is_read_only(self) -> bool: ...
    @property
    def is_stale(self) -> bool: ...
    @property
    def is_barred(self) -> bool: ...

    def liveness(self) -> Liveness: ...
    def key_of(self, action_id: str) -> str: ...
    def bottom_line(self, *places: Place) -> Line: ...
    def say(self, text: str, tone: Tone = Tone.WARN, *, stays: bool = False) -> None:
        """A message for the bottom line. What is bad goes away with the next key, as it answers the
        last one, unless it `stays` as long as others."""

    def open(self, target: Target) -> None:
        """Opens the screen of the row's request, or of its instance if it is about no request."""

    def open_instance(self, instance_id: str, request_id: str = "") -> None:
        """Opens an instance's screen, with a request in view."""

    def ask(self, question: Work, then: Then) -> None:
        """Asks the controller; `then` gets the answer or the error on the screen's own thread."""

    def show_log(self) -> None: ...
    def show_tuning(self) -> None: ...
    def toggle_freeze(self) -> None: ...
    def run_command(self, text: str) -> None: ...

    def begin_command(self) -> Typing:
        """What completes a command that is typed now."""


def console_of(screen: Screen[Any]) -> Console:
    return cast(Console, screen.app)
