"""Errors at the paths of Anthropic's API, and within a stream that is converted into another
stream.
"""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from uvicorn import Config, Server

from controller.adapters.connections import KeepAlive
from controller.adapters.vllm.endpoint.answers import (
    INTERNAL,
    anthropic_event,
    error_body,
    tell_errors,
)
from tests.unit.endpoint.gate_support import gate

FAILED = 'data: {"error": {"message": "%s", "type": "x", "param": null, "code": 503}}\n\n'
Chunks = AsyncGenerator[str, None]


class Converter:
    """Like vLLM's, it understands chunks and nothing else."""

    async def message_stream_converter(self, chunks: Chunks) -> Chunks:
        async for chunk in chunks:
            assert "error" not in chunk
            yield f"event: delta\n{chunk}"


class Failing:
    async def message_stream_converter(self, _chunks: Chunks) -> Chunks:
        told = {"type": "error", "error": {"type": "internal_error", "message": "KeyError: x"}}
        yield f"event: error\ndata: {json.dumps(told)}\n\n"


async def converted(*chunks: str, by: type = Converter) -> tuple[list[str], bool]:
    """The events, and whether the source was closed."""
    closed = False

    async def source() -> Chunks:
        nonlocal closed
        try:
            for chunk in chunks:
                yield chunk
        finally:
            closed = True

    serving = by()
    tell_errors(serving)
    return [event async for event in serving.message_stream_converter(source())], closed


def told(event: str) -> Any:
    name, data, *_ = event.split("\n")
    assert name == "event: error"
    found = json.loads(data.removeprefix("data: "))
    assert found["type"] == "error"
    return found["error"]


async def test_an_error_ends_the_stream_as_an_event() -> None:
    events, closed = await converted("data: {}\n\n", FAILED % ("y" * 9000), "data: [DONE]\n\n")
    first, last = events
    assert first == "event: delta\ndata: {}\n\n"
    assert closed
    assert (told(last)["code"], told(last)["type"]) == (503, "overloaded_error")
    assert len(last) < 8192


async def test_an_error_of_vllm_s_converter_tells_nothing_of_its_insides() -> None:
    tell_errors(None)  # a model without chats
    (event,), _ = await converted(by=Failing)
    assert (told(event)["type"], told(event)["message"]) == ("api_error", INTERNAL)


# -- what Anthropic's client makes of them --------------------------------------------------

KINDS = {
    400: ("BadRequestError", "invalid_request_error"),
    401: ("AuthenticationError", "authentication_error"),
    410: ("APIStatusError", "invalid_request_error"),
    429: ("RateLimitError", "rate_limit_error"),
    500: ("InternalServerError", "api_error"),
    503: ("ServiceUnavailableError", "overloaded_error"),
    529: ("OverloadedError", "overloaded_error"),
}


async def failing(_scope: Any, receive: Any, send: Any) -> None:
    """Fails as vLLM's app does, with the status given as `max_tokens`."""
    asked = json.loads((await receive())["body"])
    status = asked["max_tokens"]
    if asked.get("stream"):
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        chunk = json.dumps({"error": {"message": "why", "type": "X", "code": status}})
        for body in (*[b"event: ping\ndata: {}\n\n"] * 9, anthropic_event(chunk.encode())):
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        return
    body = json.dumps({"type": "error", "error": {"type": "X", "message": "why"}}).encode()
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": body})


@pytest.mark.long
async def test_each_error_is_to_anthropic_s_client_what_it_would_be_of_anthropic_s_own() -> None:
    import anthropic

    http: Any = KeepAlive(9, error_body)  # uvicorn only calls it
    found = gate(failing, keys=("sk-a",))
    server = Server(Config(found, http=http, log_level="critical", lifespan="off"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        ask: Any = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
        async with anthropic.AsyncAnthropic(base_url=url, api_key="sk-a", max_retries=0) as client:
            for status, (name, kind) in KINDS.items():
                with pytest.raises(anthropic.APIStatusError) as raised:
                    await client.messages.create(**ask, max_tokens=status)
                error = raised.value
                assert (type(error).__name__, error.type, error.status_code) == (name, kind, status)
                assert error.api_message == (INTERNAL if status == 500 else "why")
                with pytest.raises(anthropic.APIStatusError) as raised:
                    async for _ in await client.messages.create(
                        **ask, max_tokens=status, stream=True
                    ):
                        pass
                assert (raised.value.type, raised.value.status_code) == (kind, 200)
            stranger = client.copy(api_key="sk-b")
            with pytest.raises(anthropic.AuthenticationError) as refused:
                await stranger.messages.create(**ask, max_tokens=400)
            assert refused.value.type == "authentication_error", "of the gate itself"
        server.should_exit = True
        await serving
