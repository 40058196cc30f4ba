"""Tools called through a parser, as stock clients of OpenAI's and Anthropic's see them."""

import json
from typing import Any

import anthropic
import openai
import pytest

from tools.client_stream import Stream
from tools.cluster import Cluster

TOOL: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "minLength": 5, "maxLength": 30},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
ASK: Any = {
    "model": "embedded",
    "messages": [{"role": "user", "content": "will it rain?"}],
    "tools": [TOOL],
    # The built-in model calls no tool by itself: a grammar makes it write what the parser reads.
    "tool_choice": {"type": "function", "function": {"name": "weather"}},
    "temperature": 0,
    "max_tokens": 300,
}


def test_a_tool_call_streamed_equals_the_whole(cluster: Cluster, client: openai.OpenAI) -> None:
    choice = client.chat.completions.create(**ASK).choices[0]
    (whole,) = choice.message.tool_calls or ()
    assert whole.function.name == "weather"
    arguments = json.loads(whole.function.arguments)
    assert set(arguments) == {"city", "days"}

    (streamed,) = Stream(cluster, "/v1/chat/completions", ASK, "weather-").result()
    assert (streamed.text, streamed.finish_reason) == ("", choice.finish_reason)
    assert streamed.calls[0]["name"] == "weather"
    assert json.loads(streamed.calls[0]["arguments"]) == arguments
    cluster.wait_quiet()


def test_a_tool_that_anthropic_s_client_makes_the_model_call(cluster: Cluster) -> None:
    """It has no way to ask for `strict`, and reads no call whose input is no object."""
    function = TOOL["function"]
    ask: Any = {
        "model": "embedded",
        "messages": ASK["messages"],
        "tools": [{"name": function["name"], "input_schema": function["parameters"]}],
        "extra_body": {"temperature": 0},
        "max_tokens": 300,
    }
    once: Any = {"type": "any", "disable_parallel_tool_use": True}
    with anthropic.Anthropic(base_url=cluster.url, api_key="none", max_retries=0) as client:
        answer = client.messages.create(**ask, tool_choice=once)
        assert answer.stop_reason == "tool_use", answer
        (block,) = answer.content
        assert block.type == "tool_use"
        assert set(block.input) == {"city", "days"}
        with client.messages.stream(**ask, tool_choice=once) as stream:
            (streamed,) = stream.get_final_message().content
        assert streamed.input == block.input
        with pytest.raises(anthropic.NotFoundError) as raised:
            client.messages.create(**ask | {"model": "nope"})
        assert raised.value.type == "not_found_error"
    cluster.wait_quiet()
