"""Structural tags: free text with parts that follow a format."""

import json
import random
from typing import Any

from tools.fuzz.families.grammars import EBNF, regex
from tools.fuzz.families.schemas import MESSAGES, schema


def part(dice: random.Random, depth: int = 0) -> dict[str, Any]:
    plain = ("const_string", "any_text", "json_schema", "regex", "grammar", "token", "any_tokens")
    nested = (
        "sequence",
        "or",
        "tag",
        "triggered_tags",
        "tags_with_separator",
        "optional",
        "plus",
        "star",
        "repeat",
        "dispatch",
        "qwen_xml_parameter",
    )
    kind = dice.choice(plain if depth > 2 else plain + nested)
    made = {"type": kind}
    return made | _fields(kind, dice, depth + 1)


def _fields(kind: str, dice: random.Random, depth: int) -> dict[str, Any]:
    if kind == "const_string":
        return {"value": dice.choice(("a", "the river", "é"))}
    if kind == "any_text":
        return {"excludes": ["</a>"]} if dice.random() < 0.3 else {}
    if kind in ("json_schema", "qwen_xml_parameter"):
        return {"json_schema": schema(dice, 1)}
    if kind == "regex":
        return {"pattern": regex(dice)}
    if kind == "grammar":
        return {"grammar": dice.choice(EBNF)}
    if kind == "token":
        return {"token": dice.choice((1, 300, "the"))}
    if kind == "any_tokens":
        return {"exclude_tokens": [1, 300]}
    if kind in ("sequence", "or"):
        return {"elements": [part(dice, depth) for _ in range(dice.choice((1, 2, 3)))]}
    if kind == "tag":
        return tag(dice, depth)
    if kind == "triggered_tags":
        some = [tag(dice, depth) for _ in range(dice.choice((1, 2)))]
        return {"triggers": ["<"], "tags": some, "at_least_one": True, "stop_after_first": False}
    if kind == "tags_with_separator":
        return {"tags": [tag(dice, depth)], "separator": ",", "at_least_one": dice.random() < 0.5}
    if kind == "dispatch":
        return {"rules": [["<a>", part(dice, depth)]], "loop": True}
    if kind == "repeat":
        return {
            "min": dice.choice((0, 1, 400)),
            "max": dice.choice((1, 5, -1, 500)),
            "content": part(dice, depth),
        }
    return {"content": part(dice, depth)}


def tag(dice: random.Random, depth: int) -> dict[str, Any]:
    return {"type": "tag", "begin": "<a>", "content": part(dice, depth), "end": "</a>"}


def draw(dice: random.Random) -> tuple[str, dict[str, Any]]:
    ask = {"model": "embedded", "max_tokens": 24, "stream": dice.random() < 0.3}
    form: dict[str, Any] = {"type": "structural_tag", "format": part(dice)}
    if dice.random() < 0.3:
        item = {"begin": "<f>", "schema": schema(dice, 1), "end": "</f>"}
        form = {"type": "structural_tag", "structures": [item], "triggers": ["<"]}
    if dice.random() < 0.5:
        return "/v1/chat/completions", ask | {"messages": MESSAGES, "response_format": form}
    written = {"structural_tag": json.dumps(form)}
    return "/v1/completions", ask | {"prompt": "x", "structured_outputs": written}
