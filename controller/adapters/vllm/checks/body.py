"""Finds faults of a request's body that vLLM would not find, would find too late, or would answer
with a 500.

vLLM refuses all other faults itself: tests/contract/test_endpoint_bad_input.py has the list. The
checks, in this order: the size of the JSON text before it is decoded, the size of single fields,
token ids, lists, messages, fields that vLLM ignores, the priority, and constraints on the output
(constraints.py).

Touch points of vLLM: entrypoints/openai/chat_completion/protocol.py `_normalize_messages_before`;
entrypoints/openai/responses/utils.py `_construct_message_from_response_item`;
entrypoints/anthropic/serving.py `_convert_user_tool_result`."""

import re
from collections.abc import Callable, Collection, Iterator
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec

from controller.adapters.vllm.checks.constraints import TooMuchError, check_constraints

MAX_CHOICES = 128
MAX_SEQUENCES = 1024
# A token id takes 0.3 µs of the event loop, most of it in vLLM's model of the request: 100,000 ids
# took 30 ms, 200,000 took 60 ms. So a request may have as many ids as the model's context, but the
# limit is always between these two numbers. A longer prompt can be sent as text, which is tokenized
# outside the loop.
LEAST_MAX_TOKEN_IDS = 100_000
MOST_MAX_TOKEN_IDS = 200_000

PROMPTS = "prompt"
# /v1/embeddings has this field in place of `prompt`. At other paths its items are no token ids.
INPUT = "input"
# Fields that are lists of token ids.
LISTS = (
    "tokens",
    "token_ids",
    "stop_token_ids",
    "allowed_token_ids",
    "logprob_token_ids",
    "label_token_ids",
)
TOKEN_ID_FIELDS = (PROMPTS, *LISTS)
# vLLM refuses a text far longer than the context before it tokenizes it, unless the request asks
# for truncation. With truncation, a text of 8 MB took 10 s, in which no other prompt was tokenized,
# and left 450 MB in use.
MAX_TRUNCATED_BYTES = 512 * 1024
MAX_ID_CHARS = 128
# vLLM's models also accept "129", " 1_29 " and 129.0 as integers. These fields have bounds, so they
# must be real integers.
INTEGERS = ("n", "priority")
# vLLM uses the length or a field of these values before it checks their type, so it answered a
# wrong type with 500.
KINDS: dict[str, tuple[type, str]] = {
    "messages": (list, "a list"),
    "tools": (list, "a list"),
    "structured_outputs": (dict, "an object"),
    "sampling_params": (dict, "an object"),
}

_DECODER = msgspec.json.Decoder()
# The decoder's errors about half of a surrogate pair: within a text, and at its end.
_HALF_A_PAIR = re.compile("surrogate|truncated")
_ESCAPED_HALF = re.compile(rb"\\u[dD][89a-fA-F]")


class Fault(NamedTuple):
    """What is wrong with a request; the request is answered with 400."""

    message: str
    param: str | None = None
    """The field that is wrong."""


def find_fault(
    body: bytes,
    check_priority: Callable[[int | None], object],
    max_token_ids: int = LEAST_MAX_TOKEN_IDS,
    is_forwarded: Callable[[str], bool] = lambda _: False,
) -> Fault | None:
    """The first fault of a JSON body, or None. If the checks before it found no fault,
    `check_priority` is called with the field `priority` (None if it is absent). It raises if the
    field is wrong. `is_forwarded`: whether a model's servers read the body, and not vLLM here."""
    if not body:
        return Fault("the request has no body; it must be a JSON object")
    many = f"the JSON has more than {MAX_VALUES} values that are not token ids"
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
            return Fault("a string has half of a surrogate pair, which is not a character")
        return Fault(f"the body is not valid JSON: {error}")
    if not isinstance(request, dict):
        return Fault("the body must be a JSON object")
    if (model := request.get("model")) and isinstance(model, str) and is_forwarded(model):
        priority = request.get("priority")
        if priority is not None and type(priority) is not int:
            return Fault("priority must be an integer", "priority")
        check_priority(priority)
        return None
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
    """Checks the length of a client's own id, which goes into the answer and into logs, and is sent
    with every token."""
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
        if value is not None and type(value) is not int:  # in Python a bool is an int
            return Fault(f"{field} must be an integer", field)
    return None


def _find_in_tools(request: dict[str, Any]) -> Fault | None:
    """Finds a fault in `tools`, if `tool_choice` names a function: vLLM looks for the function in
    `tools` before it checks them."""
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
    """The number of prompts of a completion, or of conversations of a batch."""
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


# -- token ids -------------------------------------------------------------------------------------
# Token ids in a request: how many there may be, and that they are integers of JSON.
#
# vLLM's models accept true, "5" and 5.0 as integers: `"prompt": [true]` was answered as the prompt
# of token 1.


def max_token_ids(max_model_len: int) -> int:
    return min(max(max_model_len, LEAST_MAX_TOKEN_IDS), MOST_MAX_TOKEN_IDS)


def find_no_ids(request: dict[str, Any]) -> Fault | None:
    for field in LISTS:
        found = request.get(field)
        if isinstance(found, list) and not _are_integers(found):
            return Fault(f"{field} must be a list of integers", field)
    prompt = request.get(PROMPTS)
    if not isinstance(prompt, list) or _are_integers(prompt):
        return None
    kinds = set(map(type, prompt))
    if kinds == {str} or (kinds == {list} and all(map(_are_integers, prompt))):
        return None
    return Fault(
        f"{PROMPTS} must be a string, a list of token ids (integers), or a list of strings or"
        " of lists of token ids",
        PROMPTS,
    )


def num_token_ids(request: dict[str, Any]) -> int:
    """How many ids the request has, in lists of valid ids. vLLM's models accept such lists without
    trying other types for each item."""
    lists = [request.get(field) for field in LISTS]
    for field in (PROMPTS, INPUT):
        if isinstance(prompt := request.get(field), list):
            lists += [prompt, *prompt]
    return sum(
        len(found)
        for found in lists
        if isinstance(found, list) and found and _are_integers(found) and min(found) >= 0
    )


def has_ids_as_input(request: dict[str, Any]) -> bool:
    """Whether `input` is the list of the token ids of one prompt, or a list of such lists."""
    found = request.get(INPUT)
    if not isinstance(found, list) or not found:
        return False
    prompts = [found] if _are_integers(found) else found
    return all(isinstance(ids, list) and _are_integers(ids) for ids in prompts)


def _are_integers(found: list[Any]) -> bool:
    return set(map(type, found)) <= {int}


# -- lists and objects -----------------------------------------------------------------------------
# Bounds on lists and objects whose items cost vLLM's event loop more than their bytes suggest.
#
# vLLM's models try each kind that an item may be, which are 117 for an item of a Responses `input`,
# and stop at the first item that fits none (openai_app.py). But parts of a chat message are tried
# later, again and again: 19,000 numbers took 0.6 s, an object as a part takes 4 µs, and one item of
# `input` with 19,000 fields took 0.2 s. Under the keys in UNTYPED vLLM accepts any value, without
# trying kinds.

MAX_LENGTH = {"messages": 2048, "input": 2048, "items": 1024, "tools": 2048}
# The limit applies to all lists in a field together, for example to messages and their parts.
MAX_ITEMS = {"messages": 4096, "input": 4096}
MAX_OTHER_ITEMS = 2048
# The limit applies to items and entries of `input` together: each field of an item is tried 117
# times.
MAX_INPUT_VALUES = 8192
# The limit applies to each object.
MAX_ENTRIES = {"logit_bias": 20_000}
MAX_OTHER_ENTRIES = 1024
UNTYPED = frozenset({"parameters", "input_schema", "schema", "json"})
# vLLM tokenizes bad words on the event loop: a bad word of 8 MB took 11 s. It looks for stop
# strings after each token.
WORDS = ("bad_words", "stop", "stop_sequences")
MAX_WORDS_CHARS = 10_000


def find_in_lists(request: dict[str, Any], unbounded: Collection[str]) -> Fault | None:
    """Finds the first list or object that is too large. `unbounded`: fields that have other bounds,
    and are skipped here."""
    for field, found in request.items():
        if field in unbounded or not isinstance(found, dict | list):
            continue
        most = MAX_LENGTH.get(field)
        if most is not None and isinstance(found, list) and len(found) > most:
            return Fault(f"{field} has more than {most} items", field)
        most = MAX_ITEMS.get(field, MAX_OTHER_ITEMS)
        if _num_items(found) > most:
            return Fault(f"the lists in {field} have more than {most} items together", field)
        most = MAX_ENTRIES.get(field, MAX_OTHER_ENTRIES)
        if _num_entries(found) > most:
            return Fault(f"an object in {field} has more than {most} entries", field)
    if "input" not in unbounded and _num_values(request.get("input")) > MAX_INPUT_VALUES:
        return Fault(f"input has more than {MAX_INPUT_VALUES} values", "input")
    for field in WORDS:
        if _num_chars(request.get(field)) > MAX_WORDS_CHARS:
            return Fault(f"{field} has more than {MAX_WORDS_CHARS} characters", field)
    return None


def _num_chars(words: Any) -> int:
    listed = words if isinstance(words, list) else [words]
    return sum(len(word) for word in listed if isinstance(word, str))


def _num_items(found: Any) -> int:
    return sum(
        len(value) for level in levels(found, UNTYPED) for value in level if isinstance(value, list)
    )


def _num_values(found: Any) -> int:
    if not isinstance(found, dict | list):
        return 0
    return sum(len(value) for level in levels(found, UNTYPED) for value in level)


def _num_entries(found: Any) -> int:
    """The number of entries in the largest object."""
    return max(
        (
            len(value)
            for level in levels(found, UNTYPED)
            for value in level
            if isinstance(value, dict)
        ),
        default=0,
    )


# -- messages --------------------------------------------------------------------------------------
# Refuses messages that vLLM would answer with a 500, or take too long for.
#
# vLLM expects a certain shape of messages when it converts them, and decodes the JSON in a tool
# call's arguments. For each unknown type of a part it logs a warning once, and remembers the last
# 128 types: types of 8 MB would take 1 GB.

MAX_TYPE_CHARS = 64


def find_in_messages(request: dict[str, Any]) -> Fault | None:
    for field in ("messages", "input"):
        messages = request.get(field)
        if not isinstance(messages, list):
            continue
        if field == "input" and not any(isinstance(each, dict) for each in messages):
            continue  # a list of texts or token ids to embed
        if messages and all(isinstance(each, list) for each in messages):  # a batch
            messages = [message for each in messages for message in each]
        if not all(isinstance(message, dict) for message in messages):
            return Fault(f"each item of {field} must be an object", field)
        for message in messages:
            why = _find_in_message(message)
            if why is None and field == "input":
                why = _find_in_output(message)
            if why:
                return Fault(f"{field}: {why}", field)
        if why := _find_in_arguments(messages):
            return Fault(f"{field}: the arguments of a tool call are {why}", field)
    return None


def _find_in_message(message: dict[str, Any]) -> str | None:
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        return "tool_calls must be a list"
    parts = message.get("content")
    if isinstance(parts, list) and not all(isinstance(part, dict | str) for part in parts):
        return "each part of a message's content must be an object"
    for part in _objects(parts):
        kind = part.get("type")
        if kind is not None and not (isinstance(kind, str) and len(kind) <= MAX_TYPE_CHARS):
            return f"the type of a part must be a string of at most {MAX_TYPE_CHARS} characters"
        if not isinstance(part.get("input_audio") or {}, dict):
            return "input_audio must be an object"
        if kind == "tool_result" and (why := _find_in_tool_result(part)):
            return why
    return None


def _find_in_tool_result(result: dict[str, Any]) -> str | None:
    for part in _objects(result.get("content")):
        if not isinstance(part.get("text", ""), str):
            return "the text of a tool's result must be a string"
        if not isinstance(part.get("source", {}), dict):
            return "the source of an image must be an object"
    return None


def _find_in_output(item: dict[str, Any]) -> str | None:
    """Checks an answer that the client sends back as input: vLLM uses the text of its first
    part."""
    content = item.get("content")
    if item.get("role") != "assistant" or not isinstance(content, list):
        return None
    first = content[0] if content else None
    if isinstance(first, dict) and isinstance(first.get("text"), str):
        return None
    return "the content of an assistant's message must begin with a text"


def _find_in_arguments(messages: list[Any]) -> str | None:
    """Checks the size of arguments: 100,000 brackets in them caused a RecursionError, and 300,000
    members took 0.2 s."""
    num_values = 0
    for level in levels(messages, UNTYPED):
        for value in level:
            text = value.get("arguments") if isinstance(value, dict) else None
            if not isinstance(text, str):
                continue
            found = outline(text.encode())
            num_values += found.num_values
            if found.too_deep:
                return f"nested deeper than {MAX_DEPTH} levels"
            if found.too_many or num_values > MAX_VALUES:
                return f"more than {MAX_VALUES} values"
    return None


def _objects(found: Any) -> list[dict[str, Any]]:
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


# -- fields that vLLM ignores ----------------------------------------------------------------------
# Refuses fields of OpenAI's API that would change the answer, and that vLLM silently ignores.
#
# Fields about accounting, storage or speed (`user`, `metadata`, `store`, `service_tier`,
# `safety_identifier`, `prompt_cache_key`, `prediction`) are accepted and have no effect, because
# the answer is the same without them. Fields that vLLM refuses, such as `suffix`, are not listed
# here.

# Values that are allowed because they ask for what vLLM does anyway.
HARMLESS: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "functions": ([],),
    "function_call": ("none",),
    "modalities": (["text"],),
    "audio": (),
    "background": (False,),
    "web_search_options": (),
    "verbosity": ("medium",),
    # These fields belong to earlier versions of vLLM. If they were ignored, the answer would not be
    # constrained.
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_decoding_backend": (),
    "guided_whitespace_pattern": (),
}
# Several frontends serve one endpoint, and a later call may reach another one.
NO_STORE = "no answer is kept for a later call"
INSTEAD = {
    "functions": "tools",
    "function_call": "tool_choice",
} | {field: "structured_outputs" for field in HARMLESS if field.startswith("guided_")}


def find_unserved(request: dict[str, Any]) -> Fault | None:
    for field in HARMLESS.keys() & request.keys():
        value = request[field]
        if value is None or any(_is(value, harmless) for harmless in HARMLESS[field]):
            continue
        if field in INSTEAD:
            return Fault(f"{field} is not supported; use {INSTEAD[field]}", field)
        if field == "background":
            return Fault(f"background is not supported: {NO_STORE}", field)
        harmless = HARMLESS[field]
        only = f", except as {harmless[0]!r}" if harmless else ""
        return Fault(f"{field} is not supported{only}", field)
    return None


def _is(value: Any, harmless: Any) -> bool:
    return type(value) is type(harmless) and value == harmless


# -- the size of a JSON text -----------------------------------------------------------------------
# How large and how deep a JSON text is, counted at C's speed before anything decodes the text.
#
# Decoding holds the event loop, even from a thread, because the decoders keep Python's lock: four
# million token ids took 1.0 s, two million prompts of one token 2.8 s. Counting brackets and commas
# takes some 10 ms. The counts are exact for valid JSON. For any other text they are upper bounds of
# what a decoder would process before it fails.

MAX_DEPTH = 64
# The number of items of lists and entries of objects; token ids do not count.
MAX_VALUES = 20_000

_SPACES = b" \t\r\n"
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_ALL_BUT_BRACKETS = bytes(set(range(256)) - set(_STEPS))


class Outline(NamedTuple):
    num_values: int
    """An upper bound of the number of values, including token ids."""
    too_many: bool
    """Whether there are more lists, objects or strings than MAX_VALUES values can have. The depth
    is not counted then."""
    too_deep: bool


def outline(text: bytes) -> Outline:
    # Most requests have so few brackets and commas that they cannot be too deep or too large.
    num_openings, num_commas = _num_openings(text), text.count(b",")
    if num_openings <= MAX_DEPTH and num_openings + num_commas <= MAX_VALUES:
        return Outline(num_openings + num_commas, too_many=False, too_deep=False)
    bare = text.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in text else text
    if bare.count(b'"') > 4 * MAX_VALUES:  # a value and its key have four quotes
        return Outline(MAX_VALUES, too_many=True, too_deep=False)
    bare = b'"'.join(bare.split(b'"')[::2]).translate(None, _SPACES)
    num_openings = _num_openings(bare)
    num_empty = bare.count(b"[]") + bare.count(b"{}")
    num_values = num_openings - num_empty + bare.count(b",")
    if num_openings > MAX_VALUES + 1:  # the outermost object does not count
        return Outline(num_values, too_many=True, too_deep=False)
    return Outline(num_values, too_many=False, too_deep=_depth(bare, num_openings) > MAX_DEPTH)


def _num_openings(text: bytes) -> int:
    return text.count(b"[") + text.count(b"{")


def _depth(bare: bytes, num_openings: int) -> int:
    """The depth of the text. It looks at no more closing brackets than there are opening ones,
    because a decoder fails at the first bracket that closes nothing: to count 8 MB of them took 0.5
    s."""
    brackets = bare.translate(None, _ALL_BUT_BRACKETS)[: 2 * num_openings]
    return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0)


def levels(found: dict[str, Any] | list[Any], skipped: Collection[str] = ()) -> Iterator[list[Any]]:
    """Yields the objects and lists level by level, except for those under a key in `skipped`."""
    level = [found]
    while level:
        yield level
        level = [
            child
            for value in level
            for child in _children(value, skipped)
            if isinstance(child, dict | list)
        ]


def _children(value: dict[str, Any] | list[Any], skipped: Collection[str]) -> Iterator[Any]:
    if isinstance(value, list):
        return iter(value)
    return (child for key, child in value.items() if key not in skipped)
