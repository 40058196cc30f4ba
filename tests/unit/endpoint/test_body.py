"""Faults of a body that vLLM does not report, or not before they cost too much."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.adapters.vllm.checks import body as body_checks
from controller.adapters.vllm.checks.body import (
    HARMLESS,
    LISTS,
    MAX_DEPTH,
    MAX_TYPE_CHARS,
    MAX_VALUES,
    Fault,
    find_fault,
    find_id_fault,
    max_token_ids,
    num_token_ids,
    outline,
)
from controller.adapters.vllm.checks.constraints import TooMuchError, check_constraints

MANY = "the JSON has more than 20000 values that are not token ids"


def anything(_priority: int | None) -> None:
    """Any priority is accepted."""


def find(request: Any) -> Fault | None:
    return find_fault(json.dumps(request).encode(), anything)


def fault_of(request: Any) -> str | None:
    found = find(request)
    return found.message if found else None


# -- the text -----------------------------------------------------------------------------


def nested(depth: int) -> Any:
    found: Any = 1
    for i in range(depth):
        found = {"x": found} if i % 2 else [found]
    return found


def test_bodies_with_a_fault() -> None:
    for body, says in (
        (b"", "no body"),
        (b"[]", "must be a JSON object"),
        (b'{"a": NaN}', "not valid JSON"),
        (b"\xef\xbb\xbf{}", "not valid JSON"),
        (b'{"a": "\xed\xa0\x80"}', "not UTF-8"),
        (b'{"a": "\\ud83d"}', "surrogate"),
        (b'{"a": "\\u0000"}', "NUL"),
        (b'{"a": [[{"b": "\\u0000"}]]}', "NUL"),
        (json.dumps({"x": nested(64)}).encode(), "nested deeper than 64 levels"),
        (b"[" * 10_000, "nested deeper"),
        (b"[" * 200_000, "20000 values"),
    ):
        found = find_fault(body, anything)
        assert found is not None
        assert says in found.message
        assert len(found.message) < 300


def test_a_multitude_is_refused_without_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_checks, "_DECODER", None)
    for body in (b'{"prompt":[' + b"1," * 4_000_000 + b"1]}", b'{"prompt":' + b"[" * 4_000_000):
        found = find_fault(body, anything)
        assert found is not None
        assert found.message.startswith("the JSON has more than 20000 values")


TEXTS = st.text(alphabet='ab[]{},:"\\ \n\u00e9', max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=40,
)


def sizes(found: Any) -> tuple[int, int]:
    """The number of values and the depth."""
    if isinstance(found, dict):
        found = list(found.values())
    if not isinstance(found, list):
        return 0, 0
    inner = [sizes(each) for each in found]
    most = max((depth for _, depth in inner), default=0)
    return len(found) + sum(number for number, _ in inner), 1 + most


@given(VALUES, st.booleans(), st.sampled_from([None, 1]))
def test_what_is_counted_before_decoding_is_what_decoding_finds(
    found: Any, ascii_only: bool, indent: int | None
) -> None:
    text = json.dumps(found, ensure_ascii=ascii_only, indent=indent).encode()
    num_values, depth = sizes(found)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body_checks, "MAX_DEPTH", max(depth, 1) - 1)
        if depth:
            assert outline(text) == (num_values, False, True)
        patch.setattr(body_checks, "MAX_DEPTH", depth)
        assert not outline(text).too_deep
        assert outline(text).num_values >= num_values


def test_what_is_counted_in_any_text() -> None:
    for text, too_many, too_deep in (
        (b"[]" * (MAX_DEPTH + 1), False, False),
        (b'"' + b'\\"[' * 100_000 + b'"', False, False),
        (b'"\\\\"' + b"[" * (MAX_DEPTH + 1), False, True),
        (b"[" * (MAX_VALUES + 1), False, True),
        (b"[" * (MAX_VALUES + 2), True, False),
        (b'"",' * (2 * MAX_VALUES), False, False),
        (b'"",' * (2 * MAX_VALUES + 1), True, False),
    ):
        found = outline(text)
        assert (found.too_many, found.too_deep) == (too_many, too_deep)


@pytest.mark.long
def test_what_closes_nothing_is_not_added_up() -> None:
    """In CPU time of this thread; 8 MB of closing brackets took 0.5 s."""
    begun_s = time.thread_time()
    outline(b"[" * 65 + b"]" * 8_000_000)
    assert time.thread_time() - begun_s < 0.15


# -- the fields ---------------------------------------------------------------------------

USER = {"role": "user", "content": "hello"}
SEQUENCES = "prompts times n must be at most 1024, got 1"


def call(arguments: str) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"type": "function", "function": function}]}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"n": 129}, "n must be at most 128, got 129"),
    ({"n": 11, "prompt": ["a"] * 50, "prompt_embeds": ["a"] * 50}, SEQUENCES),
    ({"n": 2, "prompt": [[1, 2]] * 513}, SEQUENCES),
    ({"n": None, "messages": [[USER]] * 1025}, SEQUENCES),
    ({"n": None, "input": [[1]] * 1025}, SEQUENCES),
    ({"messages": None}, "messages must be a list"),
    ({"tools": {"x": 1}}, "tools must be a list"),
    ({"structured_outputs": [{"regex": "a"}]}, "structured_outputs must be an object"),
    ({"sampling_params": [1]}, "sampling_params must be an object"),
    ({"sampling_params": {"n": 129}}, "sampling_params: n must be at most 128, got 129"),
    ({"sampling_params": {"structured_outputs": {"choice": ["a"] * 2001}}}, "sampling_params: "),
    ({"tools": [{"function": {}}], "tool_choice": {"function": {}}}, "each of tools must be an"),
    # how many
    ({"messages": [{}] * 2049}, "messages has more than 2048 items"),
    ({"input": ["a"] * 2049}, "input has more than 2048 items"),
    ({"messages": [{"content": [{}] * 4096}]}, "the lists in messages have more than 4096 items"),
    ({"tools": [{"a": {"b": [{}] * 2048}}]}, "the lists in tools have more than 2048 items"),
    ({"input": [dict.fromkeys("abcdefg")] * 1025}, "input has more than 8192 values"),
    ({"metadata": {f"k{i}": 1 for i in range(1025)}}, "an object in metadata has more than 1024"),
    ({"bad_words": ["x" * 5000, "x" * 5001]}, "bad_words has more than 10000 characters"),
    ({"prompt": [1] * 100_001}, "the request has more than 100000 token ids; send text"),
    ({"request_id": "x" * 129}, "a request's id has at most 128 characters"),
    # what is no message
    ({"messages": [1]}, "each item of messages must be an object"),
    ({"messages": [[{}], [1]]}, "each item of messages must be an object"),
    ({"input": [{"content": [{}, 1]}]}, "input: each part of a message's content"),
    # the arguments of tool calls
    ({"messages": [call("[" * 10_000)]}, "messages: the arguments of a tool call are nested"),
    ({"input": [{"arguments": "[" * 100_000}]}, "input: the arguments of a tool call are more"),
    ({"messages": [call("[" + "1," * 9_999 + "1]")] * 3}, "messages: the arguments of a tool call"),
]


@pytest.mark.parametrize(("request_", "says"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_is_refused_names_its_field(request_: dict[str, Any], says: str) -> None:
    found = find(request_)
    assert found is not None
    assert found.message.startswith(says)
    assert found.param == next(iter(request_)) or "token ids" in says


PASSES: list[dict[str, Any]] = [
    {"model": "m", "messages": [], "n": 128, "priority": -1},
    {},
    {"prompt": ["a"] * 100, "n": 10},
    {"prompt": list(range(2000)), "n": 100},  # one prompt, of tokens
    {"prompt": [], "prompt_embeds": "x", "messages": [], "n": -5},
    {"tools": [{"function": {"name": "f"}}], "tool_choice": {"function": {}}},
    {"messages": [{"content": [{}] * 4095}]},
    {"tools": [{"a": {"b": [{}] * 2047}}]},
    {"tools": [{"parameters": {"enum": ["a"] * 4_000}}] * 2},
    {"input": [dict.fromkeys("abcdefg")] * 1024},
    {"logit_bias": {str(i): 1 for i in range(15_000)}},
    {"response_format": {"json_schema": {"schema": {"enum": ["a"] * 9000}}}},
    {"bad_words": None, "stop": ["x" * 5000] * 2},
    {"prompt": [[1] * 1000] * 100},
    {"input": [1] * 100_000},
    {"input": [[1] * 1000] * 100},
    {"messages": [USER, USER | {"tool_calls": None}, USER | {"tool_calls": []}]},
    {"messages": [{"content": [{"type": "text", "text": "x"}, {"text": "no type"}, "a text"]}]},
    {"input": [{"role": "assistant", "content": [{"text": "so"}]}, {"role": "assistant"}]},
    {"messages": [call("[" + "1," * 9_999 + "1]")] * 2},
    *({"messages": [call(given)]} for given in ("", '{"a": "[[[[[[["}', "[" * 64)),
]


@pytest.mark.parametrize("request_", PASSES, ids=lambda request: str(request)[:40])
def test_what_passes(request_: dict[str, Any]) -> None:
    assert fault_of(request_) is None


def test_texts_that_pass() -> None:
    for body in (
        b'{"a": "\\ud83d\\ude00"}',
        b'{"a": "\\\\ud83d \\\\u0000"}',
        b' {"a": 1e308}\n',
        json.dumps({"x": nested(63)}).encode(),
        json.dumps({"prompt": "{[,]}" * 20_000}).encode(),
    ):
        assert find_fault(body, anything) is None


# vLLM's models take them for integers.
@pytest.mark.parametrize("value", ["129", 129.0, True, [129]], ids=repr)
@pytest.mark.parametrize("field", ["n", "priority"])
def test_a_bounded_number_is_an_integer_of_json(field: str, value: Any) -> None:
    assert find({field: value}) == (f"{field} must be an integer", field)


def test_too_many_values_are_refused_wherever_they_are_unless_they_are_token_ids() -> None:
    assert fault_of({"x": {"parameters": [{}] * 19_998}}) is None
    assert fault_of({"x": {"parameters": [{}] * 19_999}}) == MANY
    for many in ([-1] * 30_000, [1.5] * 30_000, [True] * 30_000, [[-1] * 200] * 200):
        assert fault_of({"prompt": many}) == MANY
        assert fault_of({"x": [many, {"y": many}]}) == MANY


def test_there_may_be_as_many_token_ids_as_the_context_has_within_bounds() -> None:
    body = json.dumps({"prompt": list(range(150_000)), "x": [[1]] * 40}).encode()
    assert find_fault(body, anything, max_token_ids=150_000) is None
    found = find_fault(body, anything, max_token_ids=149_999)
    assert found == ("the request has more than 149999 token ids; send text", "prompt")
    assert [max_token_ids(n) for n in (2048, 131_072, 10**6)] == [100_000, 131_072, 200_000]
    assert num_token_ids({"prompt": [1, 2], "stop_token_ids": [3], "x": [4]}) == 3
    assert num_token_ids({"prompt": [[1, 2], [3]], "input": [[1]]}) == 4
    assert num_token_ids({"input": [{"role": "user"}, 1]}) == 0
    assert num_token_ids({"prompt": [[1, -2], ["a"], [True]], "tokens": "x"}) == 0


def test_a_text_to_be_cut_is_not_far_too_long() -> None:
    long = "x" * 600_000
    assert fault_of({"prompt": "x" * 500_000, "truncate_prompt_tokens": 10}) is None
    assert fault_of({"prompt": long, "truncate_prompt_tokens": None}) is None
    assert fault_of({"prompt": long, "truncation": "disabled"}) is None
    for field, value in (("truncate_prompt_tokens", 10), ("truncation", "auto")):
        says = f"with {field}, a body may have 524288 bytes"
        assert find({"prompt": long, field: value}) == (says, field)


def test_ids_are_short_and_printable() -> None:
    for request_id in ("x" * 129, "a\nb", "a\x7f", "\u202e"):
        assert find_id_fault(request_id)
    for request_id in ("", "x" * 128, "Ω-7 ok"):
        assert find_id_fault(request_id) is None


@pytest.mark.parametrize("bad", [True, 1.0, "1", None, []], ids=repr)
@pytest.mark.parametrize("field", ["prompt", *LISTS])
def test_an_id_is_an_integer_of_json(field: str, bad: Any) -> None:
    found = find({field: [1, bad]})
    assert found is not None
    assert found.param == field
    if field == "prompt":
        assert find({"prompt": [[1], [2, bad]]}) == found
        assert find({"prompt": ["a", bad]}) == (None if bad == "1" else found)


# -- messages -----------------------------------------------------------------------------


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def result(*parts: Any) -> dict[str, Any]:
    return user({"type": "tool_result", "tool_use_id": "t", "content": list(parts)})


def test_wrong_in_messages_in_input_and_in_a_batch() -> None:
    for says, message in (
        ("tool_calls must be a list", USER | {"tool_calls": {"id": "c"}}),
        ("type of a part", user({"type": ["text"], "text": "x"})),
        ("type of a part", user({"type": "x" * (MAX_TYPE_CHARS + 1)})),
        ("input_audio must be", user({"input_audio": "x"})),
        ("input_audio must be", user({"type": "input_audio", "input_audio": ["x"], "uuid": "u"})),
        ("text of a tool's result", result({"type": "text", "text": None})),
        ("source of an image", result({"type": "image", "source": "x"})),
    ):
        for field, messages in (
            ("messages", [USER, message]),
            ("input", [USER, message]),
            ("messages", [[USER], [USER, message]]),
        ):
            found = find({field: messages})
            assert found is not None
            assert says in found.message
            assert found.param == field
    right = result({"type": "x" * MAX_TYPE_CHARS, "text": "x"}, {"type": "image", "source": {}})
    assert find({"messages": [right]}) is None


def test_an_answer_sent_back_begins_with_a_text() -> None:
    for parts in ([], [{"type": "refusal", "refusal": "no"}], ["x"], [{"text": 5}]):
        said = {"type": "message", "role": "assistant", "content": parts}
        assert "begin with a text" in (fault_of({"input": [said]}) or "")
        assert fault_of({"input": [user(*parts)]}) is None


# -- fields that vLLM ignores --------------------------------------------------------------


@pytest.mark.parametrize("field", HARMLESS)
def test_a_field_that_would_change_the_answer_is_refused_by_name(field: str) -> None:
    for value in ("x", 2, True, {"name": "f"}, ["x"]):
        found = find({"prompt": "a", field: value})
        assert found is not None
        assert found.param == field
        assert found.message.startswith(f"{field} is not supported")
    for value in (None, *HARMLESS[field]):
        assert find({field: value, "store": True, "user": "u"}) is None
    instead = fault_of({"guided_regex": "a+"})
    assert instead == "guided_regex is not supported; use structured_outputs"


# -- structured outputs --------------------------------------------------------------------

COSTLY = {"pattern": "(a+)+"}
MANY_KEYS = [f"p{i}" for i in range(101)]


def test_costly_patterns_are_found_wherever_they_are() -> None:
    request_: dict[str, Any]
    for request_ in (
        {"structured_outputs": {"regex": "(a+)+"}},
        {"structured_outputs": {"json": {"type": "string", "pattern": "(a+)+"}}},
        {"structured_outputs": {"structural_tag": '{"x": [{"pattern": "(a+)+"}]}'}},
        {"response_format": {"json_schema": {"schema": {"$defs": {"a": COSTLY}}}}},
        {"response_format": {"schema": {"patternProperties": {"(a+)+": {}}}}},
        {"tools": [{"function": {"parameters": {"properties": {"a": COSTLY}}}}]},
        {"output_config": {"format": {"schema": COSTLY}}},
    ):
        found = find(request_)
        assert found is not None
        assert "would cost too much to follow" in found.message
        assert found.param == next(iter(request_))


def test_too_much() -> None:
    found: dict[str, Any]
    for found, says in (
        ({"json": {"minLength": 501}}, "minLength"),
        ({"json": {"properties": {"a": {"minItems": 1e9}}}}, "minItems"),
        ({"structural_tag": '{"format": {"type": "repeat", "min": 501}}'}, "repeat's min"),
        ({"json": {"minProperties": 1, "properties": dict.fromkeys(MANY_KEYS)}}, "100 properties"),
        ({"json": {"enum": ["a"] * 10_001}}, "10000 values"),
        ({"choice": ["a"] * 2001}, "2000 choices"),
        ({"grammar": "x" * 8193}, "8192 characters"),
        ({"json": "[" * 100_000}, "nested too deeply"),
        ({"structural_tag": '{"type":'}, "structural_tag is not valid JSON"),
        ({"json": "[" * 300_000}, "262144 characters"),
        ({"json": {"description": "x" * 262_144}}, "262144 characters"),
        ({"json": {"enum": ["x" * 600] * 200}}, "to choose from"),
        ({"choice": ["x" * 64] * 1025}, "to choose from"),
        ({"json": {"anyOf": [{"const": "x" * 600}] * 200}}, "to choose from"),
        ({"json": {"pattern": "[a-z]{1,2001}"}}, "too large in all"),
        ({"json": {"patternProperties": {f"a{i}{{1,300}}": {} for i in range(50)}}}, "in all"),
        ({"json": [{"pattern": "a"}] * 501}, "500 patterns"),
        ({"json": [{"pattern": "[" + "a" * 998 + "]"}] * 21}, "20000 characters"),
        ({"grammar": "root ::= [a]{1,5000} [b]{5001}"}, "count to more than 10000"),
    ):
        assert says in (fault_of({"structured_outputs": found}) or "")


def test_not_too_much() -> None:
    found: dict[str, Any]
    for found in (
        {"json": {"properties": {"pattern": {"type": "string"}, "minLength": {}}}},
        {"json": {"minLength": 500, "maxLength": 10**6, "maxItems": 10**6}},
        {"json": {"minProperties": 1, "properties": dict.fromkeys(MANY_KEYS[:100])}},
        {"structural_tag": '{"format": {"type": "repeat", "min": 500, "max": 10000}}'},
        {"json": 3, "regex": 3, "choice": 3, "grammar": 3},
        {"json": {"items": [{"pattern": "^[a-z]{1,64}$"}] * 400}},
        {"json": {"pattern": "[a-z]{1,2000}"}},
        {"grammar": "root ::= [a]{1,5000} [b]{,5000}"},
        {"choice": ["x" * 64] * 1024},
        {"choice": ["a"] * 2000},
    ):
        assert fault_of({"structured_outputs": found}) is None


def test_the_bounds_are_for_all_fields_together() -> None:
    half = {"x": [{"pattern": "[a-z]{1,1500}"}]}
    assert fault_of({"response_format": half}) is None
    assert "too large in all" in (fault_of({"response_format": half, "tools": [half]}) or "")


LARGE: dict[str, Callable[[], dict[str, Any]]] = {
    "costly patterns": lambda: {"json": {"anyOf": [{"pattern": "(a|b?)" * 330}] * 4000}},
    "numbers": lambda: {"json": {"enum": [list(range(900_000))] * 2}},
    "a text of JSON": lambda: {"json": json.dumps({"enum": ["x"] * 1_500_000})},
    "grammar": lambda: {"grammar": "{" * 8_000_000},
    "regex": lambda: {"regex": "(" * 8_000_000},
}
"""The test makes these bodies: if they were parameters, every collection would make them."""


@pytest.mark.long
@pytest.mark.parametrize("name", LARGE)
def test_large_ones_are_refused_quickly(name: str) -> None:
    """As large as a body may be: the event loop waits while it is checked."""
    found = LARGE[name]()
    begun_s = time.thread_time()
    with pytest.raises(TooMuchError):
        check_constraints({"structured_outputs": found})
    assert time.thread_time() - begun_s < 0.25
