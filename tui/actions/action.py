"""One action of the dashboard: its keys, its words, where it works, and what it changes."""

from dataclasses import dataclass
from enum import StrEnum

from controller.api.operations.order import Danger, Kind


class Place(StrEnum):
    TABLE = "table"
    """The table that has the focus."""
    ROWS = "rows"
    """A screen whose rows are instances and requests."""
    MAIN = "main"
    DETAIL = "detail"
    DIALOG = "dialog"
    CHOICE = "choice"
    """Something is chosen or typed that an order is to say."""
    SORTING = "sorting"
    """The column is chosen by which a table is sorted."""
    TUNING = "tuning"
    HELP = "help"
    ANYWHERE = "anywhere"


@dataclass(frozen=True, slots=True)
class Change:
    """What an action does to the cluster. `command`: what does the same on the command line."""

    target: Kind
    command: str
    danger: Danger = Danger.NONE
    several: bool = True
    """Whether it may be done to all marked rows at once."""


@dataclass(frozen=True, slots=True)
class Action:
    action_id: str
    keys: tuple[str, ...]
    """The keys by Textual's names; none for what can only be typed."""
    action: str
    text: str
    place: Place
    footer: str = ""
    """A short word for the footer; empty for a key that is not there."""
    typed: str = ""
    """What is typed after `:` instead, with the name of its argument; empty: a key only."""
    replay: bool = False
    """Whether the key works in a replay only."""
    live: bool = False
    """Whether it works with a live controller only: a recording has nothing to show for it."""
    in_browser: bool = True
    """Whether it works in a browser: nothing there reaches a shell or a file of this machine."""
    change: Change | None = None
    """For actions that change the cluster; they are locked where the screen shows no present."""
