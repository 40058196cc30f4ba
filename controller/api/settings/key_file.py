"""The endpoint's file of API keys. Each line has one key, then the levels that the key may ask for,
and limits of its own, which replace the limits in `[limits]`.

    sk-of-a-team
    sk-of-a-batch-job    low             tokens_per_minute=200000
    sk-of-a-dashboard    normal,high     live_requests=4

A key without levels may ask for every level. A limit of 0 means no limit.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

LIMITS = ("live_requests", "tokens_per_minute")
_ID_CHARS = 12


@dataclass(frozen=True, slots=True)
class ApiKey:
    """`levels`: the names of the priority levels that the key may ask for; empty means all.
    `limits`: the key's own limits, under the names in LIMITS."""

    key: str = field(repr=False)
    levels: tuple[str, ...] = ()
    limits: Mapping[str, int] = field(default_factory=dict)


def key_id(key: str) -> str:
    """The id by which messages, logs and metrics name a key: the beginning of its SHA-256, as
    `printf %s KEY | sha256sum` shows it. The owner of a key can find its id, and nobody can find
    the key from the id."""
    return hashlib.sha256(key.encode()).hexdigest()[:_ID_CHARS]


def parse_line(line: str) -> ApiKey:
    """Parses a line that is not blank. A key may contain commas. A word that is no limit counts as
    a level, and `check` refuses unknown levels."""
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
    """The limits of each key that has limits of its own, under the key's `key_id`."""
    keys = [parse_line(line) for line in lines]
    return {key_id(each.key): each.limits for each in keys if each.limits}


def check(text: str, levels: Collection[str]) -> None:
    """Raises ValueError if a line is wrong. The error names the line but quotes nothing of it,
    because a quote could show a key that contains a blank."""
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
