"""TOML as text, beside tomllib: where each key stands, and how a value is written.

tomllib tells no lines, and writes nothing. The scanner believes that the text is well formed and
stops quietly where it is not: tomllib says what is wrong there. Paths hold table names, keys and,
in arrays, indices: `("priority", 1, "rank")`.
"""

import contextlib
import json
import math
import re
import tomllib
from collections.abc import Mapping
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
# `\\.`: an escaped quote opens no string, or each of many would look for its end.
_DEEP = re.compile(rf"#[^\n]*+|\\.|(?P<key>{_PART}(?:\.[ \t]*+{_PART}){{{MAX_KEY_PARTS}}})|{_PART}")
_SCALAR = re.compile(r"[^,\]}\n#]+")


@dataclass(frozen=True, slots=True)
class Pair:
    """Offsets of a key and of its value in the text, and the table in which it is written."""

    key_at: int
    value_at: int
    end: int
    table: KeyPath
    """Of a dotted key the table of its header, which is shorter than what the key names."""
    inline: bool


@dataclass
class Lines:
    """`keys` are in the order of the text; `duplicate` is the first key that was given twice."""

    keys: dict[KeyPath, int] = field(default_factory=dict)
    duplicate: tuple[KeyPath, int, int] | None = None
    """The key's path, its line, and the line where the key stood first."""
    pairs: dict[KeyPath, Pair] = field(default_factory=dict)
    sections: dict[KeyPath, tuple[int, int]] = field(default_factory=dict)
    """By table with a header: offsets where its last line begins, without white space, and where
    what stands there ends."""

    def find(self, path: KeyPath) -> int | None:
        """Gives the line of the path or of the first key below it, else that of the nearest table
        around it."""
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
    """Finds the first line with a dotted key of too many parts, in time that grows as the text."""
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
        """A place in the text, and its line."""

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
        """Puts the index of its last element behind the name of each array of tables."""
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
        """False at the end of the text."""
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
