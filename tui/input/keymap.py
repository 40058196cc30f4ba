"""Other keys than the usual ones: `action id -> keys`, checked before anything is drawn."""

import difflib
from collections.abc import Mapping, Sequence

from textual.keys import KEY_ALIASES, Keys

from tui.actions.action import Action, Place
from tui.actions.key_names import character_of
from tui.actions.registry import ACTIONS, keys_of

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
_NAMED = {str(key.value) for key in Keys}
_ALIASES = {alias: key for key, aliases in KEY_ALIASES.items() for alias in aliases}


class KeymapError(ValueError):
    """The message says what is wrong with the keys of `action_id`."""

    def __init__(self, action_id: str, message: str) -> None:
        super().__init__(message)
        self.action_id = action_id


def checked(wanted: Mapping[str, str], own: Sequence[Action] = ()) -> dict[str, str]:
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
        keymap[action_id] = ",".join(_keys(action_id, text))
    for each in own:
        _keys(each.action_id, ",".join(each.keys) or "x")
    for active in TOGETHER:
        _check_clashes([each for each in (*ACTIONS, *own) if each.place in active], keymap)
    return keymap


def _keys(action_id: str, text: str) -> list[str]:
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if not _exists(name):
            raise KeymapError(
                action_id, f"{name[:40]!r} is no key: they are as in x, X, f5, slash, ctrl+x"
            )
        if name in FIXED and action_id != "quit":
            raise KeymapError(action_id, f"{name} always leaves the dashboard")
    if action_id != "quit":
        return names
    return [*(name for name in names if name not in FIXED), *FIXED]


def _exists(name: str) -> bool:
    *modifiers, key = name.split("+")
    if any(modifier not in _MODIFIERS for modifier in modifiers):
        return False
    return name in _NAMED or key in _NAMED or character_of(key) is not None


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
