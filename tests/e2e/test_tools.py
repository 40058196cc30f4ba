"""Tools called through a parser, as stock clients of OpenAI's and Anthropic's see them."""

import json
from typing import Any

import anthropic
import openai
import pytest

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
    assert choice.finish_reason in ("stop", "tool_calls")
    (whole,) = choice.message.tool_calls or ()
    assert whole.type == "function"
    assert whole.function.name == "weather"
    arguments = json.loads(whole.function.arguments)
    assert set(arguments) == {"city", "days"}
    assert 1 <= arguments["days"] <= 9

    name, pieces, finished = "", [], None
    for chunk in client.chat.completions.create(**ASK, stream=True):
        for part in chunk.choices:
            finished = part.finish_reason or finished
            for call in part.delta.tool_calls or ():
                assert call.function is not None
                name += call.function.name or ""
                pieces += [call.function.arguments] if call.function.arguments else []
            assert "tool_call" not in (part.delta.content or "")
    assert (name, finished) == ("weather", choice.finish_reason)
    assert json.loads("".join(pieces)) == arguments
    assert len(pieces) > 3, "the arguments came in one piece"
    cluster.wait_quiet()


def test_a_required_tool_and_an_automatic_choice(cluster: Cluster, client: openai.OpenAI) -> None:
    """The first would be called over and over, and the last call be cut in its middle."""
    once = {"stop": ["</tool_call>"], "extra_body": {"include_stop_str_in_output": True}}
    answer = client.chat.completions.create(**ASK | {"tool_choice": "required"} | once)
    calls = answer.choices[0].message.tool_calls or ()
    assert {call.function.name for call in calls if call.type == "function"} == {"weather"}
    free = client.chat.completions.create(**ASK | {"tool_choice": "auto", "max_tokens": 20})
    assert free.choices[0].message.content
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
    named: Any = {"type": "tool", "name": "weather"}
    with anthropic.Anthropic(base_url=cluster.url, api_key="none", max_retries=0) as client:
        for choice in (once, named):
            answer = client.messages.create(**ask, tool_choice=choice)
            assert answer.stop_reason == "tool_use", answer
            (block,) = answer.content
            assert block.type == "tool_use"
            assert set(block.input) == {"city", "days"}
            with client.messages.stream(**ask, tool_choice=choice) as stream:
                (streamed,) = stream.get_final_message().content
                assert streamed.type == "tool_use"
                assert streamed.input == block.input
        with pytest.raises(anthropic.NotFoundError) as raised:
            client.messages.create(**ask | {"model": "nope"})
        assert raised.value.type == "not_found_error"
    cluster.wait_quiet()
