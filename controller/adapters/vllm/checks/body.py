"""Finds faults of a request's body that vLLM does not find, or would find too late.

vLLM refuses all other faults itself: tests/contract/test_endpoint_bad_input.py has the list.
"""

import re
from collections.abc import Callable
from typing import Any

import msgspec

from controller.adapters.vllm.checks.constraints import TooMuchError, check_constraints
from controller.adapters.vllm.checks.fault import Fault
from controller.adapters.vllm.checks.json_levels import levels
from controller.adapters.vllm.checks.json_outline import MAX_DEPTH, MAX_VALUES, outline
from controller.adapters.vllm.checks.lists import find_in_lists
from controller.adapters.vllm.checks.messages import find_in_messages
from controller.adapters.vllm.checks.token_ids import (
    INPUT,
    LEAST_MAX_TOKEN_IDS,
    LISTS,
    PROMPTS,
    find_no_ids,
    has_ids_as_input,
    num_token_ids,
)
from controller.adapters.vllm.checks.unserved_fields import find_unserved

MAX_CHOICES = 128
MAX_SEQUENCES = 1024
TOKEN_ID_FIELDS = (PROMPTS, *LISTS)
# vLLM refuses a text far longer than the context before it tokenizes it, unless the request asks
# for truncation: 8 MB took 10 s, in which no other prompt was tokenized, and left 450 MB.
MAX_TRUNCATED_BYTES = 512 * 1024
MAX_ID_CHARS = 128
# vLLM's models also take "129", " 1_29 " and 129.0 for an integer; a bounded field must be one.
INTEGERS = ("n", "priority")
# vLLM reads the length or a field of these before it checks the type: a wrong type was a 500.
KINDS: dict[str, tuple[type, str]] = {
    "messages": (list, "a list"),
    "tools": (list, "a list"),
    "structured_outputs": (dict, "an object"),
    "sampling_params": (dict, "an object"),
}

_DECODER = msgspec.json.Decoder()
# The decoder's errors about half a pair of surrogates, within a text and at its end.
_HALF_A_PAIR = re.compile("surrogate|truncated")
_ESCAPED_HALF = re.compile(rb"\\u[dD][89a-fA-F]")


def find_fault(
    body: bytes,
    check_priority: Callable[[int | None], object],
    max_token_ids: int = LEAST_MAX_TOKEN_IDS,
) -> Fault | None:
    """The first fault of a JSON body, or None. If the checks before it found no fault,
    `check_priority` is called with the field `priority` (None: absent), and raises if it is bad."""
    if not body:
        return Fault("the request has no body; it must be a JSON object")
    many = f"the JSON has more than {MAX_VALUES} values that are no token ids"
    found = outline(body)
    if found.too_deep:
        return Fault(f"the JSON is nested deeper than {MAX_DEPTH} levels")
    if found.too_many:
        return Fault(many)
    if found.num_values > MAX_VALUES + max_token_ids:
        return Fault(f"{many}, or more than {max_token_ids} token ids")
    try:
        request = _DECODER.decode(body)
    except RecursionError:
        return Fault(f"the JSON is nested deeper than {MAX_DEPTH} levels")
    except UnicodeDecodeError:
        return Fault("the body is not UTF-8")
    except msgspec.DecodeError as error:
        if _HALF_A_PAIR.search(str(error)) and _ESCAPED_HALF.search(body):
            return Fault("a string has half of a surrogate pair, which is no character")
        return Fault(f"the body is not valid JSON: {error}")
    if not isinstance(request, dict):
        return Fault("the body must be a JSON object")
    num_ids = num_token_ids(request)
    if num_ids > max_token_ids:
        return Fault(f"the request has more than {max_token_ids} token ids; send text", PROMPTS)
    if found.num_values - num_ids > MAX_VALUES:
        return Fault(many)
    if len(body) > MAX_TRUNCATED_BYTES and (field := _truncating_field(request)):
        return Fault(f"with {field}, a body may have {MAX_TRUNCATED_BYTES} bytes", field)
    if b"\\u0000" in body and _has_nul(request):
        return Fault("a string has the character NUL")
    return _find_in_fields(request, check_priority)


def find_id_fault(request_id: str) -> str | None:
    """Bounds a client's own id, which goes into the answer, into logs and beside every token."""
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
    has_ids = has_ids_as_input(request)
    fault = (
        find_no_ids(request)
        or find_in_lists(request, (*TOKEN_ID_FIELDS, INPUT) if has_ids else TOKEN_ID_FIELDS)
        or find_in_messages(request)
        or _find_in_tools(request)
        or find_unserved(request)
    )
    if fault is not None:
        return fault
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
    # vLLM's /inference/v1/generate has the fields of a request in `sampling_params`.
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


def _find_in_tools(request: dict[str, Any]) -> Fault | None:
    """If `tool_choice` names a function, vLLM looks for it in `tools` before it checks them."""
    choice = request.get("tool_choice")
    if not isinstance(choice, dict) or not isinstance(choice.get("function"), dict):
        return None
    for tool in request.get("tools") or ():
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            return Fault("each of tools must be an object with a function that has a name", "tools")
    return None


def _truncating_field(request: dict[str, Any]) -> str | None:
    for field, default in (("truncate_prompt_tokens", None), ("truncation", "disabled")):
        if request.get(field, default) != default:
            return field
    return None


def _num_prompts(request: dict[str, Any]) -> int:
    """Prompts of a completion, or conversations of a batch."""
    lists = [request.get(field) for field in ("prompt", "prompt_embeds")]
    if has_ids_as_input(request):
        lists.append(request[INPUT])
    messages = request.get("messages")
    if messages and isinstance(messages[0], list):
        lists.append(messages)
    return sum(len(found) for found in lists if isinstance(found, list) and not _are_tokens(found))


def _are_tokens(prompt: list[Any]) -> bool:
    return bool(prompt) and isinstance(prompt[0], int)


def _has_nul(request: Any) -> bool:
    for level in levels(request):
        for value in level:
            inner = [*value, *value.values()] if isinstance(value, dict) else value
            if any("\0" in text for text in inner if isinstance(text, str)):
                return True
    return False
