"""What is wrong with a request's body that vLLM does not say, or would say too late.

Everything else, vLLM refuses by itself: tests/contract/test_endpoint_bad_input.py has the list.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from controller.adapters.vllm.constraint_checks import TooMuchError, check_constraints
from controller.adapters.vllm.message_shapes import find_wrong_shape

MAX_DEPTH = 64
MAX_CHOICES = 128
MAX_SEQUENCES = 1024
# On the event loop, vLLM tries each item of a list as each of the kinds that it may be, and
# describes each failure. A million bad tokens, 4 MB, kept it from all else for 27 s, 2,048 bad
# input items for 11 s.
MAX_VALUES = 20_000
MAX_ITEMS = {"messages": 2048, "input": 512, "items": 1024}
MAX_ID_CHARS = 128
# vLLM's models also take "129", " 1_29 " and 129.0 for an integer: what we bound must be one.
INTEGERS = ("n", "priority")
# Of these vLLM asks the length or a field before it has looked at the type: a 500.
KINDS: dict[str, tuple[type, str]] = {
    "messages": (list, "a list"),
    "tools": (list, "a list"),
    "structured_outputs": (dict, "an object"),
    "sampling_params": (dict, "an object"),
}

_DECODER = msgspec.json.Decoder()
_HALF_A_PAIR = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)


class Fault(NamedTuple):
    message: str
    param: str | None = None


def find_fault(body: bytes, check_priority: Callable[[int | None], object]) -> Fault | None:
    """The first fault of a JSON body, or None. `check_priority` gets its field `priority` (None:
    it has none) and raises what is wrong with that, if no other fault was found before."""
    if not body:
        return Fault("the request has no body; it must be a JSON object")
    try:
        request = _DECODER.decode(body)
    except RecursionError:
        return Fault(f"the JSON is nested deeper than {MAX_DEPTH} levels")
    except UnicodeDecodeError:
        return Fault("the body is not UTF-8")
    except msgspec.DecodeError as error:
        if _HALF_A_PAIR.search(body):
            return Fault("a string has half of a surrogate pair, which is no character")
        return Fault(f"the body is not valid JSON: {error}")
    if not isinstance(request, dict):
        return Fault("the body must be a JSON object")
    # Few brackets are no depth, few commas no multitude: true of most requests, quick to see.
    num_brackets = body.count(b"[") + body.count(b"{")
    if num_brackets > MAX_DEPTH and _is_deeper(request, MAX_DEPTH):
        return Fault(f"the JSON is nested deeper than {MAX_DEPTH} levels")
    may_be_many = num_brackets + body.count(b",") > MAX_VALUES
    if may_be_many and _num_values(request) > MAX_VALUES:
        return Fault(f"the JSON has more than {MAX_VALUES} values that are no token ids")
    if b"\\u0000" in body and _has_nul(request):
        return Fault("a string has the character NUL")
    return _find_in_fields(request, check_priority)


def find_id_fault(request_id: str) -> str | None:
    """A client's own id goes into the answer, into logs and beside every token."""
    if len(request_id) > MAX_ID_CHARS or not request_id.isprintable():
        return f"a request's id has at most {MAX_ID_CHARS} characters, all of them printable"
    return None


def _find_in_fields(
    request: dict[str, Any], check_priority: Callable[[int | None], object]
) -> Fault | None:
    if "messages" in request and request["messages"] is None:
        return Fault("messages must be a list", "messages")
    if fault := _find_wrong_kind(request):
        return fault
    for field, max_items in MAX_ITEMS.items():
        found = request.get(field)
        if isinstance(found, list) and len(found) > max_items:
            return Fault(f"{field} has more than {max_items} items", field)
    if wrong := find_wrong_shape(request):
        return Fault(*wrong)
    n = request.get("n")
    if n is not None and n > MAX_CHOICES:
        return Fault(f"n must be at most {MAX_CHOICES}, got {n}", "n")
    num_sequences = _num_prompts(request) * (1 if n is None else n)
    if num_sequences > MAX_SEQUENCES:
        return Fault(f"prompts times n must be at most {MAX_SEQUENCES}, got {num_sequences}", "n")
    check_priority(request.get("priority"))
    request_id = request.get("request_id")
    if isinstance(request_id, str) and (why := find_id_fault(request_id)):
        return Fault(why, "request_id")
    try:
        check_constraints(request)
    except TooMuchError as error:
        return Fault(str(error), error.param)
    # Of vLLM's /inference/v1/generate; itself it may have no second one.
    if isinstance(inner := request.get("sampling_params"), dict):
        fault = _find_in_fields({**inner, "sampling_params": None}, check_priority)
        return fault and Fault(f"sampling_params: {fault.message}", "sampling_params")
    return None


def _find_wrong_kind(request: dict[str, Any]) -> Fault | None:
    for field, (kind, name) in KINDS.items():
        value = request.get(field)
        if value is not None and not isinstance(value, kind):
            return Fault(f"{field} must be {name}", field)
    for field in INTEGERS:
        value = request.get(field)
        if value is not None and type(value) is not int:  # a bool is an int to Python
            return Fault(f"{field} must be an integer", field)
    return None


def _num_prompts(request: dict[str, Any]) -> int:
    """Of a completion, or conversations of a batch."""
    lists = [request.get(field) for field in ("prompt", "prompt_embeds")]
    messages = request.get("messages")
    if messages and isinstance(messages[0], list):
        lists.append(messages)
    return sum(len(found) for found in lists if isinstance(found, list) and not _are_tokens(found))


def _are_tokens(prompt: list[Any]) -> bool:
    return bool(prompt) and isinstance(prompt[0], int)


def _is_deeper(request: Any, max_depth: int) -> bool:
    return any(depth == max_depth for depth, _ in enumerate(_levels(request)))


def _num_values(request: Any) -> int:
    return sum(
        len(value) for level in _levels(request) for value in level if not _are_token_ids(value)
    )


def _are_token_ids(value: Any) -> bool:
    return isinstance(value, list) and set(map(type, value)) == {int} and min(value) >= 0


def _has_nul(request: Any) -> bool:
    for level in _levels(request):
        for value in level:
            inner = [*value, *value.values()] if isinstance(value, dict) else value
            if any("\0" in text for text in inner if isinstance(text, str)):
                return True
    return False


def _levels(request: Any) -> Iterator[list[Any]]:
    """The objects and arrays of one depth after another: no recursion, as deep as anyone asks."""
    level = [request]
    while level:
        yield level
        level = [
            child
            for value in level
            for child in (value.values() if isinstance(value, dict) else value)
            if isinstance(child, dict | list)
        ]
