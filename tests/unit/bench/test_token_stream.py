"""A benchmark's stream counts tokens, not events: a late reader gets several in one."""

import httpx
import pytest

from benchmarks.token_stream import StreamEndedError, TokenStream


def _event(num_said: int) -> str:
    usage = f'"usage":{{"prompt_tokens":3,"total_tokens":{3 + num_said},'
    return f'data: {{"choices":[{{"text":"a"}}],{usage}"completion_tokens":{num_said}}}}}\n\n'


async def test_tokens_are_counted_events_timed_and_an_error_is_no_token() -> None:
    events = _event(1) + _event(4) + 'data: {"error":{"message":"lost"}}\n\n'
    transport = httpx.MockTransport(lambda request: httpx.Response(200, text=events))
    client = httpx.AsyncClient(transport=transport, base_url="http://bench")
    stream = TokenStream(client, "model", [1, 2, 3], 10)
    await stream.wait_tokens(4)
    assert (stream.num_said, len(stream.event_times_s)) == (4, 2)
    with pytest.raises(StreamEndedError):
        await stream.wait_tokens(5)
    assert stream.ended
