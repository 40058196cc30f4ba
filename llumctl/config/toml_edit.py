"""Sets values in a TOML text and leaves the rest of it as it was: comments, order, spaces, endings
of lines. Each edit is checked by parsing what came out."""

import copy
import tomllib
from collections.abc import Sequence
from typing import Any

from llumctl.config import toml_lines, toml_text
from llumctl.config.toml_lines import Path

# A number or a string, or None: the key is to have no value.
Value = str | int | float | bool | None


class CannotEditError(ValueError):
    """What the text has there cannot be changed without touching something else."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(why)
        self.line = line


def set_value(text: str, table: Path, name: str, value: Value) -> str:
    """The text with `name = value` in `table`, which an array's index may end. A key that is to
    have no value is commented out. Raises CannotEditError."""
    lines = toml_lines.scan(text)
    pair = lines.pairs.get((*table, name))
    if pair is not None:
        edited = _replaced(text, pair, name, value, lines.keys[(*table, name)])
    elif value is None:
        return text
    else:
        edited = _inserted(text, lines, table, f"{toml_text.key(name)} = {toml_text.value(value)}")
    _check(text, edited, table, name, value)
    return edited


def with_tables(text: str, array: str, tables: Sequence[Sequence[tuple[str, Value]]]) -> str:
    """The text with `[[array]]` tables at its end, which has none of that name."""
    blocks = [
        "\n".join(
            [
                f"[[{array}]]",
                *(
                    f"{name} = {toml_text.value(value)}"
                    for name, value in table
                    if value is not None
                ),
            ]
        )
        for table in tables
    ]
    edited = text
    for block in blocks:
        edited = _appended(edited, block)
    return edited


def _replaced(text: str, pair: toml_lines.Pair, name: str, value: Value, line: int) -> str:
    if value is not None:
        return text[: pair.value_at] + toml_text.value(value) + text[pair.end :]
    begun = text.rfind("\n", 0, pair.key_at) + 1
    if pair.inline or text[begun : pair.key_at].strip() or "\n" in text[pair.key_at : pair.end]:
        raise CannotEditError(line, f"{name} is to have no value: take it out by hand")
    return f"{text[: pair.key_at]}# {text[pair.key_at :]}"


def _inserted(text: str, lines: toml_lines.Lines, table: Path, line: str) -> str:
    if table in lines.sections:
        return _below(text, *lines.sections[table], line)
    dotted = [
        pair
        for path, pair in lines.pairs.items()
        if path[: len(table)] == table and len(path) > len(table)
    ]
    if any(pair.inline for pair in dotted) or table in lines.pairs:
        where = lines.find(table) or 1
        raise CannotEditError(where, f"{table[0]} stands in braces: write {line} there by hand")
    if dotted:
        return _below(text, dotted[-1].key_at, dotted[-1].end, f"{table[0]}.{line}")
    return _appended(text, f"[{table[0]}]\n{line}")


def _below(text: str, key_at: int, end: int, line: str) -> str:
    """A line of its own behind the one that ends after `end`, indented as that of `key_at`."""
    begun = text.rfind("\n", 0, key_at) + 1
    lead = text[begun:key_at]
    indent = lead[: len(lead) - len(lead.lstrip())]
    newline = _newline(text)
    ended = text.find("\n", end)
    if ended < 0:
        return f"{text}{newline}{indent}{line}{newline}"
    return f"{text[: ended + 1]}{indent}{line}{newline}{text[ended + 1 :]}"


def _appended(text: str, block: str) -> str:
    newline = _newline(text)
    if text and not text.endswith("\n"):
        text += newline
    gap = newline if text.strip() else ""
    return text + gap + block.replace("\n", newline) + newline


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _check(before: str, after: str, table: Path, name: str, value: Value) -> None:
    """Raises CannotEditError unless the text says what it said before, and the new value."""
    wanted = copy.deepcopy(tomllib.loads(before))
    place: Any = wanted
    for part in table:
        place = place.setdefault(part, {}) if isinstance(part, str) else place[part]
    if value is None:
        place.pop(name)
    else:
        place[name] = value
    try:
        found = tomllib.loads(after)
    except ValueError:
        found = {}
    if found != wanted:
        line = toml_lines.scan(before).find((*table, name)) or 1
        raise CannotEditError(line, f"{name} cannot be set without changing other keys")
