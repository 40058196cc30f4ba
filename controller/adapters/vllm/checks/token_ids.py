"""Token ids in a request: where they may stand in numbers, and that they are integers of JSON.

vLLM's models take true, "5" and 5.0 for an integer: `"prompt": [true]` was answered as the
prompt of token 1.
"""

from typing import Any

from controller.adapters.vllm.checks.fault import Fault

# An id takes 0.3 µs of the event loop, most of it in vLLM's model of the request: 100,000 took
# 30 ms, 200,000 60 ms. So a request may have as many ids as the model's context, within these
# bounds; a longer prompt can be sent as text, which is tokenized beside the loop.
LEAST_MAX_TOKEN_IDS = 100_000
MOST_MAX_TOKEN_IDS = 200_000

PROMPTS = "prompt"
# What /v1/embeddings takes for `prompt`; items of another kind elsewhere.
INPUT = "input"
# Lists of ids, and of nothing else.
LISTS = (
    "tokens",
    "token_ids",
    "stop_token_ids",
    "allowed_token_ids",
    "logprob_token_ids",
    "label_token_ids",
)


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
    """Counts the ids in lists that vLLM's models accept without trying other types for each."""
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
    """Whether `input` has the token ids of one prompt, or a list of them for each prompt."""
    found = request.get(INPUT)
    if not isinstance(found, list) or not found:
        return False
    prompts = [found] if _are_integers(found) else found
    return all(isinstance(ids, list) and _are_integers(ids) for ids in prompts)


def _are_integers(found: list[Any]) -> bool:
    return set(map(type, found)) <= {int}
