"""Bounds on lists and objects whose items cost vLLM, on its event loop, more than their bytes.

vLLM's models try an item as each of the kinds that it may be, 117 for an item of a Responses
`input`, and stop at the first item that fits none (fail_fast.py). But parts of a chat message are
tried lazily, again and again: 19,000 numbers took 0.6 s, an object as a part takes 4 µs, and one
item of `input` with 19,000 fields took 0.2 s. vLLM takes any value under a key of UNTYPED, and
does not try it.
"""

from collections.abc import Collection
from typing import Any

from controller.adapters.vllm.checks.fault import Fault
from controller.adapters.vllm.checks.json_levels import levels

MAX_LENGTH = {"messages": 2048, "input": 2048, "items": 1024, "tools": 2048}
# In all lists of a field together: messages and their parts, for example.
MAX_ITEMS = {"messages": 4096, "input": 4096}
MAX_OTHER_ITEMS = 2048
# Items and entries of `input` together: each of an item's fields is tried 117 times.
MAX_INPUT_VALUES = 8192
# In one object.
MAX_ENTRIES = {"logit_bias": 20_000}
MAX_OTHER_ENTRIES = 1024
UNTYPED = frozenset({"parameters", "input_schema", "schema", "json"})
# vLLM tokenizes bad words on the event loop: one of 8 MB took 11 s. It looks for stop strings
# after each token.
WORDS = ("bad_words", "stop", "stop_sequences")
MAX_WORDS_CHARS = 10_000


def find_in_lists(request: dict[str, Any], unbounded: Collection[str]) -> Fault | None:
    """`unbounded`: fields that have bounds of their own."""
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
    """Entries of the largest object."""
    return max(
        (
            len(value)
            for level in levels(found, UNTYPED)
            for value in level
            if isinstance(value, dict)
        ),
        default=0,
    )
