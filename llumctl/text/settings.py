"""Settings of a running cluster as people type and read them."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from controller.api.errors import UsageError

if TYPE_CHECKING:
    from controller.api.wire.settings import SettingValue

HINT = "llumctl set migration.max_moves=2"


def parse(assignments: Iterable[str]) -> "dict[str, SettingValue]":
    """`KEY=VALUE` each; the controller says whether there is such a key and value.

    Raises UsageError for another form, and for a key that is given twice."""
    found: dict[str, SettingValue] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not (key and equals and text) or not assignment.isprintable():
            raise UsageError(f"KEY=VALUE: {assignment[:60]!r} is not of that form", HINT)
        if key in found:
            raise UsageError(f"KEY=VALUE: {key[:60]} is given twice", HINT)
        found[key] = _value(text)
    return found


def _value(text: str) -> "SettingValue":
    """The inverse of `quantities.setting_value`."""
    if text in ("true", "false"):
        return text == "true"
    if text == "none":
        return None
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        if value == value and abs(value) != float("inf"):
            return value
    return text
