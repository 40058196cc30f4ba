"""Priority levels of the load: which there are, and which share of the requests is of each."""

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controller.api.errors import UsageError


@dataclass(frozen=True, slots=True)
class Level:
    """`priority` as a request carries it: vLLM's, where lower goes first, so minus the rank."""

    name: str
    priority: int


Shares = Mapping[Level, float]
"""They sum to 1."""

DEFAULT = Level("normal", 0)


def parse(wanted: Sequence[str], known: Sequence[Level]) -> Shares:
    """Parses `high=0.1`, or `-1=0.1` with the request's `priority` itself; the level of priority 0
    gets what is left.

    Raises:
        UsageError: an unknown level, or shares that are none or sum to more than 1.
    """
    shares: dict[Level, float] = {}
    for text in wanted:
        name, equals, raw = text.rpartition("=")
        level = _level(name.strip(), known) if equals else None
        if level is None:
            raise UsageError(
                f"--priority: {text[:40]!r} is not of the form LEVEL=SHARE", _example(known)
            )
        if level in shares:
            raise UsageError(f"--priority: {level.name} is given twice", _example(known))
        shares[level] = _share(text, raw, known)
    total = math.fsum(shares.values())
    if total > 1 + 1e-9:
        raise UsageError(f"--priority: the shares sum to {total:g}, more than 1", _example(known))
    rest = next((level for level in known if level.priority == 0), DEFAULT)
    if total < 1 - 1e-9:
        shares[rest] = shares.get(rest, 0.0) + 1 - total
    return shares


def _level(name: str, known: Sequence[Level]) -> Level:
    for level in known:
        if level.name == name:
            return level
    try:
        priority = int(name)
    except ValueError:
        names = [level.name for level in known]
        near = difflib.get_close_matches(name, names, 1)
        raise UsageError(
            f"--priority: there is no level {name[:40]!r}; the levels are {', '.join(names)}",
            f"llumctl bench --priority {(near or names)[0]}=0.1",
        ) from None
    if abs(priority) > 100:
        raise UsageError(
            f"--priority: {priority} is beyond -100 to 100, which all ranks are within",
            _example(known),
        )
    same = next((level for level in known if level.priority == priority), None)
    return same or Level(str(priority), priority)


def _share(text: str, raw: str, known: Sequence[Level]) -> float:
    try:
        share = float(raw)
    except ValueError:
        share = math.nan
    if not 0 <= share <= 1:
        raise UsageError(
            f"--priority: the share in {text[:40]!r} is no number from 0 to 1", _example(known)
        )
    return share


def _example(known: Sequence[Level]) -> str:
    first = min(known, key=lambda level: level.priority, default=Level("high", -1))
    return f"llumctl bench --priority {first.name}=0.1"
