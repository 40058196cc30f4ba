"""Settings of a running cluster as people type and read them."""

from collections.abc import Iterable

from controller.api.errors import UsageError

HINT = "llumctl set migration.max_moves=2"


def parse(assignments: Iterable[str]) -> dict[str, int | float | str | bool]:
    """`KEY=VALUE` each; the controller says whether there is such a key and value.

    Raises UsageError for another form, and for a key that is given twice."""
    found: dict[str, int | float | str | bool] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not (key and equals and text) or not assignment.isprintable():
            raise UsageError(f"KEY=VALUE: {assignment[:60]!r} is not of that form", HINT)
        if key in found:
            raise UsageError(f"KEY=VALUE: {key[:60]} is given twice", HINT)
        found[key] = _value(text)
    return found


def value_text(value: float | str | bool) -> str:
    """Large numbers in full: what is shown can be typed."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(int(value)) if value.is_integer() else repr(value)
    return str(value)


def _value(text: str) -> int | float | str | bool:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        if value == value and abs(value) != float("inf"):
            return value
    return text
