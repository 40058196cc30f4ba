"""What an operator can do: every action once, with its keys, its words and where it works.

Bindings, footer, help, palette, typed commands, rebound keys and the tests read the table ACTIONS
and keep its order. An order takes its words, its key, its danger and its command from its row
(`controller.api.operations`). Keys that terminals or tmux use, or that are pressed by accident, are
not used here: ctrl-a, ctrl-b, ctrl-d, ctrl-k. Rebound keys (`action id -> keys`) are checked before
anything is drawn.
"""

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from textual.binding import ActiveBinding, Binding, BindingType
from textual.keys import KEY_ALIASES, REPLACED_KEYS, Keys, key_to_character

from controller.api.operations.on_cluster import Autoscale, Rolling, Scale, SetSettings, StopRolling
from controller.api.operations.on_instances import Drain, Evacuate, Restart, Undrain
from controller.api.operations.on_requests import Abort, Migrate, SetPriority
from controller.api.operations.order import Danger, Kind, Order
from controller.api.operations.table import ORDERS


class Group(StrEnum):
    """What an action is about. The help has a heading for each."""

    INSTANCE = "An instance, or all marked ones"
    REQUEST = "A request, or all marked ones"
    CLUSTER = "The cluster"
    ROWS = "Rows and tables"
    SCREEN = "This screen"
    REPLAY = "The replay"
    ANYWHERE = "Anywhere"


_OF_ROWS = ("filter", "sort", "sort_reverse", "mark")
"""Actions about rows that are bound to the screen and not to the table."""


class Place(StrEnum):
    TABLE = "table"
    """The table that has the focus."""
    ROWS = "rows"
    """A screen whose rows are instances and requests."""
    MAIN = "main"
    DETAIL = "detail"
    DIALOG = "dialog"
    CHOICE = "choice"
    """A dialog in which the operator chooses or types what an order is to say."""
    SORTING = "sorting"
    """A dialog in which the operator chooses the column by which a table is sorted."""
    TUNING = "tuning"
    HELP = "help"
    ANYWHERE = "anywhere"


@dataclass(frozen=True, slots=True)
class Change:
    """How an action changes the cluster. `command` does the same on the command line."""

    target: Kind
    command: str
    danger: Danger = Danger.NONE
    several: bool = True
    """Whether the action may be applied to all marked rows at once."""


@dataclass(frozen=True, slots=True)
class Action:
    """One action of the dashboard."""

    action_id: str
    keys: tuple[str, ...]
    """The keys by Textual's names; empty if the action can only be typed."""
    action: str
    text: str
    place: Place
    footer: str = ""
    """A short word for the footer; empty for a key that the footer does not show."""
    typed: str = ""
    """The command that can be typed after `:`, with the name of its argument; empty if there is
    only a key."""
    replay: bool = False
    """Whether the action works in a replay only."""
    live: bool = False
    """Whether the action works with a live controller only: a recording has nothing to show."""
    in_browser: bool = True
    """Whether the action works in a browser. A browser's user has no shell and no files here."""
    change: Change | None = None
    """Set for actions that change the cluster. Such actions are locked while the screen does not
    show the present."""

    @property
    def group(self) -> Group:
        if self.change is not None:
            groups = {Kind.INSTANCE: Group.INSTANCE, Kind.REQUEST: Group.REQUEST}
            return groups.get(self.change.target, Group.CLUSTER)
        if self.replay:
            return Group.REPLAY
        if self.live:
            return Group.CLUSTER
        if self.place is Place.TABLE or self.action_id in _OF_ROWS:
            return Group.ROWS
        return Group.ANYWHERE if self.place is Place.ANYWHERE else Group.SCREEN


@dataclass(frozen=True, slots=True)
class Target:
    """What an action is applied to: the ids of a row at the moment at which the key is pressed.

    `instance_id`: for a request's row, the instance that has the request. `other`: the name of
    something that no action can be applied to, such as a frontend. `operation_id`: for an event
    that says what an operator did, the id of that operation.
    """

    instance_id: str = ""
    request_id: str = ""
    other: str = ""
    operation_id: str = ""

    @property
    def kind(self) -> Kind | None:
        """What the row is about in the first place. A request's row names an instance too, and an
        operator's event says what it was about; keys of the event come first."""
        if self.operation_id:
            return None
        if self.request_id:
            return Kind.REQUEST
        return Kind.INSTANCE if self.instance_id else None

    @property
    def subject(self) -> str:
        """The id that the row shows first, in full."""
        return self.request_id or self.instance_id or self.other

    def of(self, kind: Kind) -> str:
        """The row's id of that kind; empty if the row has none."""
        ids = {Kind.INSTANCE: self.instance_id, Kind.REQUEST: self.request_id}
        return ids.get(kind, "")


NOTHING = Target()


def _gives(row: type[Order[Any, Any]], *, does: str = "", footer: str = "") -> Action:
    """The action that gives the order of this row. `does`: the method that the key calls, if the
    order is not about rows."""
    return Action(
        row.kind,
        (row.key,) if row.key else (),
        (does or f"app.act('{row.kind}')") if row.key else "",
        row.meaning,
        Place.ROWS,
        footer,
        row.typed,
        change=Change(row.about, row.usage, row.danger, row.several),
    )


_FIRST: tuple[Action, ...] = (
    _gives(Drain, footer="drain"),
    _gives(Undrain, footer="undrain"),
    _gives(SetPriority, footer="priority"),
    _gives(Migrate, footer="move"),
    _gives(Abort, footer="abort"),
    _gives(Restart, footer="restart"),
    _gives(Evacuate),
    _gives(Rolling),
    _gives(StopRolling),
    Action(
        "mark",
        ("x",),
        "mark",
        "mark or unmark this row: keys act on all marked rows",
        Place.ROWS,
        "mark",
    ),
    _gives(Scale),
    Action("scale_out", ("plus",), "app.scale('+1')", "one instance more", Place.ROWS, live=True),
    Action("scale_in", ("minus",), "app.scale('-1')", "one instance fewer", Place.ROWS, live=True),
    _gives(Autoscale, does="app.autoscale"),
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
        "app.undo",
        "take back the latest operation, whoever did it",
        Place.ROWS,
        typed="undo",
        change=Change(Kind.CLUSTER, "llumctl undo", Danger.CONFIRM),
    ),
    Action(
        "log",
        ("L",),
        "app.log",
        "what was done here, and its outcome",
        Place.ROWS,
        typed="log",
        live=True,
    ),
    Action(
        "read_only",
        ("R",),
        "app.read_only",
        "allow or forbid changes",
        Place.ROWS,
        typed="read_only",
        live=True,
    ),
)
"""Actions that change the cluster, or that show or allow changes, in the order of the help. Orders
that are not named here are added behind them."""
_FIRST_IDS = {each.action_id for each in _FIRST}
_CHANGES = _FIRST + tuple(
    _gives(row) for row in ORDERS.values() if row.meaning and row.kind not in _FIRST_IDS
)


def _replays(
    action_id: str, key: str, does: str, text: str, footer: str = "", typed: str = ""
) -> Action:
    """An action that works in replays only. `does`: the method of the application that the key
    calls."""
    return Action(
        action_id, (key,), f"app.{does}", text, Place.ROWS, footer, typed=typed, replay=True
    )


_OF_REPLAYS: tuple[Action, ...] = (
    _replays("replay_slower", "[", "speed(-1)", "half the speed", "slower"),
    _replays("replay_faster", "]", "speed(1)", "twice the speed", "faster"),
    _replays("replay_back", "left", "seek(-10)", "10 s back", "10 s back"),
    _replays("replay_on", "right", "seek(10)", "10 s on", "10 s on"),
    _replays("replay_back_far", "shift+left", "seek(-60)", "a minute back"),
    _replays("replay_on_far", "shift+right", "seek(60)", "a minute on"),
    _replays("replay_start", "less_than_sign", "edge(-1)", "to the start"),
    _replays("replay_end", "greater_than_sign", "edge(1)", "to the end"),
    _replays("replay_step", "full_stop", "step(1)", "pause, one frame on"),
    _replays("replay_step_back", "comma", "step(-1)", "pause, one frame back"),
    _replays(
        "replay_trouble",
        "w",
        "to_event('trouble', 1)",
        "to the next event of trouble, and pause",
        "trouble",
    ),
    _replays(
        "replay_trouble_before", "W", "to_event('trouble', -1)", "to the previous event of trouble"
    ),
    _replays(
        "replay_notable", "v", "to_event('notable', 1)", "to the next event, notable or of trouble"
    ),
    _replays(
        "replay_notable_before",
        "V",
        "to_event('notable', -1)",
        "to the previous event, notable or of trouble",
    ),
    _replays("seek", "at", "seek_to", "to a moment: 2m30s, +30s, 12:04:31", typed="seek TIME"),
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
    Action(
        "back",
        ("escape",),
        "back",
        "marks off, filter off, zoom off, to the instances",
        Place.MAIN,
    ),
    Action(
        "back_main",
        ("escape", "backspace"),
        "back",
        "marks off, filter off, then back to the screen before",
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
        "app.freeze",
        "freeze the screen (in a replay: pause)",
        Place.ROWS,
        footer="freeze",
        typed="freeze",
    ),
    Action(
        "tune",
        ("t",),
        "app.tune",
        "the settings of the running cluster",
        Place.ROWS,
        "tune",
        "tune",
        live=True,
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
    Action(
        "graphs",
        ("4",),
        "app.graphs",
        "the graphs on the whole screen",
        Place.ROWS,
        "graphs",
        "graphs",
    ),
    Action("graph_span", ("T",), "app.graph_span", "graphs of 1, 5 or 15 minutes", Place.ROWS),
    Action("heat", ("5",), "app.heat", "a cell for each instance", Place.ROWS, "heat", "heat"),
    Action(
        "alarms",
        ("6",),
        "app.alarms",
        "the alarms that are raised, and those that ended",
        Place.ROWS,
        "alarms",
        "alarms",
    ),
    Action("theme", (), "", "colours", Place.ROWS, typed="theme THEME"),
    Action(
        "cluster",
        (),
        "",
        "another cluster, or which ones there are",
        Place.ROWS,
        typed="cluster [CLUSTER]",
        live=True,
        in_browser=False,
    ),
    Action(
        "model",
        (),
        "",
        "one of several models alone, or all",
        Place.ROWS,
        typed="model [MODEL]",
        live=True,
        in_browser=False,
    ),
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
    Action("command", ("colon",), "app.command", "type a command", Place.ROWS, footer="cmd"),
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


ONLY_IN_REPLAYS = frozenset(
    each.action.removeprefix("app.").partition("(")[0] for each in _OF_REPLAYS
)
"""The methods of the application that these keys call."""


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
    """The first key of an action, under the name that people use."""
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
    active: Mapping[str, ActiveBinding],
    places: Iterable[Place],
    *,
    targets: Collection[Target],
    replay: bool,
    changes: bool = True,
) -> list[tuple[str, str]]:
    """Pairs of key and word for the bottom line of a screen of these places. `active`: Textual's
    bindings that are in force on this screen, by their keys. `targets`: what the keys of rows would
    act on; the keys that do nothing to it are left out. `changes`: whether the cluster may be
    changed. If not, the keys that would change it are left out. If the operator presses such a key
    anyway, it only says why it does nothing."""
    keys: dict[str, str] = {}
    for key, each in active.items():
        id_ = each.binding.id
        if id_ is not None and (id_ not in keys or keys[id_] in FIXED):
            keys[id_] = key
    wanted = {*places, Place.ANYWHERE}
    undoes = any(each.operation_id for each in targets)
    words = {"undrain": "undo"} if undoes else {}
    words |= {"freeze": "pause"} if replay else {}
    return [
        (shown_key(keys[each.action_id]), words.get(each.action_id, each.footer))
        for each in ACTIONS
        if each.footer
        and each.action_id in keys
        and each.place in wanted
        and _works(each, replay=replay, changes=changes)
        and (each.action_id in words or _acts_on(each, targets, changes=changes and not replay))
    ]


def _acts_on(action: Action, targets: Collection[Target], *, changes: bool) -> bool:
    """Whether the action does something to one of the targets, or is not about rows."""
    kinds = {each.kind for each in targets}
    if action.action_id == "mark":
        return changes and kinds != {None}
    if action.change is None or action.change.target is Kind.CLUSTER:
        return True
    return action.change.target in kinds and (action.change.several or len(targets) == 1)


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
    """The name of a key that people use."""
    return _KEY_WORDS.get(key) or character_of(key) or key.replace("ctrl+", "Ctrl-")


def character_of(key: str) -> str | None:
    """The character that a key types; None if that has no glyph."""
    found = key_to_character(REPLACED_KEYS.get(key, key))
    return found if found is not None and found.isprintable() else None


FIXED = ("ctrl+c", "ctrl+q")
"""Keys that always leave the dashboard, so that no rebinding can trap a user in it."""

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
    """The keys of `action_id` are wrong; the message says why."""

    def __init__(self, action_id: str, message: str) -> None:
        super().__init__(message)
        self.action_id = action_id


def checked_keymap(wanted: Mapping[str, str], own: Sequence[Action] = ()) -> dict[str, str]:
    """The keymap that Textual takes, with FIXED among the keys that leave.

    `wanted`: for each action id its keys, separated by commas, by Textual's names or as characters.
    `own`: the operator's own commands, whose keys are checked too.

    Raises:
        KeymapError: an action or a key that does not exist, a key that is FIXED, or a key that
            would mean two things in one place.
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
    """Raises KeymapError if two actions have the same key. The error is about the action that was
    rebound, or about the later one if both were rebound."""
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
    """One name for all names of a key: terminals send the same code for ctrl+i and tab."""
    name = _ALIASES.get(name, name)
    return character_of(name) or name
