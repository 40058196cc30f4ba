"""Does with TOML as text what tomllib does not: finds the line of each key, writes values, and
edits a text so that comments, order, spaces and line ends stay.

tomllib tells no lines, and writes nothing. The scanner assumes that the text is well formed, and
stops quietly where it is not: tomllib reports the error. Paths consist of table names, keys and,
for arrays, indices: `("priority", 1, "rank")`.
"""

import contextlib
import copy
import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time
from typing import Any

KeyPath = tuple[str | int, ...]

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_KEY = re.compile(r"""(?:[ \t]*(?:"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|[A-Za-z0-9_-]+)[ \t]*\.?)+""")
_STRING = re.compile(
    r'''"""(?:[^\\]|\\.)*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:[^"\\\n]|\\.)*"|'[^'\n]*\'''', re.DOTALL
)
MAX_KEY_PARTS = 32
_PART = r"""(?:[A-Za-z0-9_-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')[ \t]*+"""
# `\\.` skips an escaped character, so that an escaped quote does not open a string. Otherwise each
# of many escaped quotes would search for the end of its string.
_DEEP = re.compile(rf"#[^\n]*+|\\.|(?P<key>{_PART}(?:\.[ \t]*+{_PART}){{{MAX_KEY_PARTS}}})|{_PART}")
_SCALAR = re.compile(r"[^,\]}\n#]+")


@dataclass(frozen=True, slots=True)
class Pair:
    """Offsets of a key and of its value in the text, and the table under which it is written."""

    key_at: int
    value_at: int
    end: int
    table: KeyPath
    """The table that the header above the key names. A dotted key lies deeper, in a table below
    this one."""
    inline: bool


@dataclass
class Lines:
    """`keys` are in the order of the text; `duplicate` is the first key that was given twice."""

    keys: dict[KeyPath, int] = field(default_factory=dict)
    duplicate: tuple[KeyPath, int, int] | None = None
    """The path of the key, its line, and the line of its first occurrence."""
    pairs: dict[KeyPath, Pair] = field(default_factory=dict)
    sections: dict[KeyPath, tuple[int, int]] = field(default_factory=dict)
    """For each table with a header, the offsets of the beginning and the end of its last line,
    without white space."""

    def find(self, path: KeyPath) -> int | None:
        """The line of the first key that is the path or lies below it. If there is no such key, the
        same for the nearest table around the path."""
        while path:
            for key, line in self.keys.items():
                if key[: len(path)] == path:
                    return line
            path = path[:-1]
        return None

    def add(self, path: KeyPath, line: int) -> None:
        if path not in self.keys:
            self.keys[path] = line
        elif self.duplicate is None:
            self.duplicate = (path, line, self.keys[path])


def too_deep(text: str) -> int | None:
    """The first line with a dotted key of too many parts, found in time linear in the text."""
    for found in _DEEP.finditer(text):
        if found["key"]:
            return text.count("\n", 0, found.start()) + 1
    return None


def scan(text: str) -> Lines:
    """Scans a whole text. Lines count from 1."""
    scanner = _Scanner(text)
    with contextlib.suppress(_MalformedError, RecursionError):
        scanner.document()
    return scanner.lines


class _MalformedError(Exception):
    pass


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.lines = Lines()
        self._array_sizes: dict[KeyPath, int] = {}
        self._counted = (0, 1)
        """An offset in the text, and the line of that offset."""

    def document(self) -> None:
        table: KeyPath = ()
        while self._skip_blank():
            if self._take("[["):
                table = self._header("]]", is_array=True)
            elif self._take("["):
                table = self._header("]", is_array=False)
            else:
                self._pair(table)

    def _header(self, end: str, *, is_array: bool) -> KeyPath:
        line, began = self._line(), self.at
        path = self._resolve(self._key())
        if not self._take(end):
            raise _MalformedError
        if is_array:
            size = self._array_sizes.get(path, 0)
            self._array_sizes[path] = size + 1
            self.lines.keys.setdefault(path, line)
            path = (*path, size)
        self.lines.add(path, line)
        self.lines.sections[path] = (began, self.at)
        return path

    def _resolve(self, path: KeyPath) -> KeyPath:
        """The path with an index after the name of each array of tables: that of its last
        element."""
        resolved: KeyPath = ()
        for depth, name in enumerate(path, start=1):
            resolved = (*resolved, name)
            if depth < len(path) and resolved in self._array_sizes:
                resolved = (*resolved, self._array_sizes[resolved] - 1)
        return resolved

    def _pair(self, table: KeyPath, *, inline: bool = False) -> None:
        line, key_at = self._line(), self.at
        path = (*table, *self._key())
        if not self._take("="):
            raise _MalformedError
        self.lines.add(path, line)
        self._match(re.compile(r"[ \t]*"))
        value_at = self.at
        self._value(path)
        end = value_at + len(self.text[value_at : self.at].rstrip())
        self.lines.pairs.setdefault(path, Pair(key_at, value_at, end, table, inline))
        if not inline and table in self.lines.sections:
            self.lines.sections[table] = (key_at, end)

    def _value(self, path: KeyPath) -> None:
        if self._take("{"):
            self._items(path, "}")
        elif self._take("["):
            self._items(path, "]")
        elif not self._match(_STRING) and not self._match(_SCALAR):
            raise _MalformedError

    def _items(self, path: KeyPath, end: str) -> None:
        index = 0
        while self._skip_blank() and not self._take(end):
            if end == "}":
                self._pair(path, inline=True)
            else:
                self.lines.add((*path, index), self._line())
                self._value((*path, index))
            index += 1
            self._skip_blank()
            self._take(",")

    def _key(self) -> tuple[str, ...]:
        raw = self._match(_KEY)
        try:
            found = tomllib.loads(f"{raw} = 0")
        except tomllib.TOMLDecodeError as error:
            raise _MalformedError from error
        path: tuple[str, ...] = ()
        inner: object = found
        while isinstance(inner, dict):
            (name, inner), *_ = inner.items()
            path = (*path, name)
        return path

    def _skip_blank(self) -> bool:
        """Skips white space and comments. Returns False at the end of the text."""
        self._match(_BLANK)
        return self.at < len(self.text)

    def _take(self, token: str) -> bool:
        if not self.text.startswith(token, self.at):
            return False
        self.at += len(token)
        return True

    def _match(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.text, self.at)
        if found is None:
            return ""
        self.at = found.end()
        return found.group()

    def _line(self) -> int:
        at, line = self._counted
        self._counted = (self.at, line + self.text.count("\n", at, self.at))
        return self._counted[1]


# -- writing ----------------------------------------------------------------------------

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def key(name: str) -> str:
    return name if _BARE.fullmatch(name) else string(name)


def string(text: str) -> str:
    """A basic string. TOML has the escapes of JSON, and requires one for DEL too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def value_text(item: Any) -> str:
    """A value on one line. Raises TypeError for a value that TOML lacks, such as None."""
    if isinstance(item, str):
        return string(item)
    if isinstance(item, float) and not math.isfinite(item):
        return str(item)
    if isinstance(item, bool | int | float):
        return json.dumps(item)
    if isinstance(item, datetime | date | time):
        return item.isoformat()
    if isinstance(item, list | tuple):
        return f"[{', '.join(map(value_text, item))}]"
    if isinstance(item, Mapping):
        pairs = [f"{key(name)} = {value_text(inner)}" for name, inner in item.items()]
        return f"{{{', '.join(pairs)}}}"
    raise TypeError(f"TOML has no {type(item).__name__}")


# -- editing ----------------------------------------------------------------------------

# None: the key is to have no value.
Value = str | int | float | bool | None


class CannotEditError(ValueError):
    """The key cannot be changed without changing something else in the text."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(why)
        self.line = line


def set_value(text: str, table: KeyPath, name: str, value: Value) -> str:
    """The text with `name = value` in `table`, whose path may end with an index of an array. A key
    that is to have no value is commented out. Raises CannotEditError."""
    lines = scan(text)
    pair = lines.pairs.get((*table, name))
    if pair is not None:
        edited = _replaced(text, pair, name, value, lines.keys[(*table, name)])
    elif value is None:
        return text
    else:
        edited = _inserted(text, lines, table, f"{key(name)} = {value_text(value)}")
    _check(text, edited, table, name, value)
    return edited


def with_tables(text: str, array: str, tables: Sequence[Sequence[tuple[str, Value]]]) -> str:
    """The text with tables `[[array]]` added at its end. The text must not have a table of that
    name yet."""
    blocks = [
        "\n".join(
            [
                f"[[{array}]]",
                *(f"{name} = {value_text(value)}" for name, value in table if value is not None),
            ]
        )
        for table in tables
    ]
    edited = text
    for block in blocks:
        edited = _appended(edited, block)
    return edited


def _replaced(text: str, pair: Pair, name: str, value: Value, line: int) -> str:
    if value is not None:
        return text[: pair.value_at] + value_text(value) + text[pair.end :]
    begun = text.rfind("\n", 0, pair.key_at) + 1
    if pair.inline or text[begun : pair.key_at].strip() or "\n" in text[pair.key_at : pair.end]:
        raise CannotEditError(line, f"{name} is to have no value: remove it by hand")
    return f"{text[: pair.key_at]}# {text[pair.key_at :]}"


def _inserted(text: str, lines: Lines, table: KeyPath, line: str) -> str:
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
    """The text with a new line after the line of `end`, indented like the line of `key_at`."""
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


def _check(before: str, after: str, table: KeyPath, name: str, value: Value) -> None:
    """Checks an edit. Raises CannotEditError unless the new text differs from the old one in this
    value only."""
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
        line = scan(before).find((*table, name)) or 1
        raise CannotEditError(line, f"{name} cannot be set without changing other keys")
