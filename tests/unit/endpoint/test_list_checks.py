"""Lists whose items cost vLLM more than their bytes."""

from typing import Any

import pytest

from controller.adapters.vllm.list_checks import find_in_lists


def fault_of(request: dict[str, Any]) -> str | None:
    found = find_in_lists(request, ("prompt",))
    return found.message if found else None


def call(arguments: str) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"type": "function", "function": function}]}


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        ({"messages": [{}] * 2049}, "messages has more than 2048 items"),
        (
            {"messages": [{"content": [{}] * 100}] * 50},
            "the lists in messages have more than 4096 items together",
        ),
        (
            {"input": [{"summary": [{}] * 100}] * 50},
            "the lists in input have more than 4096 items together",
        ),
        ({"input": [dict.fromkeys("abcdefgh")] * 1000}, "input has more than 8192 values"),
        (
            {"metadata": {f"k{i}": 1 for i in range(1025)}},
            "an object in metadata has more than 1024 entries",
        ),
        (
            {"tools": [{"filters": {"filters": [{}] * 3000}}]},
            "the lists in tools have more than 2048 items together",
        ),
        ({"tools": [{}] * 2049}, "tools has more than 2048 items"),
        ({"vllm_xargs": {"a": [1] * 2049}}, "the lists in vllm_xargs have more than 2048 items"),
        ({"bad_words": ["x" * 6000] * 2}, "bad_words has more than 10000 characters"),
        ({"stop": "x" * 10_001}, "stop has more than 10000 characters"),
        ({"messages": [1]}, "each item of messages must be an object"),
        ({"messages": [[{}], [1]]}, "each item of messages must be an object"),
        ({"messages": [{}, [{}]]}, "each item of messages must be an object"),
        ({"input": [{}, "x"]}, "each item of input must be an object"),
        ({"input": [{"content": [{}, 1]}]}, "each part of a message's content"),
        ({"messages": [[{"content": [None]}]]}, "each part of a message's content"),
    ],
)
def test_refused(request_: dict[str, Any], says: str) -> None:
    found = fault_of(request_)
    assert found is not None
    assert found.startswith(says)


@pytest.mark.parametrize(
    "request_",
    [
        {"messages": [{"content": [{"type": "text"}]}] * 2048},
        {"messages": [{"content": ["text", {}]}], "input": "x"},
        {"input": ["a text to embed", "another"]},
        {"input": [[1, 2], [3]]},
        {"messages": [[{"content": "x"}]] * 1000},
        {"input": [{"type": "message", "role": "user", "content": [{}]}] * 1500},
        {"logit_bias": {str(i): 1 for i in range(15_000)}},
        {"tools": [{"function": {"parameters": {"enum": ["a"] * 9000}}}] * 2},
        {"response_format": {"json_schema": {"schema": {"enum": ["a"] * 9000}}}},
        {"prompt": [1] * 90_000, "bad_words": None, "stop": ["x" * 5000] * 2},
    ],
)
def test_passes(request_: dict[str, Any]) -> None:
    assert fault_of(request_) is None


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("[" * 10_000, "nested deeper than 64 levels"),
        ('{"a":' * 10_000, "nested deeper than 64 levels"),
        ("[" * 100_000, "more than 20000 values"),
        ("[" + "1," * 30_000 + "1]", "more than 20000 values"),
    ],
)
def test_arguments_of_tool_calls(arguments: str, says: str) -> None:
    """Chat completions, a batch of them, and Responses."""
    item = {"type": "function_call", "arguments": arguments}
    for request in ({"messages": [call(arguments)]}, {"messages": [[call(arguments)]]}):
        found = fault_of(request)
        assert found == f"messages: the arguments of a tool call are {says}"
    assert fault_of({"input": [item]}) == f"input: the arguments of a tool call are {says}"


def test_arguments_of_all_calls_count_together() -> None:
    some = "[" + "1," * 9_999 + "1]"
    assert fault_of({"messages": [call(some)] * 2}) is None
    assert fault_of({"messages": [call(some)] * 3}) is not None


def test_arguments_that_are_no_json_are_vllm_s_to_judge() -> None:
    for arguments in ("", "{", '{"a": "[[[[[[["}', "[" * 64):
        assert fault_of({"messages": [call(arguments)]}) is None
