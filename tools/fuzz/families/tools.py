"""Tools and the choice among them, in chats, responses and Anthropic's messages."""

import random
from typing import Any

from tools.fuzz.families.messages import call
from tools.fuzz.families.schemas import schema

NAMES = ("weather", "f", "a b", "")
BUILT_IN = ("web_search", "code_interpreter", "file_search", "mcp", "custom", "image_generation")
PATHS = ("/v1/chat/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages")


def function(dice: random.Random) -> dict[str, Any]:
    made: dict[str, Any] = {"name": dice.choice(NAMES), "parameters": schema(dice, 1)}
    if dice.random() < 0.3:
        made |= {"description": "tells the weather", "strict": dice.random() < 0.5}
    if dice.random() < 0.1:
        made.pop(dice.choice(sorted(made)))
    return made


def tool(dice: random.Random, path: str) -> dict[str, Any]:
    if dice.random() < 0.1:
        return {"type": dice.choice(BUILT_IN), "container": {"type": "auto"}, "server_label": "x"}
    made = function(dice)
    if path.endswith("/messages"):
        return {"name": made.get("name"), "input_schema": made.get("parameters")}
    if path.endswith("/responses"):
        return {"type": "function"} | made
    return {"type": "function", "function": made}


def choice(dice: random.Random, path: str) -> Any:
    name = dice.choice(NAMES)
    if path.endswith("/messages"):
        return dice.choice(({"type": "auto"}, {"type": "any"}, {"type": "tool", "name": name}))
    words = ("auto", "none", "required")
    if path.endswith("/responses"):
        return dice.choice((*words, {"type": "function", "name": name}, {"type": "mcp"}))
    allowed = {"mode": "auto", "tools": [{"type": "function", "function": {"name": name}}]}
    named = {"type": "function", "function": {"name": name}}
    return dice.choice((*words, named, named, {"type": "allowed_tools", "allowed_tools": allowed}))


def draw(dice: random.Random) -> tuple[str, dict[str, Any]]:
    path = dice.choice(PATHS)
    body: dict[str, Any] = {"model": "embedded", "stream": dice.random() < 0.4}
    body["tools"] = [tool(dice, path) for _ in range(dice.choice((0, 1, 1, 2, 5)))]
    if dice.random() < 0.8:
        body["tool_choice"] = choice(dice, path)
    if path.endswith("/responses"):
        return path, body | {"input": "what weather is it", "max_output_tokens": 24}
    messages: list[dict[str, Any]] = [{"role": "user", "content": "what weather is it"}]
    if path.endswith("/completions") and dice.random() < 0.4:
        messages.append({"role": "assistant", "content": None, "tool_calls": [call(dice)]})
        messages.append({"role": "tool", "tool_call_id": "call_1", "content": "fair"})
    if dice.random() < 0.2:
        body["parallel_tool_calls"] = dice.random() < 0.5
    return path, body | {"messages": messages, "max_tokens": 24}
