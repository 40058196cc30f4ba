"""Makes a JSON request smaller as long as the endpoint does the same to it."""

import copy
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from tools.fuzz.case import Case

MAX_TRIES = 80


async def shrink(
    case: Case, does_the_same: Callable[[Case], Awaitable[bool]], max_tries: int = MAX_TRIES
) -> Case | None:
    """None if nothing could be left out, or if it was no plain JSON."""
    body = case.json_body
    if body is None:
        return None
    smallest: Case | None = None
    num_tries = 0
    while True:
        for smaller in reductions(body):
            if num_tries == max_tries:
                return smallest
            num_tries += 1
            tried = case.with_json(smaller)
            if await does_the_same(tried):
                smallest, body = tried, smaller
                break
        else:
            return smallest


def reductions(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Copies with one thing less: a field, half of a list or of a text. Outer ones first."""
    for path, value in _nodes(body):
        if path:
            yield _edited(body, path, None, drops=True)
        if isinstance(value, list | str) and len(value) > 1:
            middle = len(value) // 2
            yield _edited(body, path, value[:middle])
            yield _edited(body, path, value[middle:])


def _nodes(body: dict[str, Any]) -> list[tuple[tuple[Any, ...], Any]]:
    found: list[tuple[tuple[Any, ...], Any]] = [((), body)]
    for path, value in found:
        if len(found) > 500:
            break
        if isinstance(value, dict):
            found += [((*path, key), child) for key, child in value.items()]
        elif isinstance(value, list):
            found += [((*path, n), child) for n, child in enumerate(value[:50])]
    return found


def _edited(
    body: dict[str, Any], path: tuple[Any, ...], value: Any, drops: bool = False
) -> dict[str, Any]:
    made = copy.deepcopy(body)
    holder: Any = made
    for key in path[:-1]:
        holder = holder[key]
    if drops:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    return made
