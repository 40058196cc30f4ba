"""What screens need of the application, which imports them, and how it is to look."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import tzinfo
from typing import Any, Protocol, cast

from textual.screen import Screen

from controller.api.operations.on_cluster import Setting
from controller.api.settings.settings import ConsoleTable
from controller.api.text import hints
from tui.actions import Place, Target
from tui.drawing import UNICODE, Glyphs, Line, Tone
from tui.live import Source, Work
from tui.outbox import Call, Then
from tui.own_commands import OwnCommand
from tui.panes.header import Liveness
from tui.replay import Replaying
from tui.startup import DEFAULT_THEME
from tui.state import DashboardState
from tui.typed_commands import Typing


@dataclass(frozen=True)
class Options:
    """How the dashboard is to look, by the options of `llumctl top`. `zone` None: the
    machine's. `keymap`: as `tui.actions.checked_keymap` gives it."""

    glyphs: Glyphs = UNICODE
    theme: str = DEFAULT_THEME
    zone: tzinfo | None = None
    keymap: Mapping[str, str] = field(default_factory=dict)
    limits: ConsoleTable = field(default_factory=ConsoleTable)
    """When there is an alarm, and whether the session begins read-only."""
    readonly: bool = False
    """Nothing can be changed in this session."""
    in_browser: bool = False
    """Whoever sits there has no shell on this machine and gets none: nothing here runs a command,
    writes a file or suspends."""
    own: tuple[OwnCommand, ...] = ()
    """Commands of the operator's own, as `tui.own_commands.checked_commands` gives them."""
    cluster: str = ""
    """What `--cluster` takes to mean this one: a name, or a URL. A cluster that is elsewhere may
    have the name of one that is here."""
    of_cluster: str = ""
    """What a command needs behind it to act on this cluster, as ` --cluster prod`; empty where it
    does so anyway."""
    recording: bool = False
    when_drawn: Callable[[], None] = lambda: None
    """Called once, after the first screen."""
    tick_s: float | None = None
    """Seconds between two drawings; None: only a call of `pump` draws."""

    def aimed(self, text: str) -> str:
        """The text, of which each command means this cluster."""
        return hints.aimed(text, self.of_cluster)


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
