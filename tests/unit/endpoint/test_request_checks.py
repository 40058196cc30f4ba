"""Faults of a body that vLLM does not report."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from controller.adapters.vllm.checks import body as request_checks
from controller.adapters.vllm.checks.body import find_fault, find_id_fault
from controller.adapters.vllm.checks.constraints import TooMuchError, check_constraints
from controller.adapters.vllm.endpoint.headers import AskedPriority, RefusedError


def fault_of(request: Any) -> str | None:
    try:
        found = find_fault(
            json.dumps(request).encode(), AskedPriority({"normal": 0, "high": 1}).rank
        )
    except RefusedError as refused:
        return refused.message
    return found.message if found else None


def anything(_priority: int | None) -> None:
    """Any priority is accepted."""


def nested(depth: int) -> Any:
    found: Any = 1
    for i in range(depth):
        found = {"x": found} if i % 2 else [found]
    return found


def test_a_good_request_has_no_fault() -> None:
    assert fault_of({"model": "m", "messages": [], "n": 128, "priority": -1}) is None
    assert fault_of({}) is None


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "no body"),
        (b"{", "not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b'"x"', "must be a JSON object"),
        (b'{"a": NaN}', "not valid JSON"),
        (b'{"a": -Infinity}', "not valid JSON"),
        (b"\xef\xbb\xbf{}", "not valid JSON"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (b'{"a": "\xed\xa0\x80"}', "not UTF-8"),
        (b'{"a": "\\ud83d"}', "surrogate"),
        (b'{"a": "\\ude00\\ud83d"}', "surrogate"),
        (b'{"a": "\\ud83dx\\ude00"}', "surrogate"),
        (b'{"a": "\\u0000"}', "NUL"),
        (b'{"\\u0000": 1}', "NUL"),
        (b'{"a": [[{"b": "\\u0000"}]]}', "NUL"),
        (b"[" * 10_000, "nested deeper"),
        (b'{"a":' * 10_000, "nested deeper"),
        (b"[" * 200_000, "20000 values"),
        (b'{"a":' * 200_000, "20000 values"),
    ],
)
def test_bodies(body: bytes, says: str) -> None:
    found = find_fault(body, anything)
    assert found is not None
    assert says in found.message
    assert len(found.message) < 300


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": "\\ud83d\\ude00"}',
        '{"a": "\U0001f600"}'.encode(),
        b'{"a": "\\\\ud83d \\\\u0000"}',
        b' {"a": 1e308}\n',
        b'{"a": 1, "a": 2}',
        b'{"a": 99999999999999999999999999}',
    ],
)
def test_bodies_without_fault(body: bytes) -> None:
    assert find_fault(body, anything) is None


def test_depth_is_counted_from_the_object_itself() -> None:
    assert fault_of({"x": nested(63)}) is None
    assert fault_of({"x": nested(64)}) == "the JSON is nested deeper than 64 levels"
    assert fault_of({"x": [nested(3)] * 500}) is None


def test_many_brackets_in_a_string_are_not_depth() -> None:
    assert fault_of({"prompt": "[" * 10_000}) is None


def test_fields() -> None:
    assert fault_of({"n": 129}) == "n must be at most 128, got 129"
    assert fault_of({"n": None, "priority": None}) is None
    assert fault_of({"prompt": ["a"] * 100, "n": 11}) is not None
    assert fault_of({"prompt": ["a"] * 100, "n": 10}) is None
    assert fault_of({"prompt": list(range(2000)), "n": 100}) is None  # one prompt, of tokens
    assert fault_of({"priority": 3}) == "priority 3 is not one of 0, -1"
    assert fault_of({"messages": None}) == "messages must be a list"


# vLLM's models take the first eight for integers.
@pytest.mark.parametrize(
    "value",
    ["129", " 129\n", "1_29", "+0129", "129.0", 129.0, True, "1", 1.0, 1e3, "x", "", [129], {}],
    ids=repr,
)
@pytest.mark.parametrize("field", ["n", "priority"])
def test_a_bounded_number_is_an_integer_of_json(field: str, value: Any) -> None:
    says = f"{field} must be an integer"
    assert fault_of({field: value}) == says
    assert fault_of({"prompt": ["a"] * 1000, field: value}) == says
    assert fault_of({"use_beam_search": True, field: value}) == says
    assert fault_of({"sampling_params": {field: value}}) == f"sampling_params: {says}"
    found = find_fault(json.dumps({field: value}).encode(), anything)
    assert found is not None
    assert found.param == field


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": ["a"] * 1025},
        {"prompt": [[1, 2]] * 513, "n": 2},
        {"prompt": [[1, 2]] * 1025, "n": None},
        {"prompt_embeds": ["a"] * 100, "n": 11},
        {"prompt": ["a"] * 50, "prompt_embeds": ["a"] * 50, "n": 11},
        {"messages": [[{"role": "user", "content": "a"}]] * 1025},
    ],
    ids=lambda fields: "+".join(fields),
)
def test_too_many_sequences(fields: dict[str, Any]) -> None:
    says = fault_of(fields)
    assert says is not None
    assert says.startswith("prompts times n must be at most 1024, got 1")


def test_as_many_sequences_as_may_be() -> None:
    assert fault_of({"prompt": ["a"] * 8, "n": 128}) is None
    assert fault_of({"prompt": ["a"] * 1024}) is None
    assert fault_of({"messages": [[{}]] * 1024}) is None
    assert fault_of({"prompt": [], "prompt_embeds": "x", "messages": [], "n": -5}) is None


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("tools", 5, "tools must be a list"),
        ("tools", {"x": 1}, "tools must be a list"),
        ("structured_outputs", "x", "structured_outputs must be an object"),
        ("structured_outputs", [{"regex": "a"}], "structured_outputs must be an object"),
        ("sampling_params", [1], "sampling_params must be an object"),
        ("messages", 1.5, "messages must be a list"),
    ],
)
def test_kinds(field: str, value: Any, says: str) -> None:
    assert fault_of({field: value}) == says


@pytest.mark.parametrize(
    ("inner", "says"),
    [
        ({"n": 129}, "n must be at most 128, got 129"),
        ({"structured_outputs": {"regex": "(a+)+"}}, "would cost too much to follow"),
        ({"structured_outputs": {"grammar": "x" * 8193}}, "8192 characters"),
    ],
)
def test_sampling_params_have_the_same_bounds(inner: dict[str, Any], says: str) -> None:
    why = fault_of({"sampling_params": inner | {"sampling_params": {"n": 1}}})
    assert why is not None
    assert why.startswith("sampling_params: ")
    assert says in why


def test_how_many() -> None:
    assert fault_of({"messages": [{}] * 2048}) is None
    assert fault_of({"messages": [{}] * 2049}) == "messages has more than 2048 items"
    assert fault_of({"input": [{}] * 2049}) == "input has more than 2048 items"
    assert fault_of({"items": ["a"] * 1025}) == "items has more than 1024 items"
    assert fault_of({"tools": [{"parameters": {"enum": ["a"] * 4_000}}] * 2}) is None
    assert fault_of({"x": {"parameters": [{}] * 19_998}}) is None
    says = "the JSON has more than 20000 values that are not token ids"
    assert fault_of({"x": {"parameters": [{}] * 19_999}}) == says


@pytest.mark.parametrize(
    "many",
    [[-1] * 30_000, ["a"] * 30_000, [1.5] * 30_000, [True] * 30_000, [[-1] * 200] * 200],
    ids=lambda value: str(value)[:10],
)
def test_many_values_pass_only_as_token_ids(many: list[Any]) -> None:
    says = "the JSON has more than 20000 values that are not token ids"
    assert fault_of({"prompt": many}) == says
    assert fault_of({"x": [many, {"y": many}]}) == says


def test_an_embedding_s_token_ids_are_bounded_as_a_prompt_s_are() -> None:
    assert fault_of({"input": [1] * 100_000}) is None
    assert fault_of({"input": [[1] * 1000] * 100}) is None
    too_many = fault_of({"input": [1] * 100_001})
    assert too_many == "the request has more than 100000 token ids; send text"
    assert fault_of({"input": [[1]] * 1025}) == "prompts times n must be at most 1024, got 1025"
    assert fault_of({"input": ["a"] * 2049}) == "input has more than 2048 items"
    assert fault_of({"input": [[1], *[["a"] * 100] * 100]}) is not None


def test_a_text_to_be_cut_is_not_far_too_long() -> None:
    long = "x" * 600_000
    assert fault_of({"prompt": "x" * 500_000, "truncate_prompt_tokens": 10}) is None
    assert fault_of({"prompt": long, "truncate_prompt_tokens": None}) is None
    assert fault_of({"prompt": long, "truncation": "disabled"}) is None
    for field, value in (("truncate_prompt_tokens", 10), ("truncation", "auto")):
        why = fault_of({"prompt": long, field: value})
        assert why == f"with {field}, a body may have 524288 bytes"


def test_many_that_pass() -> None:
    assert fault_of({"prompt": [1] * 100_000}) is None
    assert fault_of({"prompt": [[1] * 1000] * 100}) is None
    assert fault_of({"prompt": "{[,]}" * 20_000}) is None


@pytest.mark.parametrize("request_id", ["x" * 129, "a\nb", "a\x7f", "\u202e"])
def test_ids(request_id: str) -> None:
    assert find_id_fault(request_id)
    assert fault_of({"request_id": request_id})


def test_good_ids() -> None:
    for request_id in ("", "x" * 128, "Ω-7 ok", "0_cmpl-1"):
        assert find_id_fault(request_id) is None


@pytest.mark.parametrize(
    "request_",
    [
        {"structured_outputs": {"regex": "(a+)+"}},
        {"structured_outputs": {"json": {"type": "string", "pattern": "(a+)+"}}},
        {"structured_outputs": {"json": '{"items": {"pattern": "(a+)+"}}'}},
        {"structured_outputs": {"structural_tag": '{"x": [{"pattern": "(a+)+"}]}'}},
        {"response_format": {"json_schema": {"schema": {"$defs": {"a": {"pattern": "(a+)+"}}}}}},
        {"response_format": {"schema": {"patternProperties": {"(a+)+": {}}}}},
        {"tools": [{"function": {"parameters": {"properties": {"a": {"pattern": "(a+)+"}}}}}]},
        {"text": {"format": {"schema": {"pattern": "(a+)+"}}}},
    ],
)
def test_costly_patterns_are_found_wherever_they_are(request_: dict[str, Any]) -> None:
    why = fault_of(request_)
    assert why is not None
    assert "would cost too much to follow" in why
    assert next(iter(request_)) in why


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ({"json": {"minLength": 501}}, "minLength"),
        ({"json": {"properties": {"a": {"minItems": 1e9}}}}, "minItems"),
        ({"structural_tag": '{"format": {"type": "repeat", "min": 501}}'}, "repeat's min"),
        (
            {"json": {"minProperties": 1, "properties": {f"p{i}": {} for i in range(101)}}},
            "100 properties",
        ),
        ({"json": {"enum": ["a"] * 10_001}}, "10000 values"),
        ({"choice": ["a"] * 2001}, "2000 choices"),
        ({"grammar": "x" * 8193}, "8192 characters"),
        ({"json": "[" * 100_000}, "nested too deeply"),
        ({"json": "[" * 300_000}, "262144 characters"),
        ({"json": {"description": "x" * 300_000}}, "262144 characters"),
        ({"json": {"x" * 300_000: 1}}, "262144 characters"),
        ({"json": {"enum": ["x" * 600] * 200}}, "to choose from"),
        ({"json": {"anyOf": [{"const": "x" * 600}] * 200}}, "to choose from"),
        ({"choice": ["x" * 600] * 200}, "to choose from"),
        ({"json": {"pattern": "[a-z]{1,10000}"}}, "too large in all"),
        ({"json": [{"pattern": "[a-z]{1,1500}"}] * 2}, "too large in all"),
        ({"json": [{"pattern": "[a-z]{1,300}[0-9]{1,300}"}] * 300}, "too large in all"),
        ({"json": {"patternProperties": {f"a{i}{{1,300}}": {} for i in range(50)}}}, "in all"),
        ({"json": {"pattern": "(a{50}){50}"}}, "too large in all"),
        ({"json": [{"pattern": "a"}] * 501}, "500 patterns"),
        ({"json": [{"pattern": "[" + "a" * 998 + "]"}] * 21}, "20000 characters"),
        ({"grammar": "root ::= [a]{1,5000} [b]{5001}"}, "count to more than 10000"),
    ],
)
def test_too_much(found: dict[str, Any], says: str) -> None:
    why = fault_of({"structured_outputs": found})
    assert why is not None
    assert says in why


@pytest.mark.parametrize(
    "found",
    [
        {"json": {"properties": {"pattern": {"type": "string"}, "minLength": {}}}},
        {"json": {"minLength": 500, "maxLength": 10**6, "maxItems": 10**6}},
        {"json": {"properties": {f"p{i}": {} for i in range(500)}}},
        {"structural_tag": '{"format": {"type": "repeat", "min": 500, "max": 10000}}'},
        {"json": {"type": "object", "min": 501}},
        {"json": 3, "regex": 3, "choice": 3, "grammar": 3},
        {"json": {"items": [{"pattern": "^[a-z]{1,64}$"}] * 400}},
        {"json": {"enum": [f"word number {i}" for i in range(2000)]}},
        {"regex": "[a-z]{1,10000}"},
        {"grammar": "root ::= [a]{1,5000} [b]{,5000}"},
        {"choice": [f"word number {i}" for i in range(2000)]},
    ],
)
def test_not_too_much(found: dict[str, Any]) -> None:
    assert fault_of({"structured_outputs": found}) is None


@pytest.mark.parametrize("field", ["json", "structural_tag"])
def test_a_schema_in_a_string_is_json(field: str) -> None:
    """Otherwise the log would get a traceback for each string that is not JSON."""
    assert fault_of({"structured_outputs": {field: '{"type": "object"}'}}) is None
    why = fault_of({"structured_outputs": {field: '{"type":'}})
    assert why == f"structured_outputs: {field} is not valid JSON"


def test_the_bounds_are_for_all_fields_together() -> None:
    half = {"x": [{"pattern": "[a-z]{1,1500}"}]}
    assert fault_of({"response_format": half}) is None
    assert "too large in all" in (fault_of({"response_format": half, "tools": [half]}) or "")


LARGE: dict[str, Callable[[], dict[str, Any]]] = {
    "costly patterns": lambda: {"json": {"anyOf": [{"pattern": "(a|b?)" * 330}] * 4000}},
    "classes": lambda: {"json": {"anyOf": [{"pattern": "[" + "a-z" * 660 + "]"}] * 4000}},
    "numbers": lambda: {"json": {"enum": [list(range(900_000))] * 2}},
    "texts": lambda: {"json": {"enum": ["x" * 700] * 9_000}},
    "a text of JSON": lambda: {"json": json.dumps({"enum": ["x"] * 1_500_000})},
    "choices": lambda: {"choice": ["x" * 2000] * 2000},
    "grammar": lambda: {"grammar": "{" * 8_000_000},
    "regex": lambda: {"regex": "(" * 8_000_000},
    "structural tag": lambda: {"structural_tag": "[" * 8_000_000},
}
"""The test makes these bodies: if they were parameters, every collection would make them."""


@pytest.mark.parametrize("name", LARGE)
def test_large_ones_are_refused_quickly(name: str) -> None:
    """As large as a body may be: the event loop waits while it is checked."""
    found = LARGE[name]()
    begun_s = time.thread_time()
    with pytest.raises(TooMuchError):
        check_constraints({"structured_outputs": found})
    assert time.thread_time() - begun_s < 0.25


def test_a_word_of_structure_in_the_text_is_nothing() -> None:
    assert fault_of({"prompt": "(a+)+", "structured_outputs": None, "text": "x"}) is None


def test_a_large_body_of_tokens_is_fine() -> None:
    """Token ids do not count among the values, and there may be as many as the context has."""
    body = json.dumps({"prompt": list(range(150_000)), "x": [[1]] * 40}).encode()
    assert find_fault(body, anything, max_token_ids=150_000) is None
    found = find_fault(body, anything, max_token_ids=149_999)
    assert found is not None
    assert found == ("the request has more than 149999 token ids; send text", "prompt")


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt":[' + b"1," * 4_000_000 + b"1]}",
        b'{"prompt":[' + b"[1]," * 1_000_000 + b"[1]]}",
        b'{"prompt":[' + b'"",' * 1_000_000 + b'""]}',
        b'{"prompt":' + b"[" * 4_000_000,
    ],
    ids=["ids", "prompts", "strings", "brackets"],
)
def test_a_multitude_is_refused_without_decoding(
    body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_checks, "_DECODER", None)
    found = find_fault(body, anything)
    assert found is not None
    assert found.message.startswith("the JSON has more than 20000 values")
