"""Refuses fields of OpenAI's API that would change the answer, and that vLLM silently ignores.

Fields about how a request is accounted for, kept or sped up (`user`, `metadata`, `store`,
`service_tier`, `safety_identifier`, `prompt_cache_key`, `prediction`) are accepted and have no
effect, as the answer is the same without them. Fields that vLLM refuses, as `suffix`, are not here.
"""

from typing import Any

from controller.adapters.vllm.checks.fault import Fault

# Values that ask for what the request gets anyway.
HARMLESS: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "functions": ([],),
    "function_call": ("none",),
    "modalities": (["text"],),
    "audio": (),
    "background": (False,),
    "web_search_options": (),
    "verbosity": ("medium",),
    # Fields of earlier versions of vLLM: if they are ignored, the answer is not constrained.
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_decoding_backend": (),
    "guided_whitespace_pattern": (),
}
# Several frontends serve one endpoint, and a later call may come to another one.
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
