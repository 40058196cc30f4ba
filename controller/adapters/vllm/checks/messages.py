"""Refuses messages that vLLM would answer with a 500, or take too long for.

vLLM relies on their shape when it converts them, and decodes the JSON in a tool call's arguments.
It warns once of each unknown type of a part, and remembers the last 128: types of 8 MB would take
1 GB.

Touch points of vLLM: entrypoints/openai/chat_completion/protocol.py
`_normalize_messages_before`; entrypoints/openai/responses/utils.py
`_construct_message_from_response_item`; entrypoints/anthropic/serving.py
`_convert_user_tool_result`.
"""

from typing import Any

from controller.adapters.vllm.checks.fault import Fault
from controller.adapters.vllm.checks.json_levels import levels
from controller.adapters.vllm.checks.json_outline import MAX_DEPTH, MAX_VALUES, outline
from controller.adapters.vllm.checks.lists import UNTYPED

MAX_TYPE_CHARS = 64


def find_in_messages(request: dict[str, Any]) -> Fault | None:
    for field in ("messages", "input"):
        messages = request.get(field)
        if not isinstance(messages, list):
            continue
        if field == "input" and not any(isinstance(each, dict) for each in messages):
            continue  # texts or token ids to embed
        if messages and all(isinstance(each, list) for each in messages):  # a batch
            messages = [message for each in messages for message in each]
        if not all(isinstance(message, dict) for message in messages):
            return Fault(f"each item of {field} must be an object", field)
        for message in messages:
            why = _find_in_message(message)
            if why is None and field == "input":
                why = _find_in_output(message)
            if why:
                return Fault(f"{field}: {why}", field)
        if why := _find_in_arguments(messages):
            return Fault(f"{field}: the arguments of a tool call are {why}", field)
    return None


def _find_in_message(message: dict[str, Any]) -> str | None:
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        return "tool_calls must be a list"
    parts = message.get("content")
    if isinstance(parts, list) and not all(isinstance(part, dict | str) for part in parts):
        return "each part of a message's content must be an object"
    for part in _objects(parts):
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
    """Checks an answer that a client sends back: vLLM takes the text of its first part."""
    content = item.get("content")
    if item.get("role") != "assistant" or not isinstance(content, list):
        return None
    first = content[0] if content else None
    if isinstance(first, dict) and isinstance(first.get("text"), str):
        return None
    return "the content of an assistant's message must begin with a text"


def _find_in_arguments(messages: list[Any]) -> str | None:
    """Bounds arguments, of which 100,000 brackets were a RecursionError, and 300,000 members took
    0.2 s."""
    num_values = 0
    for level in levels(messages, UNTYPED):
        for value in level:
            text = value.get("arguments") if isinstance(value, dict) else None
            if not isinstance(text, str):
                continue
            found = outline(text.encode())
            num_values += found.num_values
            if found.too_deep:
                return f"nested deeper than {MAX_DEPTH} levels"
            if found.too_many or num_values > MAX_VALUES:
                return f"more than {MAX_VALUES} values"
    return None


def _objects(found: Any) -> list[dict[str, Any]]:
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
