"""Every key, once: the bindings, the footer, the help screen and the tests read this table.

`action_id` is what a key can be rebound by (Textual's keymap). Keys that terminals, tmux and
accidents claim are not used: ctrl-a, ctrl-b, ctrl-d, ctrl-k.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from textual.binding import Binding, BindingType


class Place(StrEnum):
    TABLE = "table"
    """Any table that has the focus."""
    MAIN = "main"
    DETAIL = "detail"
    HELP = "help"
    ANYWHERE = "anywhere"


@dataclass(frozen=True, slots=True)
class Key:
    action_id: str
    keys: tuple[str, ...]
    """Textual's names."""
    action: str
    text: str
    place: Place
    footer: str = ""
    """A short word for the footer; empty: not there."""
    replay: bool = False
    """In a replay only."""


KEYS: tuple[Key, ...] = (
    Key("row.down", ("j", "down"), "move(1)", "next row", Place.TABLE),
    Key("row.up", ("k", "up"), "move(-1)", "previous row", Place.TABLE),
    Key("row.page-down", ("pagedown",), "page(1)", "a page down", Place.TABLE),
    Key("row.page-up", ("pageup",), "page(-1)", "a page up", Place.TABLE),
    Key("row.first", ("g", "home"), "first", "first row", Place.TABLE),
    Key("row.last", ("G", "end"), "last", "last row", Place.TABLE),
    Key("row.open", ("enter",), "open", "the instance of this row", Place.TABLE, footer="detail"),
    Key("back", ("escape",), "back", "zoom off, then back to the instances", Place.MAIN),
    Key(
        "back.main", ("escape", "backspace"), "back", "back to the dashboard", Place.DETAIL, "back"
    ),
    Key("help.close", ("escape", "backspace"), "back", "close the help", Place.HELP),
    Key("filter", ("slash",), "filter", "filter this pane", Place.MAIN, footer="filter"),
    Key("sort", ("s",), "sort", "sort by the next column", Place.MAIN, footer="sort"),
    Key("sort.reverse", ("S",), "sort_reverse", "reverse the order", Place.MAIN),
    Key(
        "freeze",
        ("space",),
        "freeze",
        "freeze the screen (in a replay: pause)",
        Place.MAIN,
        footer="freeze",
    ),
    Key("replay.slower", ("[",), "speed(-1)", "half the speed", Place.MAIN, "slower", replay=True),
    Key("replay.faster", ("]",), "speed(1)", "twice the speed", Place.MAIN, "faster", replay=True),
    Key("events.follow", ("F",), "follow", "follow the newest event", Place.MAIN),
    Key(
        "events.expand",
        ("e",),
        "expand",
        "events with causes and figures",
        Place.MAIN,
        footer="events",
    ),
    Key("pane.zoom", ("z",), "zoom", "this pane on the whole screen", Place.MAIN, footer="zoom"),
    Key("pane.instances", ("0",), "pane('instances')", "to the instances", Place.MAIN),
    Key("pane.queue", ("1",), "pane('queue')", "to the queue heads", Place.MAIN),
    Key("pane.events", ("2",), "pane('events')", "to the events", Place.MAIN),
    Key("pane.next", ("tab",), "next_pane(1)", "to the next pane", Place.MAIN),
    Key("pane.previous", ("shift+tab",), "next_pane(-1)", "to the pane before", Place.MAIN),
    Key("command", ("colon",), "command", "type a command", Place.MAIN, footer="cmd"),
    Key("palette", ("ctrl+p",), "command_palette", "choose an action", Place.ANYWHERE),
    Key("help", ("question_mark",), "help", "this help", Place.ANYWHERE, footer="help"),
    Key("quit", ("q", "ctrl+c", "ctrl+q"), "quit", "leave", Place.ANYWHERE, footer="quit"),
)

_NAMES = {
    "slash": "/",
    "colon": ":",
    "question_mark": "?",
    "space": "Space",
    "enter": "Enter",
    "escape": "Esc",
    "backspace": "Backspace",
    "pagedown": "PgDn",
    "pageup": "PgUp",
    "down": "Down",
    "up": "Up",
    "home": "Home",
    "end": "End",
    "tab": "Tab",
    "shift+tab": "Shift-Tab",
}


def bindings(*places: Place) -> list[BindingType]:
    return [
        Binding(",".join(key.keys), key.action, key.text, show=False, id=key.action_id)
        for key in KEYS
        if key.place in places
    ]


def shown(key: str) -> str:
    """A key as people call it."""
    return _NAMES.get(key, key.replace("ctrl+", "Ctrl-"))


def keys_of(key: Key, keymap: dict[str, str]) -> tuple[str, ...]:
    """Those in force, after rebinding."""
    return tuple(keymap[key.action_id].split(",")) if key.action_id in keymap else key.keys


def footer(
    keymap: dict[str, str], places: Iterable[Place], *, replay: bool
) -> list[tuple[str, str]]:
    """(key, word) pairs for the bottom line."""
    wanted = set(places)
    return [
        (
            shown(keys_of(key, keymap)[0]),
            "pause" if replay and key.action_id == "freeze" else key.footer,
        )
        for key in KEYS
        if key.footer and key.place in wanted and (replay or not key.replay)
    ]
