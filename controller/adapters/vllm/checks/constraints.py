"""Bounds on structured outputs that would cost an engine too much time or memory.

These bounds are quick to check and to explain. A constraint within them is tried before an engine
gets it (grammars/trials.py), and is watched at each step (grammar_guard.py).

Each regular expression is judged, including those in JSON schemas. There are bounds on their
number, on the sum of their lengths, and on the sum of their squared sizes; the size of a pattern is
its length once every repeat is written out. The cost of a pattern in a JSON schema grows with that
square (`[a-z]{1,1000}` took 0.8 s, `{1,3000}` 8 s, with xgrammar 0.2.8 and a vocabulary of 10,000).
Schemas and choices have bounds on their size and their counts: `"minLength": 5000` in a schema took
2 s a step and 1.4 GB within 1,500 tokens, `"minProperties": 1` over 300 properties did not compile
in 25 s, and 8 strings of 50,000 characters took 28 s and 450 MB."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

# The fields of a request that can contain a schema: the fields of OpenAI's chat, completions and
# responses, the fields of Anthropic's messages, and vLLM's own.
FIELDS = ("structured_outputs", "response_format", "tools", "text", "output_config")

MAX_SCHEMA_VALUES = 10_000
MAX_SCHEMA_CHARS = 256 * 1024
"""The limit for all strings of the schemas together, including descriptions, and for a schema that
is given as one string."""
MAX_WORDS_CHARS = 64 * 1024
"""The limit for all strings of `enum` and `const` and all choices together."""
MAX_CHOICES = 2000
MAX_GRAMMAR_CHARS = 8192
MAX_GRAMMAR_COUNTS = 10_000
MAX_LEAST_COUNT = 500
MAX_PROPERTIES_COUNTED = 100
MAX_PATTERNS = 500
MAX_PATTERN_CHARS = 20_000
"""The limit for all patterns together: judging one character takes 2 us."""
MAX_SQUARED_SIZES = 2_000**2
"""The limit for the sum over all patterns in schemas: one pattern of 2,000 characters, or 400 of
100."""
# Fields in which a schema or a structural tag may be given as JSON within a string.
JSON_STRINGS = ("json", "structural_tag")
_COUNTS = re.compile(r"\{(\d{1,9}),?(\d{0,9})\}")


class TooMuchError(ValueError):
    """The message says why the request is refused; `param` names the field."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


def check_constraints(request: dict[str, Any]) -> None:
    """Checks all constraints of a request. Raises TooMuchError if they exceed a bound. Malformed
    constraints pass, because vLLM says what is wrong with them."""
    sums = _Sums()
    for field in FIELDS:
        found = request.get(field)
        if not isinstance(found, dict | list):
            continue
        try:
            if field == "structured_outputs" and isinstance(found, dict):
                _check_fields(found, sums)
            sums.check_schema(found)
        except TooCostlyError as why:
            raise TooMuchError(
                f"a regular expression in {field} would cost too much to follow: {why}", field
            ) from None
        except ValueError as why:
            raise TooMuchError(f"{field}: {why}", field) from None


def _check_fields(found: dict[str, Any], sums: "_Sums") -> None:
    if isinstance(regex := found.get("regex"), str):
        check_regex(regex)
    if isinstance(choices := found.get("choice"), list):
        if len(choices) > MAX_CHOICES:
            raise ValueError(f"more than {MAX_CHOICES} choices")
        sums.count_words(choices)
    if isinstance(grammar := found.get("grammar"), str):
        if len(grammar) > MAX_GRAMMAR_CHARS:
            raise ValueError(f"a grammar of more than {MAX_GRAMMAR_CHARS} characters")
        counts = (max(int(low), int(high or 0)) for low, high in _COUNTS.findall(grammar))
        if sum(counts) > MAX_GRAMMAR_COUNTS:
            raise ValueError(f"a grammar whose repeats count to more than {MAX_GRAMMAR_COUNTS}")
    for field in JSON_STRINGS:
        if isinstance(text := found.get(field), str):
            if len(text) > MAX_SCHEMA_CHARS:
                raise ValueError(f"{field} has more than {MAX_SCHEMA_CHARS} characters")
            try:
                sums.check_schema(msgspec.json.decode(text))
            except RecursionError:
                raise ValueError(f"{field} is nested too deeply") from None
            except msgspec.DecodeError:  # vLLM would say this with a traceback in the log
                raise ValueError(f"{field} is not valid JSON") from None


class _Sums:
    """The sums over all constraints of one request."""

    def __init__(self) -> None:
        self._num_values = self._num_chars = self._num_words_chars = 0
        self._num_patterns = self._num_pattern_chars = self._squared_sizes = 0

    def check_schema(self, root: Any) -> None:
        """Adds a schema to the sums and checks it. Raises ValueError, including TooCostlyError."""
        for value in _values(root):
            self._num_values += 1
            if self._num_values > MAX_SCHEMA_VALUES:
                raise ValueError(f"more than {MAX_SCHEMA_VALUES} values")
            if isinstance(value, str):
                self._count_chars(value)
            elif isinstance(value, dict):
                for key in value:
                    self._count_chars(key)
                self._check_keywords(value)

    def count_words(self, words: list[Any]) -> None:
        self._num_words_chars += sum(len(word) for word in words if isinstance(word, str))
        if self._num_words_chars > MAX_WORDS_CHARS:
            raise ValueError(
                f"the strings to choose from have more than {MAX_WORDS_CHARS} characters"
            )

    def _count_chars(self, text: str) -> None:
        self._num_chars += len(text)
        if self._num_chars > MAX_SCHEMA_CHARS:
            raise ValueError(f"more than {MAX_SCHEMA_CHARS} characters")

    def _check_pattern(self, pattern: str) -> None:
        self._num_patterns += 1
        self._num_pattern_chars += len(pattern)
        if self._num_patterns > MAX_PATTERNS or self._num_pattern_chars > MAX_PATTERN_CHARS:
            raise ValueError(
                f"more than {MAX_PATTERNS} patterns, or {MAX_PATTERN_CHARS} characters of them"
            )
        self._squared_sizes += check_regex(pattern) ** 2
        if self._squared_sizes > MAX_SQUARED_SIZES:
            raise ValueError("its patterns are too large in all once their repeats are written out")

    def _check_keywords(self, schema: dict[str, Any]) -> None:
        if isinstance(pattern := schema.get("pattern"), str):
            self._check_pattern(pattern)
        if isinstance(patterns := schema.get("patternProperties"), dict):
            for pattern in patterns:
                self._check_pattern(pattern)
        if isinstance(words := schema.get("enum"), list):
            self.count_words(words)
        if isinstance(word := schema.get("const"), str):
            self.count_words([word])
        _check_counts(schema)


def _check_counts(schema: dict[str, Any]) -> None:
    for keyword in ("minLength", "minItems", "minProperties"):
        count = schema.get(keyword)
        # Backends refuse a count that is not an integer, such as 500.0 or "500".
        if isinstance(count, int | float) and count > MAX_LEAST_COUNT:
            raise ValueError(f"{keyword} is more than {MAX_LEAST_COUNT}")
    count = schema.get("min")  # in a structural tag; it costs as much as minLength
    if (
        schema.get("type") == "repeat"
        and isinstance(count, int | float)
        and count > MAX_LEAST_COUNT
    ):
        raise ValueError(f"a repeat's min is more than {MAX_LEAST_COUNT}")
    properties = schema.get("properties")
    num_properties = len(properties) if isinstance(properties, dict) else 0
    if "minProperties" in schema and num_properties > MAX_PROPERTIES_COUNTED:
        raise ValueError(f"minProperties over more than {MAX_PROPERTIES_COUNTED} properties")


def _values(root: Any) -> Iterator[Any]:
    """Yields the value and all values within it, level by level."""
    level = [root]
    while level:
        yield from level
        level = [
            child
            for value in level
            if isinstance(value, dict | list)
            for child in (value.values() if isinstance(value, dict) else value)
        ]


# -- regular expressions ---------------------------------------------------------------------------
# Whether a regular expression can be followed token by token at little cost.
#
# A grammar matcher keeps every way in which the text so far can be read. A few ways cost nothing,
# but `(.+){3}` has a number of ways that grows with the square of the text: after 1,500 characters
# one step took 4 s and 2.8 GB of memory (xgrammar 0.2.8, a vocabulary of 10,000). Two things
# multiply the ways:
#
# - a round of a repeat that can end, or continue, with the same character: `(a+)+`,
#   `(\w+\s?)+`; or a round that can be empty: `(a?){20}`;
# - neighbours of which either may take the same character: `(a|b)*(a|b)*`. A few are common and
#   harmless (`.*:.*`), so they are counted.
#
# For each part of the expression it is enough to know three things: whether it can be empty; with
# which characters it can begin; and with which characters it can continue at a place where it could
# also end. Characters are a set of bits: one bit for each ASCII character, and one bit for all
# others. A part also has a size, which is its number of characters once every repeat is written
# out: 15 for `(a{3}){5}`.

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
_REPEATS = re.compile(r"\{(\d+)(,?)(\d*)\}")
_CODE = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|u\{([0-9a-fA-F]{1,6})\}")


class TooCostlyError(ValueError):
    """The expression may be valid, but following it costs too much. The message says why."""


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
    """Returns the size of the expression. A string that is not a regular expression passes. Raises
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
                    f"at more than {MAX_LOOSE_JOINTS} places either of two neighbours may take "
                    "a character"
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
                raise TooCostlyError(f"it repeats a part that may be empty: {piece[:80]}")
            if part.goes_on & part.begins:
                raise TooCostlyError(
                    f"the rounds of a repeat can divide one text in many ways: {piece[:80]}"
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
        elif mark == "{" and (counts := _REPEATS.match(self._text, self._at)):
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
