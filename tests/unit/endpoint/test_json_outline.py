"""What is counted before a JSON text is decoded agrees with what decoding finds."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.adapters.vllm.checks import body
from controller.adapters.vllm.checks.body import MAX_DEPTH, MAX_VALUES, outline

TEXTS = st.text(alphabet='ab[]{},:"\\ \n\u00e9', max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=40,
)


def num_values(found: Any) -> int:
    if isinstance(found, dict):
        found = list(found.values())
    return len(found) + sum(map(num_values, found)) if isinstance(found, list) else 0


def depth(found: Any) -> int:
    if isinstance(found, dict):
        found = list(found.values())
    return 1 + max(map(depth, found), default=0) if isinstance(found, list) else 0


@given(VALUES, st.booleans(), st.sampled_from([None, 1]))
def test_counts_are_exact(found: Any, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(found, ensure_ascii=ascii_only, indent=indent).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body, "MAX_DEPTH", max(depth(found), 1) - 1)
        seen = outline(text)
        if depth(found):
            assert seen == (num_values(found), False, True)
        patch.setattr(body, "MAX_DEPTH", depth(found))
        assert not outline(text).too_deep
        assert outline(text).num_values >= num_values(found)


@pytest.mark.parametrize(
    ("text", "too_many", "too_deep"),
    [
        (b"[" * (MAX_DEPTH + 1), False, True),
        (b"[" * MAX_DEPTH, False, False),
        (b"[]" * (MAX_DEPTH + 1), False, False),
        (b'"' + b"[" * 100_000 + b'"', False, False),
        (b'"' + b'\\"[' * 100_000 + b'"', False, False),
        (b'"\\\\"' + b"[" * (MAX_DEPTH + 1), False, True),
        (b"[" * (MAX_VALUES + 2), True, False),
        (b'"",' * (2 * MAX_VALUES + 1), True, False),
    ],
)
def test_any_text(text: bytes, too_many: bool, too_deep: bool) -> None:
    found = outline(text)
    assert (found.too_many, found.too_deep) == (too_many, too_deep)


@pytest.mark.parametrize("text", [b"[" * 65 + b"]" * 8_000_000, b"[]" * 70 + b"}" * 8_000_000])
def test_what_closes_nothing_is_not_added_up(text: bytes) -> None:
    """In CPU time of this thread; 8 MB of closing brackets took 0.5 s."""
    begun_s = time.thread_time()
    outline(text)
    assert time.thread_time() - begun_s < 0.15
