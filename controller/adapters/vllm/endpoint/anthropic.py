"""Anthropic's messages, as vLLM serves them: tool calls whose input is always an object, and errors
within a stream.

Touch points of vLLM: entrypoints/anthropic/serving.py `to_chat_completion_request`,
`messages_full_converter`, `message_stream_converter`; entrypoints/anthropic/protocol.py
`AnthropicToolChoice`; entrypoints/openai/chat_completion/serving.py `parser_cls`;
parser/abstract_parser.py `Parser`, `parse`, `_tool_parser`; tool_parsers/hermes_tool_parser.py
`tool_call_start_token`, `tool_call_end_token`.
"""

import json
import re
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from controller.adapters.vllm.endpoint.error_bodies import (
    ANTHROPIC_EVENT_PREFIX,
    EVENT_PREFIX,
    anthropic_event,
)

# -- tool calls ------------------------------------------------------------------------------------
# Tool calls of Anthropic's messages, whose input is always an object.
#
# vLLM decodes each call's arguments: those of a call that `max_tokens` has cut made a 400 of a good
# request, with a traceback in the log. Without the cut call, the answer's stop reason `max_tokens`
# says why it ends. In a stream the arguments leave as they come, and nothing decodes them.
#
# A grammar follows a tool's schema only where the tool says `strict`, which hardly any client of
# this API does: a model that was made to call a tool could give it a string for its input. So a
# tool that must be called is strict unless it says otherwise. Arguments of other calls that are no
# object are shown as text, as no client could read the call.
#
# A model that must call tools may call one after the other until `max_tokens`. vLLM's parsers find
# no call then, as the last one is cut, and the answer was an empty text; the calls before it are
# kept.

# Anthropic's words for "call one of the tools" and "call this tool".
FORCED = ("any", "tool")
_COMMA = re.compile(r"\s*,\s*")


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

    if serving.parser_cls is not None:
        serving.parser_cls = _keeping_whole_calls(serving.parser_cls)
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


def _keeping_whole_calls(parser_cls: Any) -> Any:
    class Parser(parser_cls):  # type: ignore[misc]  # it is vLLM's, whichever the model has
        def parse(self, model_output: str, request: Any, *rest: Any, **named: Any) -> Any:
            if request.tool_choice == "required":
                marks = (
                    getattr(self._tool_parser, "tool_call_start_token", None),
                    getattr(self._tool_parser, "tool_call_end_token", None),
                )
                model_output = without_cut_call(model_output, *marks)
            return super().parse(model_output, request, *rest, **named)

    return Parser


def without_cut_call(text: str, start: str | None, end: str | None) -> str:
    """Calls stand between two marks each, or are items of a list; unchanged if none is whole."""
    if start and end and 0 <= text.rfind(end) < text.rfind(start):
        return text[: text.rfind(start)]
    if not text.startswith("["):
        return text
    calls, at = [], 1
    while at < len(text):
        try:
            call, at = json.JSONDecoder().raw_decode(text, at)
        except (ValueError, RecursionError):
            break
        calls.append(call)
        if (comma := _COMMA.match(text, at)) is None:
            break
        at = comma.end()
    return json.dumps(calls, ensure_ascii=False) if calls else text


# -- errors within a stream ------------------------------------------------------------------------
# Sends an error within a stream of Anthropic's messages to the client as an error.
#
# vLLM makes such a stream of a chat's chunks, and takes an error among them for a chunk that it
# cannot read: instead of the failure's reason and status, clients got the validation error of
# vLLM's own model, and the log a traceback.

_EVENT = ANTHROPIC_EVENT_PREFIX.decode()


def tell_errors(serving: Any) -> None:
    """`serving`: vLLM's AnthropicServingMessages; None if the model has no chats."""
    if serving is None:
        return
    convert = serving.message_stream_converter

    async def converted(chunks: AsyncGenerator[str, None]) -> AsyncGenerator[str, None]:
        errors: list[str] = []
        async for event in convert(_until_error(chunks, errors)):
            # vLLM's own, for a chunk that it cannot read, tells of its insides, and has no code.
            told = anthropic_event(b"").decode() if event.startswith(_EVENT) else event
            yield told
        for chunk in errors:
            yield anthropic_event(chunk.encode()).decode()

    serving.message_stream_converter = converted


async def _until_error(
    chunks: AsyncGenerator[str, None], errors: list[str]
) -> AsyncGenerator[str, None]:
    async for chunk in chunks:
        if chunk.startswith(EVENT_PREFIX.decode()):
            errors.append(chunk)
            await chunks.aclose()
            return
        yield chunk
