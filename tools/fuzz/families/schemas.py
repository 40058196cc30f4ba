"""JSON schemas with every keyword, in every place where a request can carry one."""

import json
import random
from collections.abc import Callable
from typing import Any

from tools.fuzz.families.grammars import regex

TYPES = ("string", "integer", "number", "boolean", "null", "array", "object")
NAMES = ("name", "age", "tags", "x", "a b", "é", "0", "$ref", "properties")
FORMATS = ("date", "date-time", "time", "email", "uuid", "ipv4", "ipv6", "uri", "hostname", "odd")
VALUES: tuple[Any, ...] = (
    "a",
    "river",
    0,
    1,
    -3,
    2.5,
    True,
    None,
    [],
    [1],
    {},
    {"a": 1},
    'say "so"',
    "\\n",
)
COUNTS = (0, 1, 2, 5, 40, 300, 500)
MESSAGES = [{"role": "user", "content": "tell me of the river"}]


def schema(dice: random.Random, depth: int = 0) -> Any:
    if depth > 3 or dice.random() < 0.05:
        return dice.choice((True, {}, {"type": dice.choice(TYPES)}))
    made: dict[str, Any] = {}
    kind = dice.choice(TYPES)
    if dice.random() < 0.85:
        made["type"] = kind if dice.random() < 0.9 else dice.sample(TYPES, 2)
    for keyword in dice.sample(sorted(KEYWORDS[kind]), min(len(KEYWORDS[kind]), dice.randrange(4))):
        made[keyword] = KEYWORDS[kind][keyword](dice, depth)
    if dice.random() < 0.3:
        keyword = dice.choice(sorted(GENERAL))
        made[keyword] = GENERAL[keyword](dice, depth)
    if depth == 0 and dice.random() < 0.3:
        made["$defs"] = {name: schema(dice, 2) for name in ("node", "leaf")}
    return made


def _count(dice: random.Random, _: int) -> int:
    return dice.choice(COUNTS)


def _number(dice: random.Random, _: int) -> float:
    return dice.choice((0, 1, -5, 10, 2.5, 1000, 10**9, -(10**9), 0.001))


def _one(dice: random.Random, depth: int) -> Any:
    return schema(dice, depth + 1)


def _some(dice: random.Random, depth: int) -> list[Any]:
    return [schema(dice, depth + 1) for _ in range(dice.choice((1, 2, 3)))]


def _named(dice: random.Random, depth: int) -> dict[str, Any]:
    return {n: schema(dice, depth + 1) for n in dice.sample(NAMES, dice.choice((1, 2, 4)))}


def _names(dice: random.Random, _: int) -> list[str]:
    return dice.sample(NAMES, dice.choice((0, 1, 3)))


def _patterns(dice: random.Random, depth: int) -> dict[str, Any]:
    return {regex(dice): schema(dice, depth + 1) for _ in range(dice.choice((1, 2, 6)))}


def _values(dice: random.Random, _: int) -> list[Any]:
    return [dice.choice(VALUES) for _ in range(dice.choice((1, 3, 60)))]


Keyword = Callable[[random.Random, int], Any]
KEYWORDS: dict[str, dict[str, Keyword]] = {
    "string": {
        "minLength": _count,
        "maxLength": _count,
        "pattern": lambda dice, _: regex(dice),
        "format": lambda dice, _: dice.choice(FORMATS),
        "contentMediaType": lambda *_: "application/json",
        "contentEncoding": lambda *_: "base64",
        "contentSchema": _one,
    },
    "integer": {
        "minimum": _number,
        "maximum": _number,
        "exclusiveMinimum": _number,
        "exclusiveMaximum": _number,
        "multipleOf": _number,
    },
    "number": {
        "minimum": _number,
        "maximum": _number,
        "exclusiveMinimum": _number,
        "exclusiveMaximum": _number,
        "multipleOf": _number,
    },
    "boolean": {},
    "null": {},
    "array": {
        "items": _one,
        "prefixItems": _some,
        "additionalItems": _one,
        "contains": _one,
        "minContains": _count,
        "maxContains": _count,
        "minItems": _count,
        "maxItems": _count,
        "uniqueItems": lambda *_: True,
        "unevaluatedItems": _one,
    },
    "object": {
        "properties": _named,
        "required": _names,
        "additionalProperties": lambda d, n: d.choice((False, schema(d, n + 1))),
        "patternProperties": _patterns,
        "propertyNames": lambda dice, _: {"pattern": regex(dice)},
        "minProperties": _count,
        "maxProperties": _count,
        "dependentRequired": lambda dice, n: {"name": _names(dice, n)},
        "dependentSchemas": _named,
        "dependencies": _named,
        "unevaluatedProperties": _one,
    },
}
GENERAL: dict[str, Keyword] = {
    "enum": _values,
    "const": lambda dice, _: dice.choice(VALUES),
    "allOf": _some,
    "anyOf": _some,
    "oneOf": _some,
    "not": _one,
    "if": _one,
    "then": _one,
    "else": _one,
    "$ref": lambda dice, _: dice.choice(
        ("#", "#/$defs/node", "#/$defs/leaf", "#/properties/name", "#/nope", "http://127.0.0.1:1/s")
    ),
    "$dynamicRef": lambda *_: "#node",
    "$anchor": lambda *_: "node",
    "$dynamicAnchor": lambda *_: "node",
    "$id": lambda *_: "http://127.0.0.1:1/s",
    "$schema": lambda *_: "https://json-schema.org/draft/2020-12/schema",
    "$comment": lambda *_: "none",
    "title": lambda *_: "A title",
    "default": lambda dice, _: dice.choice(VALUES),
    "examples": _values,
    "readOnly": lambda *_: True,
    "deprecated": lambda *_: True,
    "nullable": lambda *_: True,
    "discriminator": lambda *_: {"propertyName": "name"},
}


def draw(dice: random.Random) -> tuple[str, dict[str, Any]]:
    made = schema(dice)
    kind = dice.randrange(6)
    ask = {"model": "embedded", "max_tokens": 24, "stream": dice.random() < 0.3}
    form = {"name": "x", "schema": made, "strict": True}
    if kind == 0:
        return "/v1/completions", ask | {"prompt": "x", "structured_outputs": {"json": made}}
    if kind == 1:
        written = {"json": json.dumps(made), "whitespace_pattern": regex(dice)}
        return "/v1/completions", ask | {"prompt": "x", "structured_outputs": written}
    if kind == 2:
        wanted = {"type": "json_schema", **form}
        body = {"model": "embedded", "input": "x", "max_output_tokens": 24}
        return "/v1/responses", body | {"text": {"format": wanted}}
    if kind == 3:
        wanted = {"format": {"type": "json_schema", "schema": made}}
        return "/v1/messages", ask | {"messages": MESSAGES, "output_config": wanted}
    if kind == 4:
        tool = {"type": "function", "function": {"name": "f", "parameters": made}}
        choice = {"type": "function", "function": {"name": "f"}}
        wanted = {"tools": [tool], "tool_choice": dice.choice((choice, "required", "auto"))}
        return "/v1/chat/completions", ask | {"messages": MESSAGES} | wanted
    wanted = {"response_format": {"type": "json_schema", "json_schema": form}}
    return "/v1/chat/completions", ask | {"messages": MESSAGES} | wanted
