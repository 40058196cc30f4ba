"""Bounds on structured outputs that an engine would need too much time or memory to follow.

These bounds are quick to check and to explain. A constraint within them is tried before an engine
gets it (grammars/trials.py), and watched at each step (grammar_guard.py).

regex_ambiguity.py judges each regular expression, also in JSON schemas. Here their number is
bounded, and the sums of their lengths and of their squared sizes once every repeat is written out:
the cost of a pattern in a JSON schema grows with that square (`[a-z]{1,1000}` 0.8 s, `{1,3000}`
8 s, with xgrammar 0.2.8 and a vocabulary of 10,000). Schemas and choices are bounded by their size
and their counts: `"minLength": 5000` in a schema took 2 s a step and 1.4 GB within 1,500 tokens,
`"minProperties": 1` over 300 properties did not compile in 25 s, 8 strings of 50,000 characters
took 28 s and 450 MB.
"""

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from controller.adapters.vllm.checks.regex_ambiguity import TooCostlyError, check_regex

# Where a request can carry a schema: OpenAI's chat, completions and responses, Anthropic's
# messages, and vLLM's own field.
FIELDS = ("structured_outputs", "response_format", "tools", "text", "output_config")

MAX_SCHEMA_VALUES = 10_000
MAX_SCHEMA_CHARS = 256 * 1024
"""In all strings of the schemas, descriptions too; and in a schema given as one string."""
MAX_WORDS_CHARS = 64 * 1024
"""In all strings of an `enum` or a `const`, and in choices."""
MAX_CHOICES = 2000
MAX_GRAMMAR_CHARS = 8192
MAX_GRAMMAR_COUNTS = 10_000
MAX_LEAST_COUNT = 500
MAX_PROPERTIES_COUNTED = 100
MAX_PATTERNS = 500
MAX_PATTERN_CHARS = 20_000
"""In all patterns together: judging one character takes 2 us."""
MAX_SQUARED_SIZES = 2_000**2
"""Sum over the patterns in schemas: one pattern of 2,000 characters, or 400 of 100."""
# Schemas and structural tags may be given as JSON within a string.
JSON_STRINGS = ("json", "structural_tag")
_COUNTS = re.compile(r"\{(\d{1,9}),?(\d{0,9})\}")


class TooMuchError(ValueError):
    """The message says why the request is refused, `param` names the field."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


def check_constraints(request: dict[str, Any]) -> None:
    """Raises TooMuchError. Malformed constraints pass: vLLM says what is wrong with them."""
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
            except msgspec.DecodeError:  # vLLM would say so with a traceback in the log
                raise ValueError(f"{field} is not valid JSON") from None


class _Sums:
    """Sums over all constraints of one request."""

    def __init__(self) -> None:
        self._num_values = self._num_chars = self._num_words_chars = 0
        self._num_patterns = self._num_pattern_chars = self._squared_sizes = 0

    def check_schema(self, root: Any) -> None:
        """Raises ValueError, TooCostlyError among them."""
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
        # No backend takes a count that is no number, or is 500.0 or "500".
        if isinstance(count, int | float) and count > MAX_LEAST_COUNT:
            raise ValueError(f"{keyword} is more than {MAX_LEAST_COUNT}")
    count = schema.get("min")  # in a structural tag; it costs what minLength does
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
    """The value and all values within it, level by level."""
    level = [root]
    while level:
        yield from level
        level = [
            child
            for value in level
            if isinstance(value, dict | list)
            for child in (value.values() if isinstance(value, dict) else value)
        ]
