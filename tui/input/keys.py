"""Every key, once: bindings, footer, help screen and tests read this table.

A key can be rebound by its `action_id` (tui.input.keymap). Keys that terminals, tmux and accidents
claim are not used: ctrl-a, ctrl-b, ctrl-d, ctrl-k.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from textual.binding import Binding, BindingType
from textual.keys import REPLACED_KEYS, key_to_character


class Place(StrEnum):
    TABLE = "table"
    """The table that has the focus."""
    MAIN = "main"
    DETAIL = "detail"
    HELP = "help"
    ANYWHERE = "anywhere"


@dataclass(frozen=True, slots=True)
class Key:
    action_id: str
    keys: tuple[str, ...]
    """The keys by Textual's names."""
    action: str
    text: str
    place: Place
    footer: str = ""
    """A short word for the footer; empty for a key that is not there."""
    replay: bool = False
    """Whether the key works in a replay only."""


KEYS: tuple[Key, ...] = (
    Key("row_down", ("j", "down"), "move(1)", "next row", Place.TABLE),
    Key("row_up", ("k", "up"), "move(-1)", "previous row", Place.TABLE),
    Key("row_page_down", ("pagedown",), "page(1)", "a page down", Place.TABLE),
    Key("row_page_up", ("pageup",), "page(-1)", "a page up", Place.TABLE),
    Key("row_first", ("g", "home"), "first", "first row", Place.TABLE),
    Key("row_last", ("G", "end"), "last", "last row", Place.TABLE),
    Key("row_open", ("enter",), "open", "the instance of this row", Place.TABLE, footer="detail"),
    Key("back", ("escape",), "back", "zoom off, then back to the instances", Place.MAIN),
    Key(
        "back_main", ("escape", "backspace"), "back", "back to the dashboard", Place.DETAIL, "back"
    ),
    Key("help_close", ("escape", "backspace"), "back", "close the help", Place.HELP),
    Key("filter", ("slash",), "filter", "filter this pane", Place.MAIN, footer="filter"),
    Key("sort", ("s",), "sort", "sort by the next column", Place.MAIN, footer="sort"),
    Key("sort_reverse", ("S",), "sort_reverse", "reverse the order", Place.MAIN),
    Key(
        "freeze",
        ("space",),
        "freeze",
        "freeze the screen (in a replay: pause)",
        Place.MAIN,
        footer="freeze",
    ),
    Key("replay_slower", ("[",), "speed(-1)", "half the speed", Place.MAIN, "slower", replay=True),
    Key("replay_faster", ("]",), "speed(1)", "twice the speed", Place.MAIN, "faster", replay=True),
    Key("events_follow", ("F",), "follow", "follow the newest event", Place.MAIN),
    Key(
        "events_expand",
        ("e",),
        "expand",
        "events with causes and figures",
        Place.MAIN,
        footer="events",
    ),
    Key("pane_zoom", ("z",), "zoom", "this pane on the whole screen", Place.MAIN, footer="zoom"),
    Key("pane_instances", ("0",), "pane('instances')", "to the instances", Place.MAIN),
    Key("pane_migrations", ("1",), "pane('migrations')", "to the migrations", Place.MAIN),
    Key("pane_queue", ("2",), "pane('queue')", "to the queue heads", Place.MAIN),
    Key("pane_events", ("3",), "pane('events')", "to the events", Place.MAIN),
    Key("pane_next", ("tab",), "next_pane(1)", "to the next pane", Place.MAIN),
    Key("pane_previous", ("shift+tab",), "next_pane(-1)", "to the pane before", Place.MAIN),
    Key("copy_id", ("y",), "copy", "copy the whole id", Place.TABLE, footer="copy id"),
    Key("command", ("colon",), "command", "type a command", Place.MAIN, footer="cmd"),
    Key("palette", ("ctrl+p",), "command_palette", "choose an action", Place.ANYWHERE),
    Key("help", ("question_mark",), "help", "this help", Place.ANYWHERE, footer="help"),
    Key("quit", ("q", "ctrl+c", "ctrl+q"), "quit", "leave", Place.ANYWHERE, footer="quit"),
)

_NAMES = {
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
    return _NAMES.get(key) or character_of(key) or key.replace("ctrl+", "Ctrl-")


def character_of(key: str) -> str | None:
    """The character that a key types; None if that has no glyph."""
    found = key_to_character(REPLACED_KEYS.get(key, key))
    return found if found is not None and found.isprintable() else None


def keys_of(key: Key, keymap: Mapping[str, str]) -> tuple[str, ...]:
    """The keys in force, after rebinding."""
    return tuple(keymap[key.action_id].split(",")) if key.action_id in keymap else key.keys


def first_of(action_id: str, keymap: Mapping[str, str]) -> str:
    """The key of an action as people call it; where there are several, the first."""
    (key,) = (key for key in KEYS if key.action_id == action_id)
    return shown(keys_of(key, keymap)[0])


def footer(
    keymap: Mapping[str, str], places: Iterable[Place], *, replay: bool
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
