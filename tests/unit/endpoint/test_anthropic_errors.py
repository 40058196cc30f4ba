"""Errors within a stream that becomes another stream."""

import json
from collections.abc import AsyncGenerator

from controller.adapters.vllm.endpoint.anthropic_errors import tell_errors

FAILED = 'data: {"error": {"message": "%s", "type": "x", "param": null, "code": 503}}\n\n'


class Converter:
    """As vLLM's: it knows chunks and nothing else."""

    async def message_stream_converter(
        self, chunks: AsyncGenerator[str, None]
    ) -> AsyncGenerator[str, None]:
        async for chunk in chunks:
            assert "error" not in chunk
            yield f"event: delta\n{chunk}"


async def converted(*chunks: str) -> tuple[list[str], bool]:
    """The events, and whether the source was closed."""
    closed = False

    async def source() -> AsyncGenerator[str, None]:
        nonlocal closed
        try:
            for chunk in chunks:
                yield chunk
        finally:
            closed = True

    serving = Converter()
    tell_errors(serving)
    return [event async for event in serving.message_stream_converter(source())], closed


async def test_an_error_ends_the_stream_as_an_event() -> None:
    events, closed = await converted("data: {}\n\n", FAILED % ("y" * 9000), "data: [DONE]\n\n")
    first, last = events
    assert first == "event: delta\ndata: {}\n\n"
    assert closed
    name, data, *_ = last.split("\n")
    assert name == "event: error"
    found = json.loads(data.removeprefix("data: "))
    assert found["type"] == "error"
    assert found["error"]["code"] == 503
    assert found["error"]["type"] == "ServiceUnavailableError"
    assert len(last) < 8192


async def test_a_stream_without_an_error_is_as_it_was() -> None:
    events, _ = await converted("data: {}\n\n", "data: [DONE]\n\n")
    assert events == ["event: delta\ndata: {}\n\n", "event: delta\ndata: [DONE]\n\n"]


def test_a_model_without_chats_has_nothing_to_tell() -> None:
    tell_errors(None)
