"""Sends an error within a stream of Anthropic's messages to the client as an error.

vLLM makes such a stream of a chat's chunks, and takes an error among them for a chunk that it
cannot read: instead of the failure's reason and status, clients got the validation error of vLLM's
own model, and the log a traceback.

Touch points of vLLM: entrypoints/anthropic/serving.py `message_stream_converter`.
"""

from collections.abc import AsyncGenerator
from typing import Any

from controller.adapters.vllm.endpoint.error_bodies import (
    ANTHROPIC_EVENT_PREFIX,
    EVENT_PREFIX,
    anthropic_event,
)

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
