"""What a benchmark's client makes of a stream that is lost."""

import json

import httpx

from benchmarks.recovery import Client, Strategy

PROMPT, NUM_OUTPUTS = [7, 8], 6
LOST = 'data: {"error":{"message":"its instance died"}}\n\n'


def said(*token_ids: int) -> str:
    return f"data: {json.dumps({'choices': [{'token_ids': token_ids}]})}\n\n"


async def played(strategy: Strategy, *answers: str) -> tuple[Client, list[dict[str, object]]]:
    """The client after these answers, and what it sent."""
    left, sent = list(answers), []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(json.loads(request.content))
        return httpx.Response(200, text=left.pop(0))

    client = Client("a-", "model", PROMPT, NUM_OUTPUTS, strategy)
    transport = httpx.MockTransport(answer)
    async with httpx.AsyncClient(transport=transport, base_url="http://bench") as http:
        await client.run(http)
    assert not left
    return client, sent


async def test_one_that_loses_its_stream_counts_each_token_once() -> None:
    first, again = said(1) + said(2, 3) + LOST, said(1, 2) + said(3, 4) + said(5, 6)
    client, sent = await played(Strategy.AGAIN, first, again)
    assert client.tokens == [1, 2, 3, 4, 5, 6]
    assert len(client.came_s) == 6
    assert [(each["prompt"], each["max_tokens"]) for each in sent] == [(PROMPT, 6)] * 2
    client, sent = await played(Strategy.APPENDED, said(1, 2) + LOST, said(3, 4, 5, 6))
    assert client.tokens == [1, 2, 3, 4, 5, 6]
    assert (sent[1]["prompt"], sent[1]["max_tokens"]) == ([*PROMPT, 1, 2], 4)


def test_the_pause_is_the_longest_that_ended_since() -> None:
    client = Client("a-", "model", PROMPT, NUM_OUTPUTS, Strategy.AGAIN)
    client.came_s = [0.0, 1.0, 5.0, 5.5]
    assert client.longest_pause(since_s=4.5) == (4.0, 2)
