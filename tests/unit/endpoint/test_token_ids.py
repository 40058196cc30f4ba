"""What counts as token ids, and what is refused as token ids."""

from typing import Any

import pytest

from controller.adapters.vllm.checks.body import (
    LISTS,
    find_no_ids,
    max_token_ids,
    num_token_ids,
)


@pytest.mark.parametrize("bad", [True, 1.0, "1", None, {}, []], ids=repr)
@pytest.mark.parametrize("field", ["prompt", *LISTS])
def test_an_id_is_an_integer_of_json(field: str, bad: Any) -> None:
    found = find_no_ids({field: [1, bad]})
    assert found is not None
    assert found.param == field
    if field == "prompt":
        assert find_no_ids({"prompt": [[1], [2, bad]]}) == found
        assert find_no_ids({"prompt": ["a", bad]}) == (None if bad == "1" else found)


@pytest.mark.parametrize("prompt", ["a", None, [], [1, 2], ["a", "b"], [[1], [2, 3]], [[]], 3])
def test_prompts_that_are_vllm_s_to_judge(prompt: Any) -> None:
    assert find_no_ids({"prompt": prompt}) is None


def test_how_many_there_are() -> None:
    assert num_token_ids({"prompt": [1, 2], "stop_token_ids": [3], "x": [4]}) == 3
    assert num_token_ids({"prompt": [[1, 2], [3]]}) == 3
    assert num_token_ids({"input": [[1, 2], [3]]}) == 3
    assert num_token_ids({"input": [{"role": "user"}, 1]}) == 0
    assert num_token_ids({"prompt": [[1, -2], ["a"], [True]], "tokens": "x"}) == 0


def test_as_many_as_the_context_within_bounds() -> None:
    assert [max_token_ids(n) for n in (2048, 131_072, 10**6)] == [100_000, 131_072, 200_000]
