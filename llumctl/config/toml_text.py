"""Writes plain values as TOML, which the standard library only reads."""

import json
import math
import re
from collections.abc import Mapping
from datetime import date, datetime, time
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def key(name: str) -> str:
    return name if _BARE.fullmatch(name) else string(name)


def string(text: str) -> str:
    """Writes a basic string: TOML has JSON's escapes, and wants DEL escaped too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def value(item: Any) -> str:
    """Writes a value on one line. Raises TypeError for what TOML lacks, such as None."""
    if isinstance(item, str):
        return string(item)
    if isinstance(item, float) and not math.isfinite(item):
        return str(item)
    if isinstance(item, bool | int | float):
        return json.dumps(item)
    if isinstance(item, datetime | date | time):
        return item.isoformat()
    if isinstance(item, list | tuple):
        return f"[{', '.join(map(value, item))}]"
    if isinstance(item, Mapping):
        pairs = [f"{key(name)} = {value(inner)}" for name, inner in item.items()]
        return f"{{{', '.join(pairs)}}}"
    raise TypeError(f"TOML has no {type(item).__name__}")
