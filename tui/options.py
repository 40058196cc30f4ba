"""How the dashboard is to look, by the options of `llumctl top`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import tzinfo

from controller.api.settings.settings import ConsoleTable
from controller.api.text import hints
from tui.actions.own import OwnCommand
from tui.drawing import UNICODE, Glyphs
from tui.theme_names import DEFAULT


@dataclass(frozen=True)
class Options:
    """`zone` None: the machine's. `keymap`: as `tui.input.keymap.checked` gives it."""

    glyphs: Glyphs = UNICODE
    theme: str = DEFAULT
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
    """Commands of the operator's own, as `tui.input.own_commands.checked` gives them."""
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
