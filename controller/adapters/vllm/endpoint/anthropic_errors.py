"""An error within a stream of Anthropic's messages reaches the client as one.

vLLM makes such a stream of a chat's chunks, and takes an error among them for a chunk that it
cannot read: clients got the validation error of its own model, and its log a traceback, instead
of why and with which status the request had failed.

Touch points of vLLM: entrypoints/anthropic/serving.py `message_stream_converter`.
"""

import json
from collections.abc import AsyncGenerator
from typing import Any

from controller.adapters.vllm.endpoint.error_bodies import EVENT_PREFIX, reshape_event


def tell_errors(serving: Any) -> None:
    """Of this AnthropicServingMessages; None where the model has no chats."""
    if serving is None:
        return
    convert = serving.message_stream_converter

    async def converted(chunks: AsyncGenerator[str, None]) -> AsyncGenerator[str, None]:
        errors: list[str] = []
        async for event in convert(_until_error(chunks, errors)):
            yield event
        for chunk in errors:
            yield error_event(chunk)

    serving.message_stream_converter = converted


def error_event(chunk: str) -> str:
    """In Anthropic's shape, with our four fields."""
    data = reshape_event(chunk.encode()).partition(b"\n")[0].removeprefix(b"data: ")
    event = json.dumps({"type": "error", **json.loads(data)}, ensure_ascii=False)
    return f"event: error\ndata: {event}\n\n"


async def _until_error(
    chunks: AsyncGenerator[str, None], errors: list[str]
) -> AsyncGenerator[str, None]:
    async for chunk in chunks:
        if chunk.startswith(EVENT_PREFIX.decode()):
            errors.append(chunk)
            await chunks.aclose()
            return
        yield chunk
