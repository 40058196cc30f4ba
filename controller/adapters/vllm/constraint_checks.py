"""Bounds on structured outputs: what an engine would take too long, or too much memory, to follow.

Regular expressions, also those in JSON schemas, are judged by regex_ambiguity.py. Schemas and
choices are bounded by their size and their counts: `"minLength": 5000` in a schema took 2 s a
step and 1.4 GB within 1,500 tokens, and `"minProperties": 1` over 300 properties did not
compile in 25 s (xgrammar 0.2.8, a vocabulary of 10,000).
Grammars are bounded by their length only; the engine's own guard ends those that turn out
too costly (grammar_guard.py).
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from controller.adapters.vllm.regex_ambiguity import TooCostlyError, check_regex

# Where a request can carry a schema: OpenAI's chat, completions and responses, Anthropic's
# messages, and vLLM's own field.
FIELDS = ("structured_outputs", "response_format", "tools", "text", "output_config")

MAX_SCHEMA_VALUES = 10_000
MAX_CHOICES = 2000
MAX_GRAMMAR_CHARS = 8192
MAX_LEAST_COUNT = 500
MAX_PROPERTIES_COUNTED = 100
# Schemas and structural tags may be given as JSON within a string.
JSON_STRINGS = ("json", "structural_tag")


class TooMuchError(ValueError):
    """Refused; the message says why, `param` which of the request's fields."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


def check_constraints(request: dict[str, Any]) -> None:
    """Raises TooMuchError. Whatever is not well formed passes: vLLM says what is wrong with it."""
    for field in FIELDS:
        found = request.get(field)
        if not isinstance(found, dict | list):
            continue
        try:
            if field == "structured_outputs" and isinstance(found, dict):
                _check_fields(found)
            _check_schema(found)
        except TooCostlyError as why:
            raise TooMuchError(
                f"a regular expression in {field} would cost too much to follow: {why}", field
            ) from None
        except ValueError as why:
            raise TooMuchError(f"{field}: {why}", field) from None


def _check_fields(found: dict[str, Any]) -> None:
    if isinstance(regex := found.get("regex"), str):
        check_regex(regex)
    if isinstance(choices := found.get("choice"), list) and len(choices) > MAX_CHOICES:
        raise ValueError(f"more than {MAX_CHOICES} choices")
    if isinstance(grammar := found.get("grammar"), str) and len(grammar) > MAX_GRAMMAR_CHARS:
        raise ValueError(f"a grammar of more than {MAX_GRAMMAR_CHARS} characters")
    for field in JSON_STRINGS:
        if isinstance(text := found.get(field), str):
            try:
                _check_schema(msgspec.json.decode(text))
            except RecursionError:
                raise ValueError(f"{field} is nested too deeply") from None
            except msgspec.DecodeError:
                continue


def _check_schema(root: Any) -> None:
    for num_seen, value in enumerate(_values(root)):
        if num_seen > MAX_SCHEMA_VALUES:
            raise ValueError(f"more than {MAX_SCHEMA_VALUES} values")
        if isinstance(value, dict):
            _check_keywords(value)


def _check_keywords(schema: dict[str, Any]) -> None:
    if isinstance(pattern := schema.get("pattern"), str):
        check_regex(pattern)
    if isinstance(patterns := schema.get("patternProperties"), dict):
        for pattern in patterns:
            check_regex(pattern)
    for keyword in ("minLength", "minItems", "minProperties"):
        count = schema.get(keyword)
        # One that is no number, or is 500.0 or "500", no backend takes.
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
    """The value and all within it; those of one level after another."""
    level = [root]
    while level:
        yield from level
        level = [
            child
            for value in level
            if isinstance(value, dict | list)
            for child in (value.values() if isinstance(value, dict) else value)
        ]
