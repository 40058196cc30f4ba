"""Every action of the dashboard, once.

Bindings, footer, help, palette, typed commands, rebound keys and the tests read this
table. Keys that terminals, tmux and accidents claim are not used: ctrl-a, ctrl-b, ctrl-d, ctrl-k.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from textual.binding import Binding, BindingType

from tui.actions.key_names import shown
from tui.actions.target import Kind


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


class Danger(StrEnum):
    """`choose`: the order is given by choosing what it says; `confirm`: after its plan was shown,
    which may ask for a typed name."""

    NONE = "none"
    CHOOSE = "choose"
    CONFIRM = "confirm"


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
    Action(
        "drain",
        ("d",),
        "act('drain')",
        "empty the instance of this row",
        Place.ROWS,
        "drain",
        "drain ID...",
        change=Change(Kind.INSTANCE, "llumctl drain ID", Danger.CONFIRM),
    ),
    Action(
        "undrain",
        ("u",),
        "act('undrain')",
        "take its drain back, or an operator's event",
        Place.ROWS,
        "undrain",
        "undrain ID...",
        change=Change(Kind.INSTANCE, "llumctl undrain ID"),
    ),
    Action(
        "priority",
        ("p",),
        "act('priority')",
        "choose the priority of the request of this row",
        Place.ROWS,
        typed="priority REQUEST [LEVEL]",
        change=Change(Kind.REQUEST, "llumctl priority REQUEST LEVEL", Danger.CHOOSE),
    ),
    Action(
        "migrate",
        ("m",),
        "act('migrate')",
        "choose where the request of this row is moved",
        Place.ROWS,
        typed="migrate REQUEST [ID]",
        change=Change(Kind.REQUEST, "llumctl migrate REQUEST --to ID", Danger.CHOOSE),
    ),
    Action(
        "abort",
        ("a",),
        "act('abort')",
        "end the request of this row",
        Place.ROWS,
        typed="abort REQUEST...",
        change=Change(Kind.REQUEST, "llumctl abort REQUEST", Danger.CONFIRM),
    ),
    Action(
        "restart",
        ("r",),
        "act('restart')",
        "empty the instance of this row, then replace its process",
        Place.ROWS,
        typed="restart ID",
        change=Change(Kind.INSTANCE, "llumctl restart ID", Danger.CONFIRM, several=False),
    ),
    Action(
        "evacuate",
        (),
        "",
        "move an instance's requests to others within 30 s, and remove it then",
        Place.ROWS,
        typed="evacuate ID",
        change=Change(Kind.INSTANCE, "llumctl evacuate ID", Danger.CONFIRM, several=False),
    ),
    Action(
        "rolling",
        (),
        "",
        "restart all instances, one after the other",
        Place.ROWS,
        typed="rolling",
        change=Change(Kind.CLUSTER, "llumctl restart --rolling", Danger.CONFIRM),
    ),
    Action(
        "stop_rolling",
        (),
        "",
        "stop the rolling restart: no other instance follows",
        Place.ROWS,
        typed="stop_rolling",
        change=Change(Kind.CLUSTER, "llumctl restart --stop", Danger.CONFIRM),
    ),
    Action("mark", ("x",), "mark", "mark this row, or not: keys act on all marked", Place.ROWS),
    Action(
        "scale",
        (),
        "",
        "another number of instances",
        Place.ROWS,
        typed="scale N",
        change=Change(Kind.CLUSTER, "llumctl scale N", Danger.CONFIRM),
    ),
    Action("scale_out", ("plus",), "scale('+1')", "one instance more", Place.ROWS, live=True),
    Action("scale_in", ("minus",), "scale('-1')", "one instance fewer", Place.ROWS, live=True),
    Action(
        "autoscale",
        ("A",),
        "autoscale",
        "choose whether instances come and go with the load",
        Place.ROWS,
        typed="autoscale [MODE]",
        change=Change(Kind.CLUSTER, "llumctl autoscale MODE", Danger.CHOOSE),
    ),
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
    Action(
        "set",
        (),
        "",
        "change a setting",
        Place.ROWS,
        typed="set KEY=VALUE...",
        change=Change(Kind.CLUSTER, "llumctl set KEY=VALUE", Danger.CONFIRM),
    ),
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
    Action("explain", (), "", "a request's life, by its id", Place.ROWS, typed="explain REQUEST"),
    Action("requests", (), "", "all requests, or an instance's", Place.ROWS, typed="requests [ID]"),
    Action("events", (), "", "all events, or some", Place.ROWS, typed="events [TEXT]"),
    Action(
        "get", (), "", "settings, or the value of one", Place.ROWS, typed="get [KEY]", live=True
    ),
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
        typed="wait CONDITION",
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
    return shown(keys_of(action_of(action_id), keymap)[0])


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
            shown(keys_of(each, keymap)[0]),
            "pause" if replay and each.action_id == "freeze" else each.footer,
        )
        for each in ACTIONS
        if each.footer and each.place in wanted and _works(each, replay=replay, changes=changes)
    ]


def _works(action: Action, *, replay: bool, changes: bool) -> bool:
    if replay:
        return not action.live and action.change is None
    return not action.replay and (changes or action.change is None)
