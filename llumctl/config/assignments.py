"""`KEY=VALUE` as people type it: after `llumctl set`, and after `--set` of other commands."""

from collections.abc import Iterable

from controller.api.errors import UsageError


def parse(texts: Iterable[str], where: str, example: str) -> dict[str, str]:
    """Texts by key, without white space around either. Raises UsageError for another form and for a
    key that is given twice; its message begins with `where`."""
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not (key and equals and value) or not text.isprintable():
            raise UsageError(f"{where}: {text[:60]!r} is not of the form KEY=VALUE", example)
        if key in found:
            raise UsageError(f"{where}: {key[:60]} is given twice", example)
        found[key] = value
    return found
