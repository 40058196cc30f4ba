"""Leaves a tool call that `max_tokens` has cut out of an answer of Anthropic's messages.

vLLM decodes each call's arguments: those of a cut call made a 400 of a good request, with a
traceback in the log. Without the cut call, the answer's stop reason `max_tokens` says why it ends.
In a stream the arguments leave as they come, and nothing decodes them.

Touch points of vLLM: entrypoints/anthropic/serving.py `messages_full_converter`.
"""

from typing import Any

import msgspec


def leave_out_cut_calls(serving: Any) -> None:
    """`serving`: vLLM's AnthropicServingMessages; None if the model has no chats."""
    if serving is None:
        return
    convert = serving.messages_full_converter

    def converted(answer: Any) -> Any:
        for choice in answer.choices:
            calls = choice.message.tool_calls
            choice.message.tool_calls = [c for c in calls if is_whole(c.function.arguments)]
        return convert(answer)

    serving.messages_full_converter = converted


def is_whole(arguments: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(arguments), dict)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False
