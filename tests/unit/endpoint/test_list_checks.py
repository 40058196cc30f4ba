"""Lists whose items cost vLLM more than their bytes."""

from typing import Any

import pytest

from controller.adapters.vllm.checks.body import find_in_lists


def fault_of(request: dict[str, Any]) -> str | None:
    found = find_in_lists(request, ("prompt",))
    return found.message if found else None


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
