"""Messages whose shape vLLM does not look at before it uses it."""

from typing import Any

import pytest

from controller.adapters.vllm.message_shapes import MAX_TYPE_CHARS, find_wrong_shape

USER = {"role": "user", "content": "hello"}


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
        found = find_wrong_shape({field: [USER, message]})
        assert found is not None
        assert says in found[0]
        assert found[1] == field
    assert find_wrong_shape({"messages": [[USER], [USER, message]]}) is not None


@pytest.mark.parametrize(
    "parts", [[], [{"type": "refusal", "refusal": "no"}], ["x"], [{"text": 5}]]
)
def test_an_answer_sent_back_begins_with_a_text(parts: list[Any]) -> None:
    found = find_wrong_shape({"input": [said(*parts)]})
    assert found is not None
    assert "begin with a text" in found[0]
    assert find_wrong_shape({"input": [user(*parts)]}) is None


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
        {"input": ["x", {"type": "function_call_output", "output": [{"type": "input_text"}]}]},
    ],
)
def test_what_is_right_passes(request_: dict[str, Any]) -> None:
    assert find_wrong_shape(request_) is None
