"""Shapes within messages that vLLM takes for granted where it converts them: each was a 500.

A part's type goes into a warning that vLLM writes once for each, and remembers the last 128 of:
types of 8 MB would be 1 GB.

Touch points (vllm 0.32): entrypoints/openai/chat_completion/protocol.py
`_normalize_messages_before`; entrypoints/openai/responses/utils.py
`_construct_message_from_response_item`; entrypoints/anthropic/serving.py
`_convert_user_tool_result`.
"""

from collections.abc import Iterator
from typing import Any

from controller.adapters.vllm.fault import Fault

MAX_TYPE_CHARS = 64


def find_wrong_shape(request: dict[str, Any]) -> Fault | None:
    for field in ("messages", "input"):
        for message in _objects(request.get(field)):
            if why := _find_in_message(message) or (
                _find_in_output(message) if field == "input" else None
            ):
                return Fault(f"{field}: {why}", field)
    return None


def _find_in_message(message: dict[str, Any]) -> str | None:
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        return "tool_calls must be a list"
    for part in _objects(message.get("content")):
        kind = part.get("type")
        if kind is not None and not (isinstance(kind, str) and len(kind) <= MAX_TYPE_CHARS):
            return f"the type of a part must be a string of at most {MAX_TYPE_CHARS} characters"
        if kind == "tool_result" and (why := _find_in_tool_result(part)):
            return why
    return None


def _find_in_tool_result(result: dict[str, Any]) -> str | None:
    for part in _objects(result.get("content")):
        if not isinstance(part.get("text", ""), str):
            return "the text of a tool's result must be a string"
        if not isinstance(part.get("source", {}), dict):
            return "the source of an image must be an object"
    return None


def _find_in_output(item: dict[str, Any]) -> str | None:
    """An answer that a client sends back: vLLM takes the text of its first part."""
    content = item.get("content")
    if item.get("role") != "assistant" or not isinstance(content, list):
        return None
    first = content[0] if content else None
    if isinstance(first, dict) and isinstance(first.get("text"), str):
        return None
    return "the content of an assistant's message must begin with a text"


def _objects(found: Any) -> Iterator[dict[str, Any]]:
    """Of a list; those of a batch's conversations too."""
    for value in found if isinstance(found, list) else ():
        if isinstance(value, dict):
            yield value
        elif isinstance(value, list):
            yield from (inner for inner in value if isinstance(inner, dict))
