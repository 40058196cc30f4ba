"""Fields that would change the answer and that vLLM ignores."""

from typing import Any

import pytest

from controller.adapters.vllm.checks.body import HARMLESS, find_unserved


@pytest.mark.parametrize("field", HARMLESS)
def test_refused_by_name(field: str) -> None:
    for value in ("x", 2, True, {"name": "f"}, ["x"]):
        found = find_unserved({"prompt": "a", field: value})
        assert found is not None
        assert found.param == field
        assert found.message.startswith(f"{field} is not supported")
    assert find_unserved({field: None}) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"best_of": 1},
        {"function_call": "none", "functions": []},
        {"modalities": ["text"]},
        {"verbosity": "medium"},
        {"background": False},
        {"store": True, "service_tier": "flex", "user": "u", "metadata": {"a": "b"}},
    ],
)
def test_what_has_no_effect_passes(fields: dict[str, Any]) -> None:
    assert find_unserved(fields) is None


def test_what_to_use_instead() -> None:
    found = find_unserved({"guided_regex": "a+"})
    assert found is not None
    assert found.message == "guided_regex is not supported; use structured_outputs"
    found = find_unserved({"best_of": 5})
    assert found is not None
    assert found.message == "best_of is not supported, except as 1"
