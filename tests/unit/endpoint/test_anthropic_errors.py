"""Errors at the paths of Anthropic's API, and within a stream that is converted into another
stream.
"""

import json
from collections.abc import AsyncGenerator
from typing import Any

from controller.adapters.vllm.endpoint.answers import (
    INTERNAL,
    anthropic_event,
    tell_errors,
)
from tests.unit.endpoint.gate_support import ask, gate

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
    events, _ = await converted("data: {}\n\n", "data: [DONE]\n\n")
    assert events == ["event: delta\ndata: {}\n\n", "event: delta\ndata: [DONE]\n\n"]
    (event,), _ = await converted(by=Failing)
    assert (told(event)["type"], told(event)["message"]) == ("api_error", INTERNAL)


# -- by status --------------------------------------------------------------------------------

KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    410: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
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


async def test_each_error_has_the_type_that_it_would_have_of_anthropic_s_own() -> None:
    for status, kind in KINDS.items():
        content = json.dumps({"max_tokens": status}).encode()
        answer = await ask(gate(failing), "/v1/messages", content=content)
        found = answer.json()
        assert (answer.status_code, found["type"]) == (status, "error")
        why = INTERNAL if status == 500 else "why"
        assert (found["error"]["type"], found["error"]["message"]) == (kind, why)
        content = json.dumps({"max_tokens": status, "stream": True}).encode()
        streamed = await ask(gate(failing), "/v1/messages", content=content)
        assert told(streamed.text.split("\n\n")[-2])["type"] == kind
