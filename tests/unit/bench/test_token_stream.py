"""A benchmark's stream counts tokens, not events: a late reader gets several in one."""

import httpx
import pytest

from benchmarks.token_stream import StreamEndedError, TokenStream


def _event(num_said: int) -> str:
    usage = f'"usage":{{"prompt_tokens":3,"total_tokens":{3 + num_said},'
    return f'data: {{"choices":[{{"text":"a"}}],{usage}"completion_tokens":{num_said}}}}}\n\n'


async def _stream(events: str) -> TokenStream:
    transport = httpx.MockTransport(lambda request: httpx.Response(200, text=events))
    client = httpx.AsyncClient(transport=transport, base_url="http://bench")
    return TokenStream(client, "model", [1, 2, 3], 10)


async def test_tokens_are_counted_and_events_timed() -> None:
    stream = await _stream(_event(1) + _event(4) + _event(5) + "data: [DONE]\n\n")
    await stream.wait_tokens(5)
    assert (stream.num_said, len(stream.event_times_s)) == (5, 3)


async def test_an_error_is_no_token() -> None:
    stream = await _stream(_event(1) + 'data: {"error":{"message":"lost"}}\n\n')
    with pytest.raises(StreamEndedError):
        await stream.wait_tokens(2)
    assert stream.ended
