"""Messages whose shape or size vLLM does not check before it uses them."""

from typing import Any

import pytest

from controller.adapters.vllm.checks.body import MAX_TYPE_CHARS, find_in_messages

USER = {"role": "user", "content": "hello"}


def message_of(request: dict[str, Any]) -> str | None:
    found = find_in_messages(request)
    return found.message if found else None


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def result(*parts: Any) -> dict[str, Any]:
    return user({"type": "tool_result", "tool_use_id": "t", "content": list(parts)})


def said(*parts: Any) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": list(parts)}


@pytest.mark.parametrize(
    ("says", "message"),
    [
        ("tool_calls must be a list", USER | {"tool_calls": 5}),
        ("tool_calls must be a list", USER | {"tool_calls": {"id": "c"}}),
        ("type of a part", user({"type": ["text"], "text": "x"})),
        ("type of a part", user({"type": "x" * (MAX_TYPE_CHARS + 1)})),
        ("text of a tool's result", result({"type": "text", "text": 5})),
        ("text of a tool's result", result({"type": "text", "text": None})),
        ("source of an image", result({"type": "image", "source": "x"})),
    ],
)
def test_wrong_in_messages_and_input(says: str, message: dict[str, Any]) -> None:
    for field in ("messages", "input"):
        found = find_in_messages({field: [USER, message]})
        assert found is not None
        assert says in found[0]
        assert found[1] == field
    assert find_in_messages({"messages": [[USER], [USER, message]]}) is not None


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        ({"messages": [1]}, "each item of messages must be an object"),
        ({"messages": [[{}], [1]]}, "each item of messages must be an object"),
        ({"messages": [{}, [{}]]}, "each item of messages must be an object"),
        ({"input": [{}, "x"]}, "each item of input must be an object"),
        ({"input": [{"content": [{}, 1]}]}, "input: each part of a message's content"),
        ({"messages": [[{"content": [None]}]]}, "messages: each part of a message's content"),
    ],
)
def test_what_is_no_object(request_: dict[str, Any], says: str) -> None:
    found = find_in_messages(request_)
    assert found is not None
    assert found.message.startswith(says)


@pytest.mark.parametrize(
    "parts", [[], [{"type": "refusal", "refusal": "no"}], ["x"], [{"text": 5}]]
)
def test_an_answer_sent_back_begins_with_a_text(parts: list[Any]) -> None:
    found = find_in_messages({"input": [said(*parts)]})
    assert found is not None
    assert "begin with a text" in found[0]
    assert find_in_messages({"input": [user(*parts)]}) is None


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"messages": "x", "input": 5},
        {"messages": [USER, USER | {"tool_calls": None}, USER | {"tool_calls": []}]},
        {"messages": [user({"type": "text", "text": "x"}, {"text": "no type"}, "a text")]},
        {"messages": [result({"type": "text", "text": "x"}, {"type": "image", "source": {}})]},
        {"messages": [{"role": "assistant", "content": []}]},
        {
            "input": [
                said({"type": "output_text", "text": "so"}),
                {"role": "assistant", "content": "x"},
            ]
        },
        {"input": [{"type": "function_call_output", "output": [{"type": "input_text"}]}]},
        {"input": ["a text to embed", "another"]},
        {"input": [[1, 2], [3]]},
    ],
)
def test_what_is_right_passes(request_: dict[str, Any]) -> None:
    assert find_in_messages(request_) is None


def call(arguments: str) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"type": "function", "function": function}]}


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
        found = message_of(request)
        assert found == f"messages: the arguments of a tool call are {says}"
    assert message_of({"input": [item]}) == f"input: the arguments of a tool call are {says}"


def test_arguments_of_all_calls_count_together() -> None:
    some = "[" + "1," * 9_999 + "1]"
    assert message_of({"messages": [call(some)] * 2}) is None
    assert message_of({"messages": [call(some)] * 3}) is not None


def test_arguments_that_are_no_json_are_vllm_s_to_judge() -> None:
    for arguments in ("", "{", '{"a": "[[[[[[["}', "[" * 64):
        assert message_of({"messages": [call(arguments)]}) is None
