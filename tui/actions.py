"""What an operator can do: every action once, with its keys, its words and where it works.

Bindings, footer, help, palette, typed commands, rebound keys and the tests read the table ACTIONS,
whose order is theirs. Orders have their words, their key, their danger and their command from their
rows (`controller.api.operations`). Keys that terminals, tmux and accidents claim are not used:
ctrl-a, ctrl-b, ctrl-d, ctrl-k. Other keys than the usual ones (`action id -> keys`) are checked
before anything is drawn.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from textual.binding import Binding, BindingType
from textual.keys import KEY_ALIASES, REPLACED_KEYS, Keys, key_to_character

from controller.api.operations.on_cluster import Autoscale, Rolling, Scale, SetSettings, StopRolling
from controller.api.operations.on_instances import Drain, Evacuate, Restart, Undrain
from controller.api.operations.on_requests import Abort, Migrate, SetPriority
from controller.api.operations.order import Danger, Kind, Order
from controller.api.operations.table import ORDERS


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
    """One action of the dashboard."""

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


@dataclass(frozen=True, slots=True)
class Target:
    """What an action is done to: the ids of a row, taken when its key is pressed. `instance_id` of
    a request's row: where the request is. `other`: what the row names instead and nothing is done
    to, such as a frontend. `operation_id`: of an event that tells what an operator did."""

    instance_id: str = ""
    request_id: str = ""
    other: str = ""
    operation_id: str = ""

    @property
    def subject(self) -> str:
        """The id that the row shows first, whole."""
        return self.request_id or self.instance_id or self.other

    def of(self, kind: Kind) -> str:
        """The id of that kind; empty if the row is about none."""
        ids = {Kind.INSTANCE: self.instance_id, Kind.REQUEST: self.request_id}
        return ids.get(kind, "")


NOTHING = Target()


def _gives(row: type[Order[Any, Any]], *, does: str = "", footer: str = "") -> Action:
    """`does`: what the key calls, if it does not act on rows; an order without a key is typed."""
    return Action(
        row.kind,
        (row.key,) if row.key else (),
        (does or f"act('{row.kind}')") if row.key else "",
        row.meaning,
        Place.ROWS,
        footer,
        row.typed,
        change=Change(row.about, row.usage, row.danger, row.several),
    )


_FIRST: tuple[Action, ...] = (
    _gives(Drain, footer="drain"),
    _gives(Undrain, footer="undrain"),
    _gives(SetPriority),
    _gives(Migrate),
    _gives(Abort),
    _gives(Restart),
    _gives(Evacuate),
    _gives(Rolling),
    _gives(StopRolling),
    Action("mark", ("x",), "mark", "mark this row, or not: keys act on all marked", Place.ROWS),
    _gives(Scale),
    Action("scale_out", ("plus",), "scale('+1')", "one instance more", Place.ROWS, live=True),
    Action("scale_in", ("minus",), "scale('-1')", "one instance fewer", Place.ROWS, live=True),
    _gives(Autoscale, does="autoscale"),
    Action(
        "tune",
        ("t",),
        "tune",
        "the settings of the running cluster",
        Place.ROWS,
        "tune",
        "tune",
        live=True,
    ),
    Action(
        "setting_edit",
        ("e",),
        "edit",
        "change the setting of this row",
        Place.TUNING,
        "edit",
        change=Change(Kind.CLUSTER, "llumctl set KEY=VALUE", Danger.CONFIRM),
    ),
    _gives(SetSettings),
    Action(
        "undo",
        ("U",),
        "undo",
        "take back what was done last, by anybody",
        Place.ROWS,
        typed="undo",
        change=Change(Kind.CLUSTER, "llumctl undo", Danger.CONFIRM),
    ),
    Action(
        "log",
        ("L",),
        "log",
        "what was done here, and its outcome",
        Place.ROWS,
        typed="log",
        live=True,
    ),
    Action(
        "read_only",
        ("R",),
        "read_only",
        "allow changes, or do not",
        Place.ROWS,
        typed="read_only",
        live=True,
    ),
)
"""What changes the cluster and what shows or allows that, in the order in which the help has it. An
order that is not named here follows by itself."""
_FIRST_IDS = {each.action_id for each in _FIRST}
_CHANGES = _FIRST + tuple(
    _gives(row) for row in ORDERS.values() if row.meaning and row.kind not in _FIRST_IDS
)
_OF_REPLAYS: tuple[Action, ...] = (
    Action(
        "replay_slower", ("[",), "speed(-1)", "half the speed", Place.ROWS, "slower", replay=True
    ),
    Action(
        "replay_faster", ("]",), "speed(1)", "twice the speed", Place.ROWS, "faster", replay=True
    ),
    Action(
        "replay_back", ("left",), "seek(-10)", "10 s back", Place.ROWS, "10 s back", replay=True
    ),
    Action("replay_on", ("right",), "seek(10)", "10 s on", Place.ROWS, "10 s on", replay=True),
    Action(
        "replay_back_far", ("shift+left",), "seek(-60)", "a minute back", Place.ROWS, replay=True
    ),
    Action("replay_on_far", ("shift+right",), "seek(60)", "a minute on", Place.ROWS, replay=True),
    Action(
        "replay_start", ("less_than_sign",), "edge(-1)", "to the start", Place.ROWS, replay=True
    ),
    Action("replay_end", ("greater_than_sign",), "edge(1)", "to the end", Place.ROWS, replay=True),
    Action(
        "replay_step", ("full_stop",), "step(1)", "pause, one frame on", Place.ROWS, replay=True
    ),
    Action(
        "replay_step_back", ("comma",), "step(-1)", "pause, one frame back", Place.ROWS, replay=True
    ),
    Action(
        "replay_trouble",
        ("w",),
        "to_event('trouble', 1)",
        "to the next trouble, and pause",
        Place.ROWS,
        "trouble",
        replay=True,
    ),
    Action(
        "replay_trouble_before",
        ("W",),
        "to_event('trouble', -1)",
        "to the trouble before",
        Place.ROWS,
        replay=True,
    ),
    Action(
        "replay_notable",
        ("v",),
        "to_event('notable', 1)",
        "to the next notable event or trouble",
        Place.ROWS,
        replay=True,
    ),
    Action(
        "replay_notable_before",
        ("V",),
        "to_event('notable', -1)",
        "to the one before",
        Place.ROWS,
        replay=True,
    ),
    Action(
        "seek",
        ("at",),
        "seek_to",
        "to a moment: 2m30s, +30s, 12:04:31",
        Place.ROWS,
        typed="seek TIME",
        replay=True,
    ),
)


ACTIONS: tuple[Action, ...] = (
    Action("row_down", ("j", "down"), "move(1)", "next row", Place.TABLE),
    Action("row_up", ("k", "up"), "move(-1)", "previous row", Place.TABLE),
    Action("row_page_down", ("pagedown",), "page(1)", "a page down", Place.TABLE),
    Action("row_page_up", ("pageup",), "page(-1)", "a page up", Place.TABLE),
    Action("row_first", ("g", "home"), "first", "first row", Place.TABLE),
    Action("row_last", ("G", "end"), "last", "last row", Place.TABLE),
    Action(
        "row_open",
        ("enter",),
        "open",
        "the request or instance of this row",
        Place.TABLE,
        footer="detail",
    ),
    Action("back", ("escape",), "back", "marks off, zoom off, to the instances", Place.MAIN),
    Action(
        "back_main",
        ("escape", "backspace"),
        "back",
        "marks off, then back to the screen before",
        Place.DETAIL,
        "back",
    ),
    Action("help_close", ("escape", "backspace"), "back", "close the help", Place.HELP),
    *_CHANGES,
    Action("dialog_yes", ("y",), "yes", "do it", Place.DIALOG),
    Action("dialog_no", ("n", "escape"), "no", "do nothing", Place.DIALOG),
    Action("dialog_next", ("left", "right"), "next", "the other button", Place.DIALOG),
    Action("choice_none", ("escape",), "no", "choose nothing", Place.CHOICE),
    Action(
        "filter", ("slash",), "filter", "filter this pane", Place.ROWS, "filter", "filter [TEXT]"
    ),
    Action(
        "sort", ("s",), "sort", "choose the order of this table", Place.ROWS, "sort", "sort COLUMN"
    ),
    Action("sort_same", ("s",), "same", "the order in force, reversed", Place.SORTING),
    Action("sort_none", ("escape",), "no", "leave the order as it is", Place.SORTING),
    Action("sort_reverse", ("S",), "sort_reverse", "reverse the order", Place.ROWS),
    Action(
        "freeze",
        ("space",),
        "freeze",
        "freeze the screen (in a replay: pause)",
        Place.ROWS,
        footer="freeze",
        typed="freeze",
    ),
    *_OF_REPLAYS,
    Action("events_follow", ("F",), "follow", "follow the newest event", Place.MAIN),
    Action(
        "events_expand",
        ("e",),
        "expand",
        "all events, with causes and figures",
        Place.MAIN,
        footer="events",
    ),
    Action("pane_zoom", ("z",), "zoom", "this pane on the whole screen", Place.MAIN, footer="zoom"),
    Action("pane_instances", ("0",), "pane('instances')", "to the instances", Place.MAIN),
    Action("pane_migrations", ("1",), "pane('migrations')", "to the migrations", Place.MAIN),
    Action("pane_queue", ("2",), "pane('queue')", "to the queue heads", Place.MAIN),
    Action("pane_events", ("3",), "pane('events')", "to the events", Place.MAIN),
    Action("pane_next", ("tab",), "next_pane(1)", "to the next pane", Place.ROWS),
    Action("pane_previous", ("shift+tab",), "next_pane(-1)", "to the pane before", Place.ROWS),
    Action("theme", (), "", "colours", Place.ROWS, typed="theme THEME"),
    Action("instance", (), "", "an instance by its id", Place.ROWS, typed="instance ID"),
    Action(
        "requests",
        (),
        "",
        "all requests, or one's life, by its id",
        Place.ROWS,
        typed="requests [REQUEST]",
    ),
    Action("events", (), "", "all events, or some", Place.ROWS, typed="events [TEXT]"),
    Action(
        "logs",
        (),
        "",
        "a member's log, or the controller's",
        Place.ROWS,
        typed="logs [MEMBER]",
        live=True,
    ),
    Action(
        "wait",
        (),
        "",
        "until a condition holds, as ready, idle or drained=ID",
        Place.ROWS,
        typed="status --wait CONDITION",
        live=True,
        in_browser=False,
    ),
    Action(
        "doctor",
        (),
        "",
        "what would keep a cluster from starting on this machine",
        Place.ROWS,
        typed="doctor",
        live=True,
        in_browser=False,
    ),
    Action("copy_id", ("y",), "copy", "copy the whole id", Place.TABLE, footer="copy id"),
    Action("command", ("colon",), "command", "type a command", Place.ROWS, footer="cmd"),
    Action("palette", ("ctrl+p",), "command_palette", "choose an action", Place.ANYWHERE),
    Action(
        "suspend",
        ("ctrl+z",),
        "suspend_process",
        "to the shell; fg returns",
        Place.ANYWHERE,
        in_browser=False,
    ),
    Action(
        "picture",
        ("P",),
        "picture",
        "save a picture of this screen (SVG)",
        Place.ANYWHERE,
        in_browser=False,
        typed="picture",
    ),
    Action("help", ("question_mark",), "help", "this help", Place.ANYWHERE, "help", "help"),
    Action("quit", ("q", "ctrl+c", "ctrl+q"), "quit", "leave", Place.ANYWHERE, "quit", "quit"),
)


def bindings(*places: Place) -> list[BindingType]:
    return [
        Binding(",".join(each.keys), each.action, each.text, show=False, id=each.action_id)
        for each in ACTIONS
        if each.keys and each.place in places
    ]


_BY_ID = {each.action_id: each for each in ACTIONS}


def action_of(action_id: str) -> Action:
    return _BY_ID[action_id]


def keys_of(action: Action, keymap: Mapping[str, str]) -> tuple[str, ...]:
    """The keys in force, after rebinding."""
    rebound = keymap.get(action.action_id)
    return action.keys if rebound is None else tuple(rebound.split(","))


def first_of(action_id: str, keymap: Mapping[str, str]) -> str:
    """The key of an action as people call it; where there are several, the first."""
    return shown_key(keys_of(action_of(action_id), keymap)[0])


def of_places(
    places: Iterable[Place], *, replay: bool, changes: bool, in_browser: bool = False
) -> list[Action]:
    """The actions that work on a screen of these places. `changes`: whether the cluster may be
    changed in this session."""
    wanted = {*places, Place.TABLE, Place.ANYWHERE}
    return [
        each
        for each in ACTIONS
        if each.place in wanted
        and _works(each, replay=replay, changes=changes)
        and (each.in_browser or not in_browser)
    ]


def footer(
    keymap: Mapping[str, str], places: Iterable[Place], *, replay: bool, changes: bool = True
) -> list[tuple[str, str]]:
    """(key, word) pairs for the bottom line. `changes`: whether the cluster may be changed."""
    wanted = set(places)
    return [
        (
            shown_key(keys_of(each, keymap)[0]),
            "pause" if replay and each.action_id == "freeze" else each.footer,
        )
        for each in ACTIONS
        if each.footer and each.place in wanted and _works(each, replay=replay, changes=changes)
    ]


def _works(action: Action, *, replay: bool, changes: bool) -> bool:
    if replay:
        return not action.live and action.change is None
    return not action.replay and (changes or action.change is None)


_KEY_WORDS = {
    "space": "Space",
    "enter": "Enter",
    "escape": "Esc",
    "backspace": "Backspace",
    "pagedown": "PgDn",
    "pageup": "PgUp",
    "down": "Down",
    "up": "Up",
    "left": "Left",
    "right": "Right",
    "shift+left": "Shift-Left",
    "shift+right": "Shift-Right",
    "home": "Home",
    "end": "End",
    "tab": "Tab",
    "shift+tab": "Shift-Tab",
}


def shown_key(key: str) -> str:
    """A key as people call it."""
    return _KEY_WORDS.get(key) or character_of(key) or key.replace("ctrl+", "Ctrl-")


def character_of(key: str) -> str | None:
    """The character that a key types; None if that has no glyph."""
    found = key_to_character(REPLACED_KEYS.get(key, key))
    return found if found is not None and found.isprintable() else None


FIXED = ("ctrl+c", "ctrl+q")
"""Keys that always leave: nobody must be caught in a dashboard."""

TOGETHER = (
    (Place.MAIN, Place.ROWS, Place.TABLE, Place.ANYWHERE),
    (Place.DETAIL, Place.ROWS, Place.TABLE, Place.ANYWHERE),
    (Place.TUNING, Place.DETAIL, Place.ROWS, Place.TABLE, Place.ANYWHERE),
    (Place.HELP, Place.TABLE, Place.ANYWHERE),
    (Place.DIALOG,),
    (Place.CHOICE, Place.TABLE),
    (Place.SORTING, Place.TABLE),
)
"""Places whose keys are in force at the same time."""

_MODIFIERS = ("ctrl", "shift", "alt", "super", "meta", "hyper")
_NAMED_KEYS = {str(key.value) for key in Keys}
_ALIASES = {alias: key for key, aliases in KEY_ALIASES.items() for alias in aliases}


class KeymapError(ValueError):
    """The message says what is wrong with the keys of `action_id`."""

    def __init__(self, action_id: str, message: str) -> None:
        super().__init__(message)
        self.action_id = action_id


def checked_keymap(wanted: Mapping[str, str], own: Sequence[Action] = ()) -> dict[str, str]:
    """The keymap that Textual takes, FIXED among the keys that leave.

    `wanted`: action ids, each with keys between commas, by Textual's names or as characters.
    `own`: entries of the operator's own commands, whose keys are checked beside the others.

    Raises:
        KeymapError: no such action, no such key, a key that is FIXED, or one that would mean two
            things in one place.
    """
    known = [each.action_id for each in ACTIONS if each.keys]
    keymap: dict[str, str] = {}
    for action_id, text in wanted.items():
        if action_id not in known:
            nearest = difflib.get_close_matches(action_id, known, 1)
            meant = f"; did you mean {nearest[0]}?" if nearest else f": {', '.join(known)}"
            raise KeymapError(action_id, f"no key does {action_id[:40]!r}{meant}")
        keymap[action_id] = ",".join(_checked_keys(action_id, text))
    for each in own:
        _checked_keys(each.action_id, ",".join(each.keys) or "x")
    for active in TOGETHER:
        _check_clashes([each for each in (*ACTIONS, *own) if each.place in active], keymap)
    return keymap


def _checked_keys(action_id: str, text: str) -> list[str]:
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if not _is_key(name):
            raise KeymapError(
                action_id, f"{name[:40]!r} is no key: they are as in x, X, f5, slash, ctrl+x"
            )
        if name in FIXED and action_id != "quit":
            raise KeymapError(action_id, f"{name} always leaves the dashboard")
    if action_id != "quit":
        return names
    return [*(name for name in names if name not in FIXED), *FIXED]


def _is_key(name: str) -> bool:
    *modifiers, key = name.split("+")
    if any(modifier not in _MODIFIERS for modifier in modifiers):
        return False
    return name in _NAMED_KEYS or key in _NAMED_KEYS or character_of(key) is not None


def _check_clashes(entries: list[Action], keymap: Mapping[str, str]) -> None:
    """Blames the rebound action of two that clash; if both were, the later one."""
    meanings: dict[str, Action] = {}
    places = {action_id: place for place, action_id in enumerate(keymap, start=1)}
    for key in sorted(entries, key=lambda key: places.get(key.action_id, 0)):
        for name in keys_of(key, keymap):
            pressed = _pressed(name)
            if pressed in meanings:
                other = meanings[pressed]
                raise KeymapError(
                    key.action_id, f"{name} is the key of {other.action_id} ({other.text}) too"
                )
            meanings[pressed] = key


def _pressed(name: str) -> str:
    """One name for all names of a key: terminals send one code for ctrl+i and tab."""
    name = _ALIASES.get(name, name)
    return character_of(name) or name
