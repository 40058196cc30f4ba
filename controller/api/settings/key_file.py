"""The endpoint's file of API keys: one key a line, and after it the levels that it may ask for,
and limits of its own, in place of those in `[limits]`.

    sk-of-a-team
    sk-of-a-batch-job    low             tokens_per_minute=200000
    sk-of-a-dashboard    normal,high     live_requests=4

A key alone may ask for every level. A limit of 0 is none.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

LIMITS = ("live_requests", "tokens_per_minute")
_ID_CHARS = 12


@dataclass(frozen=True, slots=True)
class ApiKey:
    """`levels`: names of priority levels; empty: all. `limits`: by the names of LIMITS."""

    key: str = field(repr=False)
    levels: tuple[str, ...] = ()
    limits: Mapping[str, int] = field(default_factory=dict)


def key_id(key: str) -> str:
    """By which a key is known in messages, logs and metrics: the beginning of its SHA-256, as
    `printf %s KEY | sha256sum` shows it. Whoever has made a key finds it so, and nobody the key."""
    return hashlib.sha256(key.encode()).hexdigest()[:_ID_CHARS]


def parse_line(line: str) -> ApiKey:
    """Parses a line that is not blank. A key may have commas. What is no limit counts as a level,
    which `check` refuses."""
    key, _, rest = line.strip().replace("\t", " ").partition(" ")
    levels: list[str] = []
    limits: dict[str, int] = {}
    for word in rest.replace(",", " ").split():
        name, _, number = word.partition("=")
        if name in LIMITS and number.isascii() and number.isdigit():
            limits[name] = int(number)
        else:
            levels.append(word)
    return ApiKey(key, tuple(levels), limits)


def own_limits(lines: Sequence[str]) -> dict[str, Mapping[str, int]]:
    """By `key_id`, of the keys that have any."""
    keys = [parse_line(line) for line in lines]
    return {key_id(each.key): each.limits for each in keys if each.limits}


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
                f" ({', '.join(levels)}) and limits ({'=N, '.join(LIMITS)}=N)"
            )
        if found.key in seen:
            raise ValueError(f"line {number}: the same key as in line {seen[found.key]}")
        seen[found.key] = number
