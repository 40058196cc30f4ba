"""Tool calls of Anthropic's messages, whose input is always an object.

vLLM decodes each call's arguments: those of a call that `max_tokens` has cut made a 400 of a good
request, with a traceback in the log. Without the cut call, the answer's stop reason `max_tokens`
says why it ends. In a stream the arguments leave as they come, and nothing decodes them.

A grammar follows a tool's schema only where the tool says `strict`, which hardly any client of this
API does: a model that was made to call a tool could give it a string for its input. So a tool that
must be called is strict unless it says otherwise. Arguments of other calls that are no object are
shown as text, as no client could read the call.

Touch points of vLLM: entrypoints/anthropic/serving.py `to_chat_completion_request`,
`messages_full_converter`; entrypoints/anthropic/protocol.py `AnthropicToolChoice`.
"""

from typing import Any

import msgspec

# Anthropic's words for "call one of the tools" and "call this tool".
FORCED = ("any", "tool")


def mend_calls(serving: Any) -> None:
    """`serving`: vLLM's AnthropicServingMessages; None if the model has no chats."""
    if serving is None:
        return
    convert, to_chat = serving.messages_full_converter, serving.to_chat_completion_request

    def converted(answer: Any) -> Any:
        for choice in answer.choices:
            _keep_readable_calls(choice)
        return convert(answer)

    def as_chat(request: Any, **options: Any) -> Any:
        chat = to_chat(request, **options)
        if request.tool_choice is not None and request.tool_choice.type in FORCED:
            for tool in chat.tools or ():
                if tool.function.strict is None:
                    tool.function.strict = True
        return chat

    serving.messages_full_converter = converted
    serving.to_chat_completion_request = as_chat


def _keep_readable_calls(choice: Any) -> None:
    kept, told = [], []
    for call in choice.message.tool_calls:
        try:
            arguments = msgspec.json.decode(call.function.arguments)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            continue  # it is cut
        if isinstance(arguments, dict):
            kept.append(call)
        else:
            told.append(call.function.arguments)
    choice.message.tool_calls = kept
    if told:
        choice.message.content = "\n".join([choice.message.content or "", *told]).strip()
        if not kept and choice.finish_reason == "tool_calls":
            choice.finish_reason = "stop"
