"""The endpoint's file of API keys: one key a line, and after it the levels that it may ask for.

    sk-of-a-team
    sk-of-a-batch-job    low
    sk-of-a-dashboard    normal,high

A key alone may ask for every level.
"""

from collections.abc import Collection
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ApiKey:
    """`levels`: names of priority levels; empty: all."""

    key: str = field(repr=False)
    levels: tuple[str, ...] = ()


def parse_line(line: str) -> ApiKey:
    """Parses a line that is not blank. A key may have commas."""
    key, _, names = line.strip().replace("\t", " ").partition(" ")
    return ApiKey(key, tuple(names.replace(",", " ").split()))


def check(text: str, levels: Collection[str]) -> None:
    """Raises ValueError, which names the line but quotes nothing of it, as a key with a blank in
    it would be shown."""
    seen: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        found = parse_line(line)
        if not set(found.levels) <= set(levels):
            raise ValueError(
                f"line {number}: what follows the key is no list of priority levels"
                f" ({', '.join(levels)})"
            )
        if found.key in seen:
            raise ValueError(f"line {number}: the same key as in line {seen[found.key]}")
        seen[found.key] = number
