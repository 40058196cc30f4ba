"""A walk over decoded JSON without recursion, however deep it is."""

from collections.abc import Collection, Iterator
from typing import Any


def levels(found: dict[str, Any] | list[Any], skipped: Collection[str] = ()) -> Iterator[list[Any]]:
    """Yields the objects and lists level by level, without those under a key of `skipped`."""
    level = [found]
    while level:
        yield level
        level = [
            child
            for value in level
            for child in _children(value, skipped)
            if isinstance(child, dict | list)
        ]


def _children(value: dict[str, Any] | list[Any], skipped: Collection[str]) -> Iterator[Any]:
    if isinstance(value, list):
        return iter(value)
    return (child for key, child in value.items() if key not in skipped)
