"""Figures of a profile that are given instead of measured: `--set copy_bytes_per_s=10e9`."""

import tomllib
from collections.abc import Iterable
from typing import Any

from controller.api.errors import UsageError
from controller.model.profile import checked

EXAMPLE = "llumctl profile --set copy_bytes_per_s=10e9"


def parse(assignments: Iterable[str]) -> dict[str, Any]:
    """Values as TOML writes them; a text needs no quotes. Raises UsageError."""
    found: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, raw = (part.strip() for part in assignment.partition("="))
        if not equals or not key:
            raise UsageError(f"--set: {assignment[:60]!r} is not of the form key=value", EXAMPLE)
        if key in found:
            raise UsageError(f"--set: {key} is given twice", EXAMPLE)
        try:
            found[key] = checked(key, _value(raw), "--set")
        except ValueError as error:
            raise UsageError(str(error), EXAMPLE) from error
    return found


def _value(raw: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {raw}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return raw
    return parsed["value"] if len(parsed) == 1 else raw
