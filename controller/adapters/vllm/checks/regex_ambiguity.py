"""Whether a regular expression is cheap to follow token by token.

A grammar matcher keeps every way in which the text so far can be read. One way, or a few,
cost nothing; `(.+){3}` has quadratically many: after 1,500 characters one step took 4 s and
2.8 GB of memory (xgrammar 0.2.8, a vocabulary of 10,000). Two things multiply the ways:

- a round of a repeat that can end and go on with the same character: `(a+)+`, `(\\w+\\s?)+`;
  or that can be empty: `(a?){20}`;
- neighbours of which either may take the same character: `(a|b)*(a|b)*`. A few are common and
  harmless (`.*:.*`), so they are counted.

For each part of the expression it is enough to know whether it can be empty, with which
characters it can begin, and with which it can go on where it could also end. Characters are
a bit set: one bit for each of ASCII, one for all others. A part also has a size, its number of
characters once every repeat is written out: 15 for `(a{3}){5}`.
"""

import re
from dataclasses import dataclass

MAX_CHARS = 2000
MAX_GROUP_DEPTH = 32
MAX_COUNT = 10_000
MAX_LOOSE_JOINTS = 3

OTHERS = 1 << 128
ANY = (1 << 129) - 1


def _set(chars: str) -> int:
    return sum(1 << ord(c) for c in chars)


DIGITS = _set("0123456789")
WORD = DIGITS | _set("_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
SPACE = _set(" \t\n\r\f\v") | OTHERS
ESCAPES = {
    "d": DIGITS,
    "D": ANY & ~DIGITS,
    "w": WORD,
    "W": ANY & ~WORD,
    "s": SPACE,
    "S": (ANY & ~SPACE) | OTHERS,
    "n": _set("\n"),
    "t": _set("\t"),
    "r": _set("\r"),
    "f": _set("\f"),
    "v": _set("\v"),
}
_COUNTS = re.compile(r"\{(\d+)(,?)(\d*)\}")
_CODE = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|u\{([0-9a-fA-F]{1,6})\}")


class TooCostlyError(ValueError):
    """The expression is valid, or may be, but not cheap; the message says why."""


class _UnreadableError(ValueError):
    """This module cannot read the expression; another check refuses it."""


@dataclass(frozen=True, slots=True)
class _Part:
    can_be_empty: bool
    begins: int
    goes_on: int
    size: int


EMPTY = _Part(True, 0, 0, 0)


def check_regex(pattern: str) -> int:
    """The size of the expression. A string that is no regular expression passes. Raises
    TooCostlyError."""
    if len(pattern) > MAX_CHARS:
        raise TooCostlyError(f"it is longer than {MAX_CHARS} characters")
    try:
        return _Reader(pattern).read().size
    except _UnreadableError:
        return len(pattern)


class _Reader:
    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self._depth = 0
        self._num_loose_joints = 0

    def read(self) -> _Part:
        whole = self._alternatives()
        if self._at < len(self._text):
            raise _UnreadableError("unbalanced )")
        return whole

    def _alternatives(self) -> _Part:
        found = self._sequence()
        while self._peek() == "|":
            self._at += 1
            other = self._sequence()
            found = _Part(
                found.can_be_empty or other.can_be_empty,
                found.begins | other.begins,
                found.goes_on | other.goes_on,
                found.size + other.size,
            )
        return found

    def _sequence(self) -> _Part:
        found = EMPTY
        while self._peek() not in ("", "|", ")"):
            found = self._join(found, self._repeated())
        return found

    def _join(self, a: _Part, b: _Part) -> _Part:
        if a.goes_on & b.begins:
            self._num_loose_joints += 1
            if self._num_loose_joints > MAX_LOOSE_JOINTS:
                raise TooCostlyError(
                    f"more than {MAX_LOOSE_JOINTS} places leave open which of two neighbours "
                    "takes a character"
                )
        return _Part(
            a.can_be_empty and b.can_be_empty,
            a.begins | b.begins if a.can_be_empty else a.begins,
            b.goes_on | a.goes_on | b.begins if b.can_be_empty else b.goes_on,
            a.size + b.size,
        )

    def _repeated(self) -> _Part:
        start = self._at
        part = self._atom()
        low, high = self._count()
        if (low, high) == (1, 1):
            return part
        size = part.size * max(low, high or 0, 1)
        if max(low, high or 0) > MAX_COUNT or size > MAX_COUNT:
            raise TooCostlyError(f"a repeat counts to more than {MAX_COUNT}")
        if high is None or high > 1:
            piece = self._text[start : self._at]
            if part.can_be_empty:
                raise TooCostlyError(f"it repeats what may be empty: {piece[:80]}")
            if part.goes_on & part.begins:
                raise TooCostlyError(
                    f"one text can be cut into the rounds of a repeat in many ways: {piece[:80]}"
                )
        may_go_on = high != low and (high is None or high > 1)
        goes_on = part.goes_on | part.begins if may_go_on else part.goes_on
        return _Part(part.can_be_empty or low == 0, part.begins, goes_on, size)

    def _count(self) -> tuple[int, int | None]:
        mark = self._peek()
        found: tuple[int, int | None]
        if mark and mark in "*+?":
            self._at += 1
            found = {"*": (0, None), "+": (1, None), "?": (0, 1)}[mark]
        elif mark == "{" and (counts := _COUNTS.match(self._text, self._at)):
            self._at = counts.end()
            low, comma, high = counts.groups()
            found = (int(low), (int(high) if high else None) if comma else int(low))
        else:
            return 1, 1
        if self._peek() == "?":  # a lazy repeat matches the same texts
            self._at += 1
        return found

    def _atom(self) -> _Part:
        char = self._take()
        if char == "(":
            return self._group()
        if char == "[":
            return _Part(False, self._class(), 0, 1)
        if char in "^$":
            return EMPTY
        if char in "*+?{":
            raise _UnreadableError("nothing to repeat")
        if char == ".":
            return _Part(False, ANY & ~ESCAPES["n"], 0, 1)
        return _Part(False, self._escape() if char == "\\" else _bit(char), 0, 1)

    def _group(self) -> _Part:
        self._depth += 1
        if self._depth > MAX_GROUP_DEPTH:
            raise TooCostlyError(f"groups are nested deeper than {MAX_GROUP_DEPTH}")
        if self._peek() == "?":
            name = re.compile(r"\?(:|P?<\w+>)").match(self._text, self._at)
            if name is None:
                raise _UnreadableError("looks around or sets flags")
            self._at = name.end()
        found = self._alternatives()
        if self._take() != ")":
            raise _UnreadableError("unbalanced (")
        self._depth -= 1
        return found

    def _class(self) -> int:
        negated = self._peek() == "^"
        self._at += negated
        found = 0
        while (char := self._take()) != "]":
            if char == "\\":
                found |= self._escape()
            elif self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                end = self._take()
                last = self._escape().bit_length() - 1 if end == "\\" else min(ord(end), 128)
                found |= sum(1 << code for code in range(min(ord(char), 128), last + 1))
            else:
                found |= _bit(char)
        return (ANY & ~found) | OTHERS if negated else found

    def _escape(self) -> int:
        if code := _CODE.match(self._text, self._at):
            self._at = code.end()
            return _bit(chr(min(int(next(filter(None, code.groups())), 16), 0x10FFFF)))
        char = self._take()
        if char in "bBpPk" or char.isdigit():
            raise _UnreadableError("not a character")
        return ESCAPES.get(char) or _bit(char)

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self) -> str:
        char = self._peek()
        if not char:
            raise _UnreadableError("ends too early")
        self._at += 1
        return char


def _bit(char: str) -> int:
    return 1 << min(ord(char), 128)
