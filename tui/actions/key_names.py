"""Keys as people call them."""

from textual.keys import REPLACED_KEYS, key_to_character

_NAMES = {
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


def shown(key: str) -> str:
    """A key as people call it."""
    return _NAMES.get(key) or character_of(key) or key.replace("ctrl+", "Ctrl-")


def character_of(key: str) -> str | None:
    """The character that a key types; None if that has no glyph."""
    found = key_to_character(REPLACED_KEYS.get(key, key))
    return found if found is not None and found.isprintable() else None
