"""Every action of the dashboard, once.

Bindings, footer, help, palette, typed commands, rebound keys and the tests read this
table, whose order is theirs. Keys that terminals, tmux and accidents claim are not used: ctrl-a,
ctrl-b, ctrl-d, ctrl-k.
"""

from collections.abc import Iterable, Mapping

from textual.binding import Binding, BindingType

from tui.actions.action import Action, Place
from tui.actions.changes import CHANGES
from tui.actions.key_names import shown
from tui.actions.replay_keys import REPLAY_KEYS

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
    *CHANGES,
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
    *REPLAY_KEYS,
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
